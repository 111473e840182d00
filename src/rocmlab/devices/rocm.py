"""AMD GPUs: the KFD topology joined to DRM and PCI by PCI address, and by render node where that fails.

Source: `topology` (kernel amdkfd) and `cards` (kernel amdgpu docs). The order of KFD nodes is the order of HIP indices;
nodes whose render node this process lacks, or a container's device rules deny, are skipped by ROCm, so they take no
index. One render node that exists and refuses otherwise makes ROCm fail for every GPU. rocm-smi counts the same GPUs by
PCI address, then by partition.
"""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

from rocmlab.base.errors import Problem
from rocmlab.devices import cards, nodes, products, roots, topology
from rocmlab.devices.cards import Card, Cards
from rocmlab.devices.joining import COMPUTE_MODES, Joined, join
from rocmlab.devices.model import Device
from rocmlab.devices.topology import Topology

TYPE_CHECKING = False  # `typing` itself would cost milliseconds at each start
if TYPE_CHECKING:
    from typing import Any

NO_COMPUTE_NODE = "the amdgpu driver gives it no compute node, mostly because its PCIe slot lacks atomic operations"


class Rocm:
    """AMD GPUs with the amdgpu driver."""

    name = "rocm"

    def discover(self, root: Path, *, as_root: bool = False) -> list[Device]:
        """Return every AMD GPU in HIP order; those this process cannot use have no index and a reason."""
        return self.examine(root, as_root=as_root)[0]

    def examine(self, root: Path, *, as_root: bool = False) -> tuple[list[Device], list[Problem]]:
        """Return what `discover` returns, and what in the system's own description is damaged or contradictory.

        `as_root` counts as if every node that is there could be opened, as for a container that is given them.
        """
        found, described = topology.read(root), Cards(root)
        joined, problems = join(found.gpus, described)
        host = _Host(root, joined, as_root=as_root)
        devices = [host.device(gpu) for gpu in joined]
        taken = {gpu.address for gpu in joined} | {gpu.card.address for gpu in joined if gpu.card}
        others = [card for address, card in sorted(described.by_address.items()) if address not in taken]
        devices += [host.without_compute(card, found) for card in others]
        if len(found.denied) > len(others):
            problems.append(_denied(found.denied))
        if found.damaged:
            problems.append(_damaged(found.damaged))
        return devices, problems


class DeniedNodes(Problem):
    """Nodes of GPUs that this container was not given."""


def _denied(numbers: tuple[int, ...]) -> Problem:
    return DeniedNodes(
        f"node {_listed(numbers)} of the KFD topology may not be read",
        "the device rules of this container do not include their GPUs",
        "start the container with those GPUs",
    )


def _damaged(numbers: tuple[int, ...]) -> Problem:
    return Problem(
        f"node {_listed(numbers)} of the KFD topology cannot be read",
        "the kernel's description is damaged, so whether it is a GPU and which one is not known",
        f"cat /{topology.TOPOLOGY}/{numbers[0]}/properties, and `sudo dmesg | grep -i kfd`; then restart the machine",
    )


def _listed(numbers: tuple[int, ...]) -> str:
    return ", ".join(map(str, numbers[:8])) + (", …" if len(numbers) > 8 else "")


class _Host:
    """What the devices of one host share: their nodes, the driver, the order of rocm-smi."""

    def __init__(self, root: Path, joined: list[Joined], *, as_root: bool) -> None:
        self.root = root
        self.is_simulated = roots.is_simulated(root)
        self.compute = nodes.kfd(root)
        needed = [f"/dev/dri/renderD{gpu.node.render_minor}" for gpu in joined if gpu.node.render_minor]
        here = (nodes.inspect(root / path[1:], root) for path in needed)
        self.renders = {node.path: node for node in here if node}
        if as_root:
            self.compute = replace(self.compute, error=None) if self.compute else None
            self.renders = {path: replace(node, error=None) for path, node in self.renders.items()}
        self.forbidden = [path for path, node in self.renders.items() if node.is_forbidden]
        ranked = sorted((gpu for gpu in joined if gpu.address), key=lambda gpu: gpu.order)
        self.smi = {gpu.node.number: rank for rank, gpu in enumerate(ranked)}
        self.driver = _driver_version(root)
        self.next_index = 0

    def device(self, gpu: Joined) -> Device:
        """Describe one GPU that has a compute node, and give it the next HIP index if this process can use it."""
        node, card = gpu.node, gpu.card
        minor = node.render_minor
        path = f"/dev/dri/renderD{minor}" if minor else None
        why_not = self._why_not(path)
        index = None if why_not else self.next_index
        self.next_index += why_not is None
        device_id = node.value("device_id", 0xFFFF) or (card.device if card else None)
        revision = card.hexadecimal("revision", 0xFF) if card else None
        known = products.product(device_id, revision) if device_id else None
        gfx = node.gfx or (known.gfx if known else None)
        is_apu = _is_apu(gpu, gfx, device_id)
        return Device(
            backend="rocm",
            index=index,
            name=products.name(device_id, revision, card.text("product_name") if card else None),
            is_usable=why_not is None,
            why_not=why_not,
            gfx=gfx,
            pci_address=gpu.address,
            render_node=path,
            unique_id=node.unique_id or (_unique_id(card) if card else None),
            board_id=_unique_id(card) if card and gpu.partition is not None else None,
            simulated=self.is_simulated,
            smi_index=self.smi.get(node.number),
            kfd_node=node.number,
            kfd_id=node.kfd_id(),
            card_node=_card_node(gpu.card_number),
            pci_id=f"1002:{device_id:04x}" if device_id else None,
            architecture=products.target(gfx).architecture,
            support=products.target(gfx).outlook,
            compute_units=node.compute_units,
            is_apu=is_apu,
            driver=self._driver("amdgpu"),
            partition=gpu.partition,
            xgmi_hive=node.hive,
            **_memory(gpu, is_apu=is_apu),
            **(_of_card(card) if card else {}),
        )

    def without_compute(self, card: Card, found: Topology) -> Device:
        """Describe an AMD display device that ROCm cannot use, and why."""
        minor = min(card.renders, default=None)
        path = f"/dev/dri/renderD{minor}" if minor else None
        revision = card.hexadecimal("revision", 0xFF)
        known = products.product(card.device, revision) if card.device else None
        gfx = known.gfx if known else None
        return Device(
            backend="rocm",
            index=None,
            name=products.name(card.device, revision, card.text("product_name")),
            is_usable=False,
            why_not=self._why_no_compute(card, path, found),
            gfx=gfx,
            pci_address=card.address,
            render_node=path,
            unique_id=_unique_id(card),
            vram_bytes=card.number("mem_info_vram_total"),
            simulated=self.is_simulated,
            card_node=_card_node(card.card),
            pci_id=f"1002:{card.device:04x}" if card.device else None,
            architecture=products.target(gfx).architecture,
            is_apu=products.target(gfx).is_apu,
            gtt_bytes=card.number("mem_info_gtt_total"),
            driver=self._driver(card.driver),
            **_of_card(card),
        )

    def _why_not(self, path: str | None) -> str | None:
        """Return why ROCm in this process cannot use the GPU with this render node; None if it can."""
        render = self.renders.get(path or "")
        if self.compute is None:
            return "/dev/kfd is missing"
        if not self.compute.is_accessible:
            return _why_closed(self.compute)
        if path is None:
            return "the kernel names no render node for it"
        if render is None:
            return f"{path} is missing"
        if not render.is_accessible:
            return _why_closed(render)
        if self.forbidden:
            return f"{self.forbidden[0]} exists and cannot be opened, which stops ROCm for all GPUs"
        return None

    def _why_no_compute(self, card: Card, path: str | None, found: Topology) -> str:
        if generation := products.never_supported(card.device):
            return f"it is {generation}, which ROCm has never supported"
        if card.driver is None:
            if topology.is_built_in(self.root):
                return "no driver is bound to it, and amdgpu is built into the kernel: sudo dmesg | grep -i amdgpu"
            return "no driver is bound to it: sudo modprobe amdgpu"
        if card.driver == "vfio-pci":
            return "it is bound to vfio-pci, which keeps it for a virtual machine"
        if card.driver != "amdgpu":
            return f"it is bound to {card.driver}; ROCm needs amdgpu"
        if self.compute is None:
            return "/dev/kfd is missing"
        if found.damaged:
            return f"the kernel's description of KFD node {_listed(found.damaged)} is damaged, which may be this GPU"
        if found.denied:
            is_here = path is None or nodes.inspect(self.root / path[1:], self.root) is not None
            return "this container was not given it" if is_here else f"{path} is missing"
        return NO_COMPUTE_NODE

    def _driver(self, name: str | None) -> str | None:
        return f"amdgpu {self.driver}".strip() if name == "amdgpu" else name


def _why_closed(node: nodes.Node) -> str:
    if node.is_denied:
        return f"{node.path} is denied by the container's device rules"
    return f"{node.path} cannot be opened (it belongs to group {node.gid})"


def _card_node(number: int | None) -> str | None:
    return None if number is None else f"/dev/dri/card{number}"


def _of_card(card: Card) -> dict[str, Any]:
    """Return the facts of a GPU's PCI device, which its partitions share."""
    return {
        **cards.link(card),
        "compute_partition": card.text("current_compute_partition", COMPUTE_MODES),
        "memory_partition": card.text("current_memory_partition", r"NPS[0-9]{1,2}"),
        "numa_node": card.number("numa_node", 0, 4096),
        "serial": card.text("serial_number", r"[\w.-]{1,64}"),
    }


def _memory(gpu: Joined, *, is_apu: bool | None) -> dict[str, Any]:
    """Return VRAM and GTT: a partition's VRAM is the share KFD gives it, an APU's banks are a limit of GTT.

    HIP allocates from what KFD calls the banks: on an APU with more GTT than VRAM that is GTT since Linux 6.10, and
    VRAM before. KFD takes the limit of all GTT (`ttm.pages_limit`), the card may have more or less (`amdgpu.gttsize`):
    the smaller one is what can be allocated.
    """
    vram = gpu.card.number("mem_info_vram_total") if gpu.card and gpu.is_alone else None
    gtt = gpu.card.number("mem_info_gtt_total") if gpu.card else None
    banks = gpu.node.memory_bytes()
    if not is_apu:
        return {"vram_bytes": banks if vram is None else vram, "gtt_bytes": gtt}
    gtt = banks if gtt is None else gtt
    size = banks or gtt
    pool = "gtt" if size and size > (vram or 0) else "vram" if vram else None
    total = {"gtt": gtt, "vram": vram}.get(pool or "")
    return {
        "vram_bytes": vram,
        "gtt_bytes": gtt,
        "pool": pool,
        "pool_bytes": min(total, banks) if total and banks else total,
    }


def _is_apu(gpu: Joined, gfx: str | None, device: int | None) -> bool | None:
    """Return whether a GPU shares the host's memory.

    A node with CPU cores is an APU (older kernels). Newer ones give the GPU of an APU a node of its own; then the ISA
    target tells where it exists only in processors, and elsewhere a frame buffer larger than the VRAM does,
    because KFD counts host memory there. MI300A shares its target with MI300X and is told by its PCI id.
    """
    if (gpu.node.value("cpu_cores_count") or 0) > 0 or device == 0x74A0:
        return True
    target = products.target(gfx)
    if target.is_known:
        return target.is_apu
    vram = gpu.card.number("mem_info_vram_total") if gpu.card else None
    banks = gpu.node.memory_bytes()
    return banks > vram if vram and banks and gpu.is_alone else None


def _unique_id(card: Card) -> str | None:
    found = card.text("unique_id", r"[0-9a-fA-F]{16}")
    return found.lower() if found and found.strip("0") else None


def _driver_version(root: Path) -> str:
    """Return the version of an amdgpu built outside the kernel, else the kernel's release."""
    for name in ("sys/module/amdgpu/version", "proc/sys/kernel/osrelease"):
        words = (roots.read_text(f"{root}/{name}") or "").split()
        if words and words[0].isascii() and words[0].isprintable():
            return words[0][:40]
    return ""


def rocm_version(root: Path) -> str | None:
    """Return the version of ROCm here, such as `7.2.1`; None where it is missing. Source: /opt/rocm/.info/version."""
    found = re.match(r"\d+\.\d+(\.\d+)?", roots.read_text(root / "opt/rocm/.info/version") or "")
    return found[0] if found else None
