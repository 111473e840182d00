"""Who sees which GPU: reads every visibility mask, explains it, and is the only way a child process gets its GPUs.

`HIP_VISIBLE_DEVICES` decides on ROCm and `CUDA_VISIBLE_DEVICES` mirrors it, so that both backends and both frameworks
agree. `ROCR_VISIBLE_DEVICES` filters before HIP and would number a second time, so it is removed. `-1` hides every GPU;
an empty value does so too, and is easily taken for one that is not set. What is written are indices as before any mask
of this process, so a child of a masked process gets the right GPUs too.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from rocmlab.base.errors import Problem, RocmlabError
from rocmlab.devices import cuda, nodes
from rocmlab.devices.model import Device
from rocmlab.devices.roots import system_root
from rocmlab.devices.visibility.choice import select
from rocmlab.devices.visibility.masks import (
    CUDA,
    HIP,
    NUMBER,
    ORDER,
    ORDINAL,
    ROCR,
    VARIABLES,
    Mask,
    container_value,
    counted,
    hides_all,
    hip_variable,
    parse,
    shown,
    visible,
)

UUIDS = re.compile(r"(GPU|MIG)-[0-9a-zA-Z-]+(,(GPU|MIG)-[0-9a-zA-Z-]+)*")

__all__ = [
    "VARIABLES",
    "Mask",
    "apply",
    "child_environment",
    "container_value",
    "hides_all",
    "mark_hidden",
    "mark_overridden",
    "narrow",
    "parse",
    "problems",
    "remaining",
    "select",
    "visible",
]


def child_environment(devices: Sequence[Device]) -> dict[str, str | None]:
    """Return the variables that give a child these GPUs, in this order, and no other; None means: remove the variable.

    Raises:
        RocmlabError: one of them is a GPU that the runtime does not list, so that no mask can name it.
    """
    for device in devices:
        if device.backend in ("rocm", "cuda") and device.index is None:
            raise RocmlabError(
                f"{device.name} ({device.pci_address}) cannot be given to a process",
                device.why_not or "the runtime does not list it",
                "choose one that `rocmlab devices` lists as usable",
            )
    hip = [device for device in devices if device.backend == "rocm"]
    cuda = [device for device in devices if device.backend == "cuda"]
    return {
        HIP: _mask(hip or cuda),
        CUDA: _mask(cuda or hip),
        ORDER: "PCI_BUS_ID",  # so that CUDA counts as NVML does
        ROCR: None,
        ORDINAL: None,
    }


def _mask(devices: Sequence[Device]) -> str:
    return ",".join(str(device.index) for device in devices) or "-1"


def apply(env: Mapping[str, str], devices: Sequence[Device]) -> dict[str, str]:
    """Return a child's whole environment: `env` with the masks that give it `devices`.

    Raises:
        RocmlabError: see `child_environment`.
    """
    changed = {**env, **child_environment(devices)}
    return {name: value for name, value in changed.items() if value is not None}


def remaining(devices: Sequence[Device], environment: Mapping[str, str]) -> list[Device]:
    """Return the usable GPUs that the masks of `environment` leave, in the order in which a framework numbers them."""
    left = (*visible(environment, devices, "hip").gpus, *visible(environment, devices, "cuda").gpus)
    unmasked = [device for device in devices if device.backend not in ("rocm", "cuda", "cpu")]
    return [device for device in (*left, *unmasked) if device.is_usable]


def mark_hidden(devices: Sequence[Device], environment: Mapping[str, str]) -> list[Device]:
    """Return the devices; those that the masks of `environment` hide are not usable, with the mask as the reason.

    The index stays: it counts the GPUs before any mask, and children's masks are written with it.
    """
    reasons: dict[tuple[str, int | None], str] = {}
    for variable, mask in _filters(environment, devices):
        left = {(gpu.backend, gpu.index) for gpu in mask.gpus}
        backend = "cuda" if mask.reader == "cuda" else "rocm"
        for gpu in counted(devices, backend):
            if (gpu.backend, gpu.index) not in left:
                reasons.setdefault((gpu.backend, gpu.index), f"hidden by {shown(variable, mask.value)}")
    return [
        replace(device, is_usable=False, why_not=reasons[device.backend, device.index])
        if device.is_usable and (device.backend, device.index) in reasons
        else device
        for device in devices
    ]


def mark_overridden(devices: Sequence[Device], environment: Mapping[str, str]) -> list[Device]:
    """Return the devices; those that pass for another target by an override have the support `overridden`.

    One that computes wrong results also does so with another's kernels, and one that works needs none.
    """
    from rocmlab.devices.visibility import overrides

    numbers = overrides.node_numbers(devices)
    return [
        replace(device, support="overridden")
        if device.support in ("override", "unsupported", "unknown")
        and overrides.override_of(environment, numbers.get(-1 if device.index is None else device.index))
        else device
        for device in devices
    ]


def _filters(environment: Mapping[str, str], devices: Sequence[Device]) -> list[tuple[str, Mask]]:
    """Return the masks that hide GPUs here, in the order in which they act."""
    return [
        (ROCR, visible(environment, devices, "rocr")),
        (hip_variable(environment), visible(environment, devices, "hip")),
        (CUDA, visible(environment, devices, "cuda")),
    ]


def narrow(environment: Mapping[str, str], positions: Sequence[int]) -> dict[str, str]:
    """Return `environment` with masks that leave only some of the GPUs that it leaves already.

    This needs no look at the GPUs: it reads the masks alone, so it works where only the framework finds them (WSL2).
    On a host with NVIDIA GPUs alone the masks of ROCm hide nothing, and are not read.

    Args:
        environment: of the child, with the masks it has so far.
        positions: the GPUs, numbered as a framework numbers them under these masks; none: the CPU.

    Raises:
        RocmlabError: the masks leave fewer GPUs, are not read alike by all programs (spaces, repeated words), or name
            GPUs by something other than numbers; only a list of UUIDs may be handed on, whole and in its order.
    """
    is_cuda = _is_cuda_alone(system_root())
    name, chosen = CUDA if is_cuda else hip_variable(environment), list(positions)
    if len(set(chosen)) < len(chosen) or min(chosen, default=0) < 0:
        raise RocmlabError(
            f"GPUs {chosen} cannot be picked", "each is a number of at least 0, and is named once", "name each GPU once"
        )
    mask, rocr = environment.get(name), None if is_cuda else environment.get(ROCR)
    if chosen and mask and rocr is None and UUIDS.fullmatch(mask) and chosen == list(range(mask.count(",") + 1)):
        changed: dict[str, str | None] = {**environment, HIP: mask, CUDA: mask, ROCR: None, ORDINAL: None}
        return {variable: value for variable, value in changed.items() if value is not None}
    for variable, value in ((name, mask), (ROCR, rocr)):  # HIP counts within what ROCr left
        if value is not None and chosen:
            chosen = _picked(variable, value, chosen)
    return apply(environment, [Device("rocm", number, "", is_usable=True) for number in chosen])


def _is_cuda_alone(root: Path) -> bool:
    return cuda.has_device_nodes(root) and nodes.kfd(root) is None


def _picked(name: str, mask: str, positions: Sequence[int]) -> list[int]:
    """Return the numbers at these places of a mask that every program reads alike.

    Raises:
        RocmlabError: it is not a plain list of numbers, or is shorter.
    """
    entries = mask.split(",") if mask else []
    plain = len(set(entries)) == len(entries) and all(NUMBER.fullmatch(entry) for entry in entries)
    if not plain or max(positions) >= len(entries):
        raise RocmlabError(
            f"GPUs {list(positions)} cannot be picked from {shown(name, mask)}",
            f"it leaves {len(entries)} GPU{'s' * (len(entries) != 1)}, counted from 0"
            if plain
            else "it is not a plain list of numbers: digits and commas, each number once",
            "name GPUs that it leaves, or set HIP_VISIBLE_DEVICES to those that are meant, such as 0,1",
        )
    return [int(entries[position]) for position in positions]


def problems(environment: Mapping[str, str], devices: Sequence[Device]) -> list[Problem]:
    """Return every conflict between the masks (and the gfx overrides) of a process, each with what it does and a fix.

    Each is a `conflicts.MaskProblem` or an `overrides.OverrideProblem`.
    """
    from rocmlab.devices.visibility import conflicts  # only the doctor asks

    return conflicts.find(environment, devices)
