"""Which card and which partition each node of the KFD topology is.

The PCI address decides, and the render node where the address leads nowhere. Older drivers number the partitions of a
card as functions of its PCI address.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from rocmlab.base.errors import Problem
from rocmlab.devices import topology
from rocmlab.devices.cards import Card, Cards
from rocmlab.devices.topology import KfdNode

TYPE_CHECKING = False  # `typing` itself would cost milliseconds at each start
if TYPE_CHECKING:
    from typing import Any

COMPUTE_MODES = "SPX|DPX|TPX|QPX|CPX"
PARTITIONED = ("gfx942", "gfx950")  # GPUs that can be split, also where no mode can be read
NEEDED = ("location_id", "drm_render_minor", "device_id", "simd_per_cu")  # properties without which a GPU is half known


@dataclass(frozen=True)
class Joined:
    """One KFD node, the card it belongs to, and which partition of that card it is."""

    node: KfdNode
    address: str | None
    card: Card | None
    partition: int | None  # None where its card has no partitions
    is_alone: bool  # the only node of its card
    card_number: int | None  # N of its own /dev/dri/cardN

    @property
    def order(self) -> tuple[Any, ...]:
        """Where rocm-smi lists it: by PCI address, then partition."""
        domain, _, rest = (self.address or "").partition(":")
        return (int(domain, 16), rest, self.partition or 0, self.node.number)


def join(gpus: tuple[KfdNode, ...], described: Cards) -> tuple[list[Joined], list[Problem]]:
    """Give every KFD node its card; the PCI address decides, the render node where the address leads nowhere."""
    problems: list[Problem] = []
    pairs: list[tuple[KfdNode, Card | None, Card | None]] = []
    for node in gpus:
        render = described.by_render.get(node.render_minor or -1)
        card = described.by_address.get(node.pci_address or "")
        if card is None:
            card = _whole_card(node, described) or (
                render if render and (render.address is None or render.is_amd) else None
            )
        problems += _damage(node, render)
        pairs.append((node, card, render))
    shared = Counter(node.unique_id for node in gpus if node.gfx in PARTITIONED)
    addresses = [_address(node, card, is_shared=shared[node.unique_id] > 1) for node, card, _ in pairs]
    counts = Counter(address for address in addresses if address)
    seen: Counter[str] = Counter()
    joined = []
    for address, (node, card, render) in zip(addresses, pairs, strict=True):
        is_alone = counts[address or ""] <= 1
        rank = seen[address or ""]
        seen[address or ""] += 1
        partition = _partition(node, card, address, rank, is_alone=is_alone)
        if rank and partition is None:
            problems.append(_same_place(node, address))
        drm = render if render and render.card is not None else card if card and not card.renders else None
        joined.append(Joined(node, address, card, partition, is_alone, drm.card if drm else None))
    return joined, problems


def _address(node: KfdNode, card: Card | None, *, is_shared: bool) -> str | None:
    """Return where a node's GPU is. Without its card, partitions on other functions show by the unique id they share.

    With older drivers all partitions of a GPU have its unique id, and are functions of its PCI address.
    """
    if card and card.address:
        return card.address
    is_partition = is_shared and node.unique_id is not None and node.pci_address is not None
    return f"{node.pci_address[:-1]}0" if is_partition and node.pci_address else node.pci_address


def _whole_card(node: KfdNode, described: Cards) -> Card | None:
    """Return the card of a partition that an older kernel numbers by the function of the PCI address."""
    whole = described.by_address.get(f"{(node.pci_address or '')[:-1]}0")
    return whole if whole and whole.text("current_compute_partition", COMPUTE_MODES) else None


def _partition(node: KfdNode, card: Card | None, address: str | None, rank: int, *, is_alone: bool) -> int | None:
    """Return the number of a partition: from `location_id`, or by node order where that has none."""
    has_modes = card is not None and card.text("current_compute_partition", COMPUTE_MODES) is not None
    if is_alone:
        return 0 if has_modes else None
    return node.partition_number(address) or rank if has_modes or node.gfx in PARTITIONED else None


def _damage(node: KfdNode, render: Card | None) -> list[Problem]:
    """Return what a node's description lacks, or where it contradicts DRM."""
    found = []
    lacking = [key for key in NEEDED if node.value(key) is None]
    if lacking:
        found.append(
            Problem(
                f"KFD node {node.number} lacks {', '.join(lacking)}",
                "the kernel's description is incomplete, or a value is out of range",
                f"cat /{topology.TOPOLOGY}/{node.number}/properties, and see `sudo dmesg | grep -i kfd`",
            )
        )
    if node.pci_address and render and render.address not in (None, node.pci_address):
        found.append(
            Problem(
                f"KFD node {node.number} is at {node.pci_address} and names renderD{node.render_minor}",
                f"that render node belongs to {render.address}",
                "restart the machine; if it stays so, report it to the maintainers of the kernel's amdgpu driver",
            )
        )
    return found


def _same_place(node: KfdNode, address: str | None) -> Problem:
    return Problem(
        f"KFD node {node.number} is at {address}, where another node is already",
        "the card has no partitions, so one of the two descriptions is wrong",
        "restart the machine; if it stays so, report it to the maintainers of the kernel's amdgpu driver",
    )
