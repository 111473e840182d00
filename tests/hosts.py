"""Small simulated hosts: folders that stand for `/` with the files that discovery reads."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from rocmlab.devices import Device


@dataclass(frozen=True)
class Gpu:
    """One AMD GPU of a simulated host."""

    node: int  # KFD node number
    location: int  # PCI bus << 8 | device << 3 | function
    minor: int  # of its render node
    gfx_target_version: int = 110000
    device_id: int = 0x744C
    unique_id: int = 0xDEADBEEF12345678
    domain: int = 0
    vram_bytes: int | None = 25753026560
    name: str | None = None  # product_name; older cards have none


def make_host(root: Path, *gpus: Gpu, absent: tuple[int, ...] = (), kfd: bool = True) -> Path:
    """Write a host with a CPU node and these GPUs; `absent` render nodes are in the topology but not in /dev."""
    topology = root / "sys/class/kfd/kfd/topology/nodes"
    _write(topology / "0/properties", "cpu_cores_count 16\nsimd_count 0\n")
    (root / "dev/dri").mkdir(parents=True)
    if kfd:
        (root / "dev/kfd").touch()
    for gpu in gpus:
        lines = {
            "simd_count": 192,
            "simd_per_cu": 2,
            "gfx_target_version": gpu.gfx_target_version,
            "vendor_id": 0x1002,
            "device_id": gpu.device_id,
            "location_id": gpu.location,
            "domain": gpu.domain,
            "drm_render_minor": gpu.minor,
            "unique_id": gpu.unique_id,
        }
        _write(
            topology / str(gpu.node) / "properties",
            "".join(f"{key} {value}\n" for key, value in lines.items()),
        )
        device = root / f"sys/class/drm/renderD{gpu.minor}/device"
        device.mkdir(parents=True)
        if gpu.vram_bytes is not None:
            _write(device / "mem_info_vram_total", f"{gpu.vram_bytes}\n")
        if gpu.name:
            _write(device / "product_name", gpu.name + "\n")
        if gpu.minor not in absent:
            (root / f"dev/dri/renderD{gpu.minor}").touch()
            (root / f"dev/dri/card{gpu.minor - 128}").touch()
    return root


def device(index: int | None, address: str = "", **more: object) -> Device:
    """A GPU as discovery would return it."""
    address = address or f"0000:{index or 0:02x}:00.0"
    values = {"backend": "rocm", "name": "GPU", "is_usable": index is not None, "pci_address": address}
    return Device(index=index, **{**values, **more})  # type: ignore[arg-type]


def give(path: Path, gid: int) -> None:
    """Give a file to a group; needs root, as the caller must make sure of."""
    os.chown(path, -1, gid)


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
