"""What is wrong with the gfx overrides of a process, and what each GPU passes for."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

from rocmlab.base.errors import Problem
from rocmlab.devices import products
from rocmlab.devices.model import Device
from rocmlab.devices.visibility.masks import counted, shown, visible

OVERRIDE = "HSA_OVERRIDE_GFX_VERSION"
VERSION = re.compile(r"\s*\+?([0-9]{1,9})\.\s*\+?([0-9]{1,9})\.\s*\+?([0-9]{1,9})")  # as sscanf %u.%u.%u reads it
VERSION_LIMITS = (63, 255, 255)


class OverrideProblem(Problem):
    """A conflict about what a GPU passes for."""


class FatalOverride(OverrideProblem):
    """One with which no program of ROCm starts."""


def find(environment: Mapping[str, str], devices: Sequence[Device]) -> Iterator[OverrideProblem]:
    """Yield what is wrong with HSA_OVERRIDE_GFX_VERSION, for all GPUs or for one node.

    The node is ROCm's own number: CPUs count, and GPUs that this process may not open do not.
    """
    numbers = node_numbers(devices)
    gpus = counted(devices, "rocm")
    for name, value in sorted(environment.items()):
        if name != OVERRIDE and not name.startswith(OVERRIDE + "_"):
            continue
        if not is_version(value):
            yield FatalOverride(
                f"{shown(name, value)} is not three numbers",
                "it must be major.minor.step, such as 10.3.0; anything else, or nothing, stops ROCm for every GPU",
                f"unset {name}",
            )
        node = name.removeprefix(OVERRIDE + "_")
        if name != OVERRIDE and gpus and node not in {str(number) for number in numbers.values()}:
            listed = ", ".join(f"GPU {gpu} is node {number}" for gpu, number in numbers.items())
            yield OverrideProblem(
                f"{shown(name, value)} does not match any GPU", listed or "no GPU has a node here", f"unset {name}"
            )
    yield from _of_many(environment, devices, numbers)


def _of_many(
    environment: Mapping[str, str], devices: Sequence[Device], numbers: Mapping[int, int]
) -> Iterator[OverrideProblem]:
    value = environment.get(OVERRIDE)
    if not value or not is_version(value):
        return
    seen = visible(environment, devices, "hip").gpus
    gpus = [gpu for gpu in seen if f"{OVERRIDE}_{numbers.get(gpu.index or 0)}" not in environment]
    usual = {gpu.gfx: products.target(gpu.gfx).override for gpu in gpus}
    if len(usual) > 1 and any(value not in (usual[gpu.gfx], _version(gpu.gfx)) for gpu in gpus):
        wanting = {gpu.index for gpu in gpus if usual[gpu.gfx] == value}
        needy = [number for index, number in numbers.items() if index in wanting]
        listed = ", ".join(f"GPU {gpu.index} ({gpu.name}) is {gpu.gfx}" for gpu in gpus)
        yield OverrideProblem(
            f"{shown(OVERRIDE, value)} changes GPUs of different kinds",
            f"it makes all of them {value}, and a program for one kind crashes on the other: {listed}",
            f"unset {OVERRIDE}" + "".join(f"; export {OVERRIDE}_{node}={value}" for node in needy),
        )


def _version(gfx: str | None) -> str | None:
    """Return the version that an ISA target has without an override: gfx90a is 9.0.10."""
    read = re.fullmatch(r"gfx([0-9]+)([0-9a-f])([0-9a-f])", gfx or "")
    return f"{int(read[1])}.{int(read[2], 16)}.{int(read[3], 16)}" if read else None


def is_version(value: str) -> bool:
    """Return whether ROCm accepts this as a gfx version; where it does not, it does not start."""
    found = VERSION.fullmatch(value)
    return found is not None and all(int(n) <= most for n, most in zip(found.groups(), VERSION_LIMITS, strict=True))


def override_of(environment: Mapping[str, str], number: int | None) -> str | None:
    """Return the version that the GPU with this node number of ROCm passes for; None without an override."""
    value = environment.get(f"{OVERRIDE}_{number}") or environment.get(OVERRIDE)
    return value if value and number is not None and is_version(value) else None


def node_numbers(devices: Sequence[Device]) -> dict[int, int]:
    """Return ROCm's own node number of every GPU by index: the KFD node, less the GPUs before it that are closed."""
    nodes = [(gpu.kfd_node, gpu.index) for gpu in devices if gpu.backend == "rocm" and gpu.kfd_node is not None]
    closed = [node for node, index in nodes if index is None]
    return {index: node - sum(other < node for other in closed) for node, index in nodes if index is not None}
