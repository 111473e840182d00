"""What a device is, and what every backend must be able to tell."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol

BACKENDS = ("rocm", "cuda", "metal", "cpu")


@dataclass(frozen=True)
class Device:
    """One GPU, or the CPU.

    The PCI address identifies a GPU; the numbers that tools print (HIP index, rocm-smi index, render node) differ from
    each other and none stands for another.
    """

    backend: str  # rocm, cuda, metal or cpu
    index: int | None  # the number HIP or CUDA gives it in this process; None if this process cannot use it
    name: str  # product name, or what is known of it
    is_usable: bool  # by this process, now
    why_not: str | None = None  # why it cannot be used; None if it can
    gfx: str | None = None  # ISA target of an AMD GPU, such as gfx1100
    pci_address: str | None = None  # 0000:03:00.0
    render_node: str | None = None  # /dev/dri/renderD128
    unique_id: str | None = None  # 16 hex digits (rocm) or UUID (cuda); None where the card has none
    vram_bytes: int | None = None  # total
    simulated: bool = False  # read from a simulated host

    def as_dict(self) -> dict[str, Any]:
        """Return all fields, ready for JSON."""
        return asdict(self)


class Backend(Protocol):
    """One kind of hardware."""

    name: str

    def discover(self, root: Path) -> list[Device]:
        """Return this backend's devices on the host below `root`; empty where there are none."""
