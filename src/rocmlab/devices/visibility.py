"""How a child process gets exactly the GPUs it should: the only place that writes visibility masks.

`HIP_VISIBLE_DEVICES` decides on ROCm and `CUDA_VISIBLE_DEVICES` mirrors it, so that both backends and both frameworks
agree. `ROCR_VISIBLE_DEVICES` filters before HIP and would number a second time, so it is removed. `-1` hides every GPU;
an empty value would mean *all* to HIP and *none* to PyTorch.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from rocmlab.devices.model import Device
from rocmlab.errors import RocmlabError


def child_environment(devices: Sequence[Device]) -> dict[str, str | None]:
    """Return the variables that give a child these GPUs and no other; None means: remove the variable."""
    numbers = [str(device.index) for device in devices if device.backend != "cpu" and device.index is not None]
    mask = ",".join(numbers) or "-1"
    return {
        "HIP_VISIBLE_DEVICES": mask,
        "CUDA_VISIBLE_DEVICES": mask,
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",  # so that CUDA counts as NVML does
        "ROCR_VISIBLE_DEVICES": None,
        "GPU_DEVICE_ORDINAL": None,
    }


def apply(env: Mapping[str, str], devices: Sequence[Device]) -> dict[str, str]:
    """Return a child's whole environment: `env` with the masks that give it `devices`."""
    changed = {**env, **child_environment(devices)}
    return {name: value for name, value in changed.items() if value is not None}


def select(devices: Sequence[Device], choice: str) -> list[Device]:
    """Return the GPUs a person chose: `all`, `none`, indices (`0,2`, `0-3`), PCI addresses or unique ids.

    Raises:
        RocmlabError: the choice names a GPU that is not here, cannot be used, or is named twice.
    """
    gpus = [device for device in devices if device.backend != "cpu"]
    wanted = choice.strip().lower()
    if wanted in ("", "all"):
        return [device for device in gpus if device.is_usable]
    if wanted in ("none", "-1"):
        return []
    chosen: list[Device] = []
    for word in _words(wanted):
        device = _find(gpus, word, choice)
        if device in chosen:
            raise RocmlabError(f"GPUS={choice} names {word} twice", "each GPU can be given once", "name each GPU once")
        chosen.append(device)
    return chosen


def _words(choice: str) -> list[str]:
    words: list[str] = []
    for part in filter(None, (part.strip() for part in choice.split(","))):
        span = re.fullmatch(r"(\d+)-(\d+)", part)
        words += [str(number) for number in range(int(span[1]), int(span[2]) + 1)] if span else [part]
    return words


def _find(gpus: Sequence[Device], word: str, choice: str) -> Device:
    def names(device: Device) -> set[str]:
        address = device.pci_address or ""
        identity = (device.unique_id or "").lower()
        return {str(device.index), address, address.removeprefix("0000:"), identity, f"gpu-{identity}"} - {
            "",
            "gpu-",
        }

    here = ", ".join(f"{device.index}={device.pci_address}" for device in gpus if device.is_usable) or "none"
    for device in gpus:
        if word in names(device):
            if device.is_usable:
                return device
            raise RocmlabError(
                f"GPUS={choice}: GPU {word} cannot be used",
                device.why_not or "",
                "choose another",
            )
    raise RocmlabError(
        f"GPUS={choice}: there is no GPU {word}",
        f"usable GPUs by HIP index and PCI address: {here}",
        "use `all`, `none`, or a list such as `0,2`",
    )
