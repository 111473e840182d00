"""AMD display devices as DRM and PCI show them, with or without a compute driver.

Source: `/sys/class/drm/{cardN,renderDM}/device` and `/sys/bus/pci/devices/*` (kernel gpu/amdgpu docs, sysfs-bus-pci).
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, field
from pathlib import Path

from rocmlab.devices import roots

AMD = 0x1002
DISPLAY_CLASSES = ("0x03", "0x12")  # display controllers and processing accelerators
BRIDGE_CLASS = "0x0604"
DRM_NAME = re.compile(r"(card|renderD)([0-9]{1,6})")
PCI_ADDRESS = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")
DEVICE_NAME = re.compile(PCI_ADDRESS.pattern + r"|amdgpu_xcp_[0-9]{1,6}")
LINK_SPEED = re.compile(r"([0-9]{1,3}(?:\.[0-9]{1,2})?) GT/s")
PCI_ID = re.compile(r"([0-9a-fA-F]{1,4}):([0-9a-fA-F]{1,4})")


@dataclass
class Card:
    """The content of one PCI (or partition) device folder."""

    folder: str
    address: str | None = None  # None for the extra render nodes of partitions (platform devices amdgpu_xcp_N)
    card: int | None = None  # N of /dev/dri/cardN
    renders: set[int] = field(default_factory=set)  # N of /dev/dri/renderDN
    vendor: int | None = None
    device: int | None = None
    driver: str | None = None  # the module it is bound to; None if none is

    @property
    def is_amd(self) -> bool:
        """Whether this is an AMD device with a PCI address of its own."""
        return self.vendor == AMD and self.address is not None

    def text(self, name: str, pattern: str = r"[\x20-\x7e]{1,100}") -> str | None:
        """Return the first line of a file of the card, if all of it matches `pattern`."""
        lines = (roots.read_text(f"{self.folder}/{name}") or "").splitlines()
        word = lines[0].strip() if lines else ""
        return word if re.fullmatch(pattern, word, re.ASCII) else None

    def number(self, name: str, least: int = 1, most: int = roots.INTEGER_LIMIT - 1) -> int | None:
        """Return a decimal number of the card within bounds, or None."""
        found = roots.read_integer(f"{self.folder}/{name}")
        return found if found is not None and least <= found <= most else None

    def hexadecimal(self, name: str, most: int = 0xFFFF) -> int | None:
        """Return a number such as 0x744c, or None."""
        return _hexadecimal(f"{self.folder}/{name}", most)


class Cards:
    """All AMD cards of a host, by PCI address and by render node."""

    def __init__(self, root: Path) -> None:
        self.by_address: dict[str, Card] = {}
        self.by_render: dict[int, Card] = {}
        self._read_drm(f"{root}/sys/class/drm")
        self._read_pci(f"{root}/sys/bus/pci/devices")

    def _read_drm(self, folder: str) -> None:
        known: dict[str, Card] = {}
        for name in roots.list_names(folder):
            found = DRM_NAME.fullmatch(name)
            if not found:
                continue
            path = f"{folder}/{name}/device"
            key = _key(f"{folder}/{name}") or name
            card = known.setdefault(key, Card(path, key if PCI_ADDRESS.fullmatch(key) else None))
            number = int(found[2])
            if found[1] == "card":
                card.card = number
            else:
                card.renders.add(number)
                self.by_render[number] = card
        for key, card in known.items():
            if key.startswith("amdgpu_xcp_"):
                continue  # a partition's render node; its facts are those of the PCI device
            _identify(card)
            if card.is_amd and card.address:
                self.by_address[card.address] = card

    def _read_pci(self, folder: str) -> None:
        for name in roots.list_names(folder):
            if name in self.by_address or not PCI_ADDRESS.fullmatch(name):
                continue
            path = f"{folder}/{name}"
            if _hexadecimal(f"{path}/vendor") != AMD:
                continue
            if (roots.read_text(f"{path}/class") or "").startswith(DISPLAY_CLASSES):
                card = Card(path, name)
                _identify(card)
                self.by_address[name] = card


def _key(entry: str) -> str | None:
    """Return the name of the device folder that a DRM entry belongs to: from one of its links, else from `uevent`.

    Source: `/sys/class/drm/card0` links to `…/0000:03:00.0/drm/card0`, and `card0/device` to `…/0000:03:00.0`.
    """
    for path, part in ((entry, -3), (f"{entry}/device", -1)):
        try:
            parts = os.readlink(path).split("/")
        except (OSError, ValueError):
            continue
        if len(parts) >= -part and DEVICE_NAME.fullmatch(parts[part]):
            return parts[part]
    return _uevent(f"{entry}/device").get("PCI_SLOT_NAME")


def _identify(card: Card) -> None:
    """Fill in vendor, device and driver, from the files or else from `uevent`."""
    event = _uevent(card.folder)
    ids = PCI_ID.fullmatch(event.get("PCI_ID", ""))
    card.vendor = int(ids[1], 16) if ids else card.hexadecimal("vendor")
    card.device = int(ids[2], 16) if ids else card.hexadecimal("device")
    driver = roots.link_name(f"{card.folder}/driver") or event.get("DRIVER") or ""
    card.driver = driver if re.fullmatch(r"[\w-]{1,40}", driver, re.ASCII) else None


def link_folder(folder: str) -> str:
    """Return the folder whose PCIe link is that of the slot, for the card with this folder.

    Newer cards carry a PCIe switch of their own: the GPU's link ends at that switch and always runs at full speed, so
    the link that matters is that of the outermost bridge made by AMD's graphics side (vendor 1002).
    """
    parent = _parent(folder)
    while PCI_ADDRESS.fullmatch(os.path.basename(parent)):
        is_bridge = (roots.read_text(f"{parent}/class") or "").startswith(BRIDGE_CLASS)
        if not is_bridge or _hexadecimal(f"{parent}/vendor") != AMD:
            break
        folder, parent = parent, os.path.dirname(parent)
    return folder


def _parent(folder: str) -> str:
    """Return the folder of what a device is plugged into; its own where that is not known."""
    try:
        return os.path.dirname(os.path.realpath(folder))
    except (OSError, ValueError):
        return folder


def is_asleep(card: Card) -> bool:
    """Return whether the kernel has suspended a card; source: `power/runtime_status` (sysfs-devices-power)."""
    return roots.read_text(f"{card.folder}/power/runtime_status") in ("suspended", "suspending")


def link(card: Card) -> dict[str, int | float | None]:
    """Return width (lanes) and speed (GT/s) of a card's PCIe link, now and at most; nothing while it is suspended.

    The maximum is what both the card and its slot (the port above it) have. The kernel resumes a card to read its link.
    """
    if is_asleep(card):
        return {}
    folder = link_folder(card.folder)
    port = _parent(folder)
    return {
        "link_width": _lanes(f"{folder}/current_link_width"),
        "link_width_max": _least(*(_lanes(f"{end}/max_link_width") for end in (folder, port))),
        "link_speed_gts": gigatransfers(roots.read_text(f"{folder}/current_link_speed") or ""),
        "link_speed_max_gts": _least(
            *(gigatransfers(roots.read_text(f"{end}/max_link_speed") or "") for end in (folder, port))
        ),
    }


def own_lanes(root: Path, address: str) -> int | None:
    """Return how many PCIe lanes the card at this address has, whatever its slot has."""
    return _lanes(f"{link_folder(f'{root}/sys/bus/pci/devices/{address}')}/max_link_width")


def _least(of_card: float | None, of_slot: float | None) -> float | None:
    return of_card if of_card is None or of_slot is None else min(of_card, of_slot)


def _lanes(path: str) -> int | None:
    lanes = roots.read_integer(path)
    return lanes if lanes is not None and 1 <= lanes <= 32 else None


def gigatransfers(text: str) -> float | None:
    """Return gigatransfers per second of a text such as `16.0 GT/s PCIe`; None of `Unknown`."""
    found = LINK_SPEED.match(text)
    return float(found[1]) or None if found else None


def _hexadecimal(path: str, most: int = 0xFFFF) -> int | None:
    text = roots.read_text(path) or ""
    number = int(text, 16) if re.fullmatch(r"(0x)?[0-9a-fA-F]{1,8}", text) else None
    return number if number is not None and number <= most else None


def _uevent(folder: str) -> dict[str, str]:
    lines = (roots.read_text(f"{folder}/uevent") or "").splitlines()
    return {key: value.strip() for key, _, value in (line.partition("=") for line in lines[:100])}
