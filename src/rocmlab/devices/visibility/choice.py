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
            where these are all decimal digits). An address or id of a GPU in partitions means all its partitions.

    Raises:
        RocmlabError: the choice names a GPU that is not here, cannot be used, is named twice, or is not clear.
    """
    gpus = [device for device in devices if device.backend != "cpu"]
    wanted = choice.strip().lower()
    if wanted in ("", "all"):
        return [device for device in gpus if device.is_usable]
    if wanted in ("none", "-1"):
        return []
    return _Choice(gpus, choice).devices()


class _Choice:
    """A list of GPUs, word by word."""

    def __init__(self, gpus: Sequence[Device], text: str) -> None:
        self.gpus = gpus
        self.name = f"GPUS={text if len(text) <= MAX_SHOWN else text[:MAX_SHOWN] + '…'}"
        self.words = [word for word in (part.strip().lower() for part in text.split(",")) if word]

    def devices(self) -> list[Device]:
        if not self.words:
            raise RocmlabError(f"{self.name} does not match any GPU", "the list is empty", FORMS)
        chosen: list[Device] = []
        for word in self.words:
            for device in self._named(word):
                if device in chosen:
                    why = f"it is GPU {device.index} at {device.pci_address}, and each GPU can be given once"
                    raise RocmlabError(f"{self.name} names {_short(word)} twice", why, "name each GPU once")
                if not device.is_usable:
                    raise self._unusable(word, device)
                chosen.append(device)
        return chosen

    def _named(self, word: str) -> list[Device]:
        """Return the GPUs of one word: an index, an address, an id, or a range, in this order."""
        found = self._by_index(word) or self._by_address(word) or self._by_id(word)
        if found:
            return found
        if span := SPAN.fullmatch(word):
            return list(self._range(word, span[1], span[2]))
        raise self._unknown(word)

    def _by_index(self, word: str) -> list[Device]:
        found = [device for device in self.gpus if device.index is not None and str(device.index) == word]
        return self._one(word, found)

    def _by_address(self, word: str) -> list[Device]:
        if not (wanted := ADDRESS.fullmatch(word)):
            return []
        found = []
        for device in self.gpus:
            here = ADDRESS.fullmatch((device.pci_address or "").lower())
            numbers = zip(here.groups("0"), wanted.groups("0"), strict=True) if here else ()
            same = [int(one, 16) == int(other, 16) for one, other in numbers]
            if same and all(same[1:]) and (same[0] or wanted[1] is None):
                found.append(device)
        return self._one(word, found, same=lambda device: device.pci_address)

    def _by_id(self, word: str) -> list[Device]:
        text = word.removeprefix("gpu-")
        is_index = text == word and text.isdecimal() and len(text) != WHOLE_ID
        if len(text) < MIN_ID or is_index:
            return []
        known = [(device, (device.unique_id or "").lower().removeprefix("gpu-")) for device in self.gpus]
        found = [device for device, identity in known if identity.startswith(text)]
        return self._one(word, found, same=lambda device: device.unique_id)

    def _one(
        self, word: str, found: list[Device], same: Callable[[Device], object] = lambda device: device
    ) -> list[Device]:
        """Return the devices of one GPU: those for which `same` is the same.

        Raises:
            RocmlabError: they are several GPUs.
        """
        kinds = {same(device) for device in found}
        if len(kinds) > 1:
            listed = ", ".join(f"{device.name} at {device.pci_address}" for device in found)
            raise RocmlabError(
                f"{self.name}: {_short(word)} may be one of {len(kinds)} GPUs", listed, "give the whole PCI address"
            )
        return found

    def _range(self, word: str, first: str, last: str) -> Iterator[Device]:
        if len(first.lstrip("0")) > len(last.lstrip("0")) or (len(first) < 10 and int(first) > int(last[:10])):
            raise RocmlabError(
                f"{self.name}: the range {_short(word)} runs backwards",
                "a range names the smaller index first",
                f"write {_short(last)}-{_short(first)}, or a list for another order",
            )
        highest = max((device.index for device in self.gpus if device.index is not None), default=-1)
        if len(last) > 9 or int(last) > highest:  # before a list of that length is made
            raise self._unknown(_short(last), f" (in {_short(word)})")
        for number in range(int(first), int(last) + 1):
            found = self._by_index(str(number))
            if not found:
                raise self._unknown(str(number), f" (in {word})")
            yield from found

    def _unusable(self, word: str, device: Device) -> RocmlabError:
        return RocmlabError(
            f"{self.name}: GPU {_short(word)} cannot be used",
            device.why_not or "the driver does not say why",
            f"choose among {self._usable()}, or fix it: rocmlab doctor",
        )

    def _unknown(self, word: str, where: str = "") -> RocmlabError:
        if word in ("all", "none", "-1"):
            return RocmlabError(
                f"{self.name} mixes `{word}` with other GPUs", f"`{word}` says it all and stands alone", FORMS
            )
        return RocmlabError(
            f"{self.name}: there is no GPU {_short(word)}{where}",
            f"usable GPUs by HIP index and PCI address: {self._usable()}",
            FORMS,
        )

    def _usable(self) -> str:
        usable = [f"{device.index}={device.pci_address}" for device in self.gpus if device.is_usable]
        return ", ".join(usable) or "none"


def _short(word: str) -> str:
    text = word if word.isprintable() else repr(word)
    return text if len(text) <= MAX_SHOWN else text[:MAX_SHOWN] + "…"
