"""All devices of a host, whatever made them."""

from __future__ import annotations

from pathlib import Path

from rocmlab.devices.cpu import Cpu
from rocmlab.devices.cuda import Cuda
from rocmlab.devices.metal import Metal
from rocmlab.devices.model import Backend, Device
from rocmlab.devices.rocm import Rocm
from rocmlab.devices.roots import system_root

ALL: tuple[Backend, ...] = (Rocm(), Cuda(), Metal(), Cpu())


def discover(root: Path | None = None) -> list[Device]:
    """Return every device: usable GPUs first, then GPUs this process cannot use, the CPU last."""
    where = root or system_root()
    found = [device for backend in ALL for device in backend.discover(where)]
    return sorted(found, key=lambda device: (device.backend == "cpu", not device.is_usable))
