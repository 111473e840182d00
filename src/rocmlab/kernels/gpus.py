"""Which GPUs the kernels of this lab may have."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from rocmlab.base.errors import Problem
from rocmlab.base.safe import printable
from rocmlab.devices import Device, discover, is_simulated, system_root, visibility

LABELS = {"rocm": "GPU", "cuda": "GPU"}


@dataclass(frozen=True)
class Gpus:
    """What a lab has to give to its kernels."""

    devices: tuple[Device, ...] = ()  # each can be leased; in the order in which a framework numbers them
    is_shared: bool = False  # there is a GPU that nothing can reserve: Metal, WSL2
    problem: Problem | None = None  # why a lab that is meant for GPUs has none

    @property
    def is_simulated(self) -> bool:
        """Whether they are those of a simulated host, on which the CPU computes."""
        return any(device.simulated for device in self.devices)


def look(environment: Mapping[str, str], root: Path | None = None) -> Gpus:
    """Return the GPUs that are left by the masks of the lab's own environment.

    A lab on a simulated host computes on the CPU, and its kernels get the simulated GPUs all the same: everything can
    be tried there, and shows SIMULATED.
    """
    where = root or system_root()
    backend = "rocm" if is_simulated(where) else environment.get("ROCMLAB_BACKEND")
    if backend == "cpu":
        return Gpus()
    found = discover(where)
    if any(device.backend == "metal" for device in found):
        return Gpus(is_shared=True)
    seen = [
        device
        for device in visibility.mark_hidden(found, environment)
        if device.backend in LABELS and backend in (None, device.backend)
    ]
    chosen = tuple(visibility.remaining(seen, environment))
    if chosen or backend not in LABELS or visibility.hides_all(environment, backend):
        return Gpus(chosen)
    if not seen and (where / "dev/dxg").exists():
        return Gpus(is_shared=True)
    reasons = [f"{device.name}: {device.why_not}" for device in seen if not device.is_usable]
    return Gpus(
        problem=Problem(
            f"this lab is for the backend {backend}, and no GPU can be used here",
            "\n".join(reasons) or "the driver lists none",
            "on the host: make doctor",
        )
    )


def label(device: Device) -> str:
    """Return a GPU as text: `GPU 1: Radeon RX 7900 XTX (0000:04:00.0)`."""
    number = "" if device.index is None else f" {device.index}"
    partition = "" if device.partition is None else f", partition {device.partition}"
    where = f" ({device.pci_address}{partition})" if device.pci_address else ""
    return printable(f"GPU{number}: {device.name}{where}")


def are_mixed(devices: Sequence[Device]) -> bool:
    """Return whether these are GPUs of different kinds."""
    return len({(device.backend, device.name, device.gfx, device.vram_bytes) for device in devices}) > 1
