"""The KFD topology: the kernel's own list of compute devices, whose order is that of HIP.

Source: `/sys/class/kfd/kfd/topology/nodes/N/{gpu_id,properties,mem_banks/M/properties}` (kernel amdkfd).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from rocmlab.devices import roots

MODULE = "sys/module/amdgpu"
TOPOLOGY = "sys/class/kfd/kfd/topology/nodes"
NODE_NAME = re.compile(r"[0-9]{1,6}")
PROPERTY = re.compile(r"^([A-Za-z_]\w*)[ \t]+(-?[0-9]{1,20})[ \t]*$", re.MULTILINE | re.ASCII)
FRAME_BUFFER_HEAPS = (1, 2)  # heap_type of a memory bank: public and private part of the GPU's own memory


@dataclass(frozen=True)
class KfdNode:
    """One GPU, or one partition of a GPU, in the KFD topology."""

    number: int  # of the node, which sorts HIP indices
    properties: dict[str, int]  # `key value` lines of the node's `properties`
    folder: str = ""  # of the node

    def value(self, key: str, most: int = 2**64 - 1) -> int | None:
        """Return a property between 0 and `most`; None if it is missing or damaged."""
        number = self.properties.get(key)
        return number if number is not None and 0 <= number <= most else None

    @property
    def gfx(self) -> str | None:
        """The ISA target, from `gfx_target_version` = major * 10000 + minor * 100 + step (minor and step in hex)."""
        version = self.value("gfx_target_version", 999999)
        if not version or version // 100 % 100 > 15 or version % 100 > 15:
            return None
        return f"gfx{version // 10000}{version // 100 % 100:x}{version % 100:x}"

    @property
    def pci_address(self) -> str | None:
        """The PCI address from `domain` and `location_id` (bus, device and function packed in 16 bits)."""
        location, domain = self.value("location_id", 2**32 - 1), self.properties.get("domain", 0)
        if location is None or not 0 <= domain < 2**32:
            return None
        return f"{domain:04x}:{location >> 8 & 0xFF:02x}:{location >> 3 & 0x1F:02x}.{location & 7}"

    def partition_number(self, address: str | None) -> int:
        """Return which partition of the GPU at `address` it is: the top four bits of `location_id` count them.

        On older kernels it is the PCI function, counted from that of the GPU.
        """
        location = self.value("location_id", 2**32 - 1) or 0
        return location >> 28 or max(0, (location & 7) - int((address or "0")[-1]))

    @property
    def render_minor(self) -> int | None:
        """The number of the render node that ROCm opens for this GPU."""
        return self.value("drm_render_minor", 2**20) or None

    @property
    def unique_id(self) -> str | None:
        """The 16 hex digits that HIP accepts as `GPU-<id>`; None where the card reports 0."""
        number = self.value("unique_id")
        return f"{number:016x}" if number else None

    @property
    def hive(self) -> str | None:
        """The 16 hex digits that GPUs linked by xGMI share; None where there is no such link."""
        number = self.value("hive_id")
        return f"{number:016x}" if number else None

    @property
    def compute_units(self) -> int | None:
        """SIMDs by SIMDs of a compute unit."""
        per_unit = self.value("simd_per_cu", 64)
        return (self.value("simd_count", 2**20) or 0) // per_unit or None if per_unit else None

    def kfd_id(self) -> int | None:
        """Return `gpu_id`, which names the GPU's files under `kfd/proc`; None where the capture lacks it."""
        number = roots.read_integer(f"{self.folder}/gpu_id")
        return number if number and 0 < number < 2**32 else None

    def memory_bytes(self) -> int | None:
        """Return the size of the frame-buffer banks.

        On a card that is its VRAM, on a partition its share; on an APU that prefers host memory it is the limit of GTT.
        """
        total = 0
        for bank in roots.list_names(f"{self.folder}/mem_banks"):
            found = parse_properties(roots.read_text(f"{self.folder}/mem_banks/{bank}/properties"))
            if found.get("heap_type") in FRAME_BUFFER_HEAPS:
                total += max(0, found.get("size_in_bytes", 0))
        return total if 0 < total < roots.INTEGER_LIMIT else None


@dataclass(frozen=True)
class Topology:
    """The GPU nodes in numeric order, and the nodes of which it is not known what they are."""

    gpus: tuple[KfdNode, ...] = ()
    denied: tuple[int, ...] = ()  # of GPUs that this container was not given: the kernel refuses to describe them
    damaged: tuple[int, ...] = ()  # their description is missing or makes no sense


def read(root: Path) -> Topology:
    """Return the topology of the host below `root`; nodes without SIMDs are CPUs and omitted."""
    folder = f"{root}/{TOPOLOGY}"
    gpus: list[KfdNode] = []
    denied: list[int] = []
    damaged: list[int] = []
    for number in sorted({int(name) for name in roots.list_names(folder) if NODE_NAME.fullmatch(name)}):
        properties = parse_properties(roots.read_text(f"{folder}/{number}/properties"))
        if "simd_count" not in properties:
            if roots.read_integer(f"{folder}/{number}/gpu_id") == 0:
                continue  # a CPU
            (denied if roots.is_denied(f"{folder}/{number}/properties") else damaged).append(number)
        elif properties.get("simd_count", 0) > 0:
            gpus.append(KfdNode(number, properties, f"{folder}/{number}"))
    return Topology(tuple(gpus), tuple(denied), tuple(damaged))


def is_built_in(root: Path) -> bool:
    """Return whether amdgpu is a part of the kernel itself: only a module that can be loaded has `initstate`."""
    names = roots.list_names(f"{root}/{MODULE}")
    return bool(names) and "initstate" not in names


def parse_properties(text: str | None) -> dict[str, int]:
    """Return the `key value` lines of a `properties` file; damaged lines are skipped."""
    found = ((key, int(value)) for key, value in PROPERTY.findall(text or ""))
    return {key: value for key, value in found if abs(value) < roots.INTEGER_LIMIT}
