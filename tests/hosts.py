"""Small simulated hosts: folders that stand for `/` with the files that discovery reads."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass, field
from pathlib import Path

from rocmlab.devices import Device


@dataclass(frozen=True)
class Gpu:
    """One AMD GPU of a simulated host."""

    node: int | None  # KFD node number; None if the driver gives it no compute node
    location: int  # PCI bus << 8 | device << 3 | function
    minor: int  # of its render node
    gfx_target_version: int = 110000
    device_id: int = 0x744C
    unique_id: int = 0xDEADBEEF12345678
    domain: int = 0
    vram_bytes: int | None = 25753026560
    name: str | None = None  # product_name; older cards have none
    card: int | None = None  # of its card node; by default minor - 128
    driver: str | None = "amdgpu"  # what it is bound to
    files: dict[str, str] = field(default_factory=dict)  # more files of its PCI device
    properties: dict[str, int | None] = field(default_factory=dict)  # of its KFD node; None leaves a key out
    banks: tuple[tuple[int, int], ...] = ()  # heap type and bytes of its KFD memory banks

    @property
    def address(self) -> str:
        """Its PCI address."""
        return f"{self.domain:04x}:{self.location >> 8:02x}:{self.location >> 3 & 0x1F:02x}.{self.location & 7}"


def make_host(root: Path, *gpus: Gpu, absent: tuple[int, ...] = (), kfd: bool = True) -> Path:
    """Write a host with a CPU node and these GPUs; `absent` render nodes are in the topology but not in /dev."""
    write(root / "sys/class/kfd/kfd/topology/nodes/0/properties", "cpu_cores_count 16\nsimd_count 0\n")
    write(root / "proc/sys/kernel/osrelease", "6.12.0-test\n")
    write(
        root / "proc/meminfo", "MemTotal:       65536000 kB\nMemFree:         1000000 kB\nMemAvailable:   40000000 kB\n"
    )
    (root / "dev/dri").mkdir(parents=True)
    if kfd:
        make_node(root / "dev/kfd")
    for gpu in gpus:
        _write_device(root, gpu)
        if gpu.node is not None:
            write_node(root, gpu.node, gpu)
        if gpu.minor not in absent and gpu.driver == "amdgpu":
            make_node(root / f"dev/dri/renderD{gpu.minor}")
            make_node(root / f"dev/dri/card{_card(gpu)}")
    return root


def make_node(path: Path, mode: int = 0o666) -> None:
    """Make the stand-in of a device node, which its mode closes or opens."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch()
    path.chmod(mode)


def write_node(root: Path, number: int, gpu: Gpu, **more: int) -> None:
    """Write the KFD node of a GPU, or of one of its partitions."""
    node = root / f"sys/class/kfd/kfd/topology/nodes/{number}"
    lines = {
        "cpu_cores_count": 0,
        "simd_count": 192,
        "simd_per_cu": 2,
        "gfx_target_version": gpu.gfx_target_version,
        "vendor_id": 0x1002,
        "device_id": gpu.device_id,
        "location_id": gpu.location,
        "domain": gpu.domain,
        "drm_render_minor": gpu.minor,
        "unique_id": gpu.unique_id,
        **gpu.properties,
        **more,
    }
    write(node / "properties", "".join(f"{key} {value}\n" for key, value in lines.items() if value is not None))
    write(node / "gpu_id", f"{40000 + number}\n")
    for bank, (heap, size) in enumerate(gpu.banks):
        write(node / f"mem_banks/{bank}/properties", f"heap_type {heap}\nsize_in_bytes {size}\n")


def write_partition(root: Path, number: int, card: int, minor: int) -> None:
    """Write the platform device of a further partition, with the card and render node that DRM gives it."""
    device = root / f"sys/devices/platform/amdgpu_xcp_{number}"
    _write_drm(root, device, card, minor)
    make_node(root / f"dev/dri/renderD{minor}")


def device(index: int | None, address: str = "", **more: object) -> Device:
    """A GPU as discovery would return it."""
    address = address or f"0000:{index or 0:02x}:00.0"
    values = {"backend": "rocm", "name": "GPU", "is_usable": index is not None, "pci_address": address}
    return Device(index=index, **{**values, **more})  # type: ignore[arg-type]


def give(path: Path, gid: int) -> None:
    """Give a file to a group; needs root, as the caller must make sure of."""
    os.chown(path, -1, gid)


def write(path: Path, text: str) -> None:
    """Write a file and the folders above it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def _card(gpu: Gpu) -> int:
    return gpu.minor - 128 if gpu.card is None else gpu.card


def _write_device(root: Path, gpu: Gpu) -> None:
    folder = root / f"sys/devices/pci{gpu.domain:04x}:00/{gpu.address}"
    driver = f"DRIVER={gpu.driver}\n" if gpu.driver else ""
    write(folder / "uevent", f"{driver}PCI_ID=1002:{gpu.device_id:04X}\nPCI_SLOT_NAME={gpu.address}\n")
    write(folder / "vendor", "0x1002\n")
    write(folder / "device", f"0x{gpu.device_id:04x}\n")
    write(folder / "class", "0x030000\n")
    for name, text in gpu.files.items():
        write(folder / name, text)
    if gpu.vram_bytes is not None:
        write(folder / "mem_info_vram_total", f"{gpu.vram_bytes}\n")
    if gpu.name:
        write(folder / "product_name", gpu.name + "\n")
    _link(root / f"sys/bus/pci/devices/{gpu.address}", folder)
    if gpu.driver == "amdgpu":
        _write_drm(root, folder, _card(gpu), gpu.minor)


def _write_drm(root: Path, device: Path, card: int, minor: int) -> None:
    for name in (f"card{card}", f"renderD{minor}"):
        entry = device / "drm" / name
        entry.mkdir(parents=True)
        (entry / "device").symlink_to(f"../../../{device.name}")  # as the kernel writes it
        _link(root / "sys/class/drm" / name, entry)


def _link(path: Path, target: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.symlink_to(os.path.relpath(target, path.parent))


OCCUPY = """
import os, resource, sys
soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 1200), hard))
for number in range(3, 1100):
    os.dup2(0, number, inheritable=True)
os.execv(sys.executable, [sys.executable, *sys.argv[1:]])
"""


def with_descriptors(*arguments: str) -> list[str]:
    """Return the command line of a Python that begins with more than 1,024 open descriptors."""
    return [sys.executable, "-c", OCCUPY, *arguments]
