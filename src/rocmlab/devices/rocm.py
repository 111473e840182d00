"""AMD GPUs, from the KFD topology joined to DRM by the render node's number.

Source: `/sys/class/kfd/kfd/topology/nodes/*` (kernel amdkfd) and `/sys/class/drm/renderD*/device` (kernel amdgpu docs).
The order of KFD nodes is the order of HIP indices; nodes whose render node this process lacks are skipped by ROCm, so
they take no index. One render node that exists but may not be opened makes ROCm fail for every GPU.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from pathlib import Path

from rocmlab.devices import nodes
from rocmlab.devices.model import Device
from rocmlab.devices.roots import is_simulated, read_integer, read_text

TOPOLOGY = Path("sys/class/kfd/kfd/topology/nodes")


@dataclass(frozen=True)
class KfdNode:
    """One GPU of the KFD topology."""

    number: int  # of the node, which sorts HIP indices
    properties: dict[str, int]  # `key value` lines of the node's `properties`

    @property
    def gfx(self) -> str | None:
        """The ISA target, from `gfx_target_version` = major * 10000 + minor * 100 + step (minor and step in hex)."""
        version = self.properties.get("gfx_target_version")
        return f"gfx{version // 10000}{version // 100 % 100:x}{version % 100:x}" if version else None

    @property
    def pci_address(self) -> str | None:
        """The PCI address from `domain` and `location_id` (bus, device and function packed in 16 bits)."""
        location = self.properties.get("location_id")
        if location is None:
            return None
        domain = self.properties.get("domain", 0)
        return f"{domain:04x}:{location >> 8 & 0xFF:02x}:{location >> 3 & 0x1F:02x}.{location & 7}"

    @property
    def unique_id(self) -> str | None:
        """The 16 hex digits that HIP accepts as `GPU-<id>`; None where the card reports 0."""
        number = self.properties.get("unique_id")
        return f"{number:016x}" if number else None


def kfd_gpus(root: Path) -> list[KfdNode]:
    """Return the GPU nodes of the topology in numeric order; nodes without SIMDs are CPUs and left out."""
    try:
        numbers = sorted(int(entry.name) for entry in (root / TOPOLOGY).iterdir() if entry.name.isdigit())
    except OSError:
        return []
    found = (KfdNode(number, _properties(root / TOPOLOGY / str(number) / "properties")) for number in numbers)
    return [node for node in found if node.properties.get("simd_count", 0) > 0]


def _properties(path: Path) -> dict[str, int]:
    pairs = re.findall(r"^(\w+)\s+(-?\d+)$", read_text(path) or "", re.MULTILINE)
    return {key: int(value) for key, value in pairs}


class Rocm:
    """AMD GPUs with the amdgpu driver."""

    name = "rocm"

    def discover(self, root: Path, *, as_root: bool = False) -> list[Device]:
        """Return every AMD GPU in HIP order; those this process cannot use have no index and say why.

        Args:
            root: the host.
            as_root: count as if every node that is there could be opened, as for a container that is given them.
        """
        compute = nodes.kfd(root)
        renders = {node.path: node for node in nodes.render_nodes(root)}
        if as_root:
            compute = replace(compute, is_accessible=True) if compute else None
            renders = {path: replace(node, is_accessible=True) for path, node in renders.items()}
        forbidden = [node.path for node in renders.values() if not node.is_accessible]
        found: list[Device] = []
        index = 0
        for gpu in kfd_gpus(root):
            path = f"/dev/dri/renderD{gpu.properties.get('drm_render_minor', -1)}"
            why_not = _why_not(compute, renders.get(path), path, forbidden)
            found.append(_describe(gpu, root, path, None if why_not else index, why_not))
            index += why_not is None
        return found


def _why_not(compute: nodes.Node | None, render: nodes.Node | None, path: str, forbidden: list[str]) -> str | None:
    if compute is None:
        return "/dev/kfd is not here"
    if not compute.is_accessible:
        return f"/dev/kfd cannot be opened (it belongs to group {compute.gid})"
    if render is None:
        return f"{path} is not here"
    if not render.is_accessible:
        return f"{path} cannot be opened (it belongs to group {render.gid})"
    if forbidden:
        return f"{forbidden[0]} exists and cannot be opened, which stops ROCm for all GPUs"
    return None


def _describe(gpu: KfdNode, root: Path, path: str, index: int | None, why_not: str | None) -> Device:
    drm = root / "sys/class/drm" / Path(path).name / "device"
    device_id = gpu.properties.get("device_id", 0)
    device = Device(
        backend="rocm",
        index=index,
        name=read_text(drm / "product_name") or f"AMD GPU 1002:{device_id:04x}",
        is_usable=why_not is None,
        why_not=why_not,
        gfx=gpu.gfx,
        pci_address=gpu.pci_address,
        render_node=path,
        unique_id=gpu.unique_id,
        simulated=is_simulated(root),
    )
    return replace(device, vram_bytes=read_integer(drm / "mem_info_vram_total"))
