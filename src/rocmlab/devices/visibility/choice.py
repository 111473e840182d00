"""Which GPUs a user means: `all`, `none`, indices, ranges, PCI addresses and unique ids, also mixed."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence

from rocmlab.base.errors import RocmlabError
from rocmlab.devices.model import Device

ADDRESS = re.compile(r"(?:([0-9a-f]{1,8}):)?([0-9a-f]{1,2}):([0-9a-f]{1,2})\.([0-7])")
SPAN = re.compile(r"([0-9]+)\s*-\s*([0-9]+)")
MIN_ID = 5  # characters of a unique id; fewer would soon fit two GPUs
WHOLE_ID = 16  # digits of an AMD GPU's unique id, which may happen to be decimal ones
FORMS = "use `all`, `none`, or a list of indices (`0,2` or `0-3`), PCI addresses or unique ids"
MAX_SHOWN = 60


def select(devices: Sequence[Device], choice: str) -> list[Device]:
    """Return the GPUs a user chose, in the order in which they are named.

    Args:
        devices: what there is; the CPU is skipped.
        choice: `all` (or nothing), `none`, or a list of indices as before any mask (`0,2`), ranges (`0-3`), PCI
            addresses (the domain may be omitted) and unique ids (or their first 5 characters or more, behind `GPU-`
            where these are all decimal digits). An address of a GPU in partitions means all of
            them, and so does the id of its board.

    Raises:
        RocmlabError: the choice names a GPU that is missing, cannot be used, is named twice, or is not clear.
    """
    gpus = [device for device in devices if device.backend != "cpu"]
    wanted = choice.strip().lower()
    if wanted in ("", "all"):
        return [device for device in gpus if device.is_usable]
    if wanted in ("none", "-1"):
        return []
    return _Choice(gpus, choice).devices()


class _Choice:
    """A list of GPUs, entry by entry."""

    def __init__(self, gpus: Sequence[Device], text: str) -> None:
        self.gpus = gpus
        self.name = f"GPUS={text if len(text) <= MAX_SHOWN else text[:MAX_SHOWN] + '…'}"
        self.entries = [entry for entry in (part.strip().lower() for part in text.split(",")) if entry]

    def devices(self) -> list[Device]:
        if not self.entries:
            raise RocmlabError(f"{self.name} does not match any GPU", "the list is empty", FORMS)
        chosen: list[Device] = []
        for entry in self.entries:
            for device in self._named(entry):
                if device in chosen:
                    why = f"it is GPU {device.index} at {device.pci_address}, and each GPU can be given once"
                    raise RocmlabError(f"{self.name} names {_short(entry)} twice", why, "name each GPU once")
                if not device.is_usable:
                    raise self._unusable(entry, device)
                chosen.append(device)
        return chosen

    def _named(self, entry: str) -> list[Device]:
        """Return the GPUs of one entry: an index, an address, an id, or a range, in this order."""
        found = self._by_index(entry) or self._by_address(entry) or self._by_id(entry)
        if found:
            return found
        if span := SPAN.fullmatch(entry):
            return list(self._range(entry, span[1], span[2]))
        raise self._unknown(entry)

    def _by_index(self, entry: str) -> list[Device]:
        found = [device for device in self.gpus if device.index is not None and str(device.index) == entry]
        return self._one(entry, found)

    def _by_address(self, entry: str) -> list[Device]:
        if not (wanted := ADDRESS.fullmatch(entry)):
            return []
        found = []
        for device in self.gpus:
            here = ADDRESS.fullmatch((device.pci_address or "").lower())
            numbers = zip(here.groups("0"), wanted.groups("0"), strict=True) if here else ()
            same = [int(one, 16) == int(other, 16) for one, other in numbers]
            if same and all(same[1:]) and (same[0] or wanted[1] is None):
                found.append(device)
        return self._one(entry, found, same=lambda device: device.pci_address)

    def _by_id(self, entry: str) -> list[Device]:
        text = entry.removeprefix("gpu-")
        is_index = text == entry and text.isdecimal() and len(text) != WHOLE_ID
        if len(text) < MIN_ID or is_index:
            return []
        found: dict[Device, str] = {}  # the id that begins so: its own, or else that of the board
        for device in self.gpus:
            for identity in (device.unique_id, device.board_id):
                if (identity or "").lower().removeprefix("gpu-").startswith(text):
                    found.setdefault(device, identity or "")
        return self._one(entry, list(found), same=found.__getitem__)

    def _one(
        self, entry: str, found: list[Device], same: Callable[[Device], object] = lambda device: device
    ) -> list[Device]:
        """Return the devices of one GPU: those for which `same` is the same.

        Raises:
            RocmlabError: they are several GPUs.
        """
        kinds = {same(device) for device in found}
        if len(kinds) > 1:
            listed = ", ".join(f"{device.name} at {device.pci_address}" for device in found)
            raise RocmlabError(
                f"{self.name}: {_short(entry)} may be one of {len(kinds)} GPUs", listed, "give the whole PCI address"
            )
        return found

    def _range(self, entry: str, first: str, last: str) -> Iterator[Device]:
        if len(first.lstrip("0")) > len(last.lstrip("0")) or (len(first) < 10 and int(first) > int(last[:10])):
            raise RocmlabError(
                f"{self.name}: the range {_short(entry)} runs backwards",
                "a range names the smaller index first",
                f"write {_short(last)}-{_short(first)}, or a list for another order",
            )
        highest = max((device.index for device in self.gpus if device.index is not None), default=-1)
        if len(last) > 9 or int(last) > highest:  # before a list of that length is made
            raise self._unknown(_short(last), f" (in {_short(entry)})")
        for number in range(int(first), int(last) + 1):
            found = self._by_index(str(number))
            if not found:
                raise self._unknown(str(number), f" (in {entry})")
            yield from found

    def _unusable(self, entry: str, device: Device) -> RocmlabError:
        return RocmlabError(
            f"{self.name}: GPU {_short(entry)} cannot be used",
            device.why_not or "the driver does not report why",
            f"choose among {self._usable()}, or fix it: rocmlab doctor",
        )

    def _unknown(self, entry: str, where: str = "") -> RocmlabError:
        if entry in ("all", "none", "-1"):
            return RocmlabError(
                f"{self.name} mixes `{entry}` with other GPUs", f"`{entry}` cannot be combined with other names", FORMS
            )
        return RocmlabError(
            f"{self.name}: GPU {_short(entry)} not found{where}",
            f"usable GPUs by HIP index and PCI address: {self._usable()}",
            FORMS,
        )

    def _usable(self) -> str:
        usable = [f"{device.index}={device.pci_address}" for device in self.gpus if device.is_usable]
        return ", ".join(usable) or "none"


def _short(entry: str) -> str:
    text = entry if entry.isprintable() else repr(entry)
    return text if len(text) <= MAX_SHOWN else text[:MAX_SHOWN] + "…"
