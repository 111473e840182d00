"""What of a kernel's list, and of what is declared next to its notebooks, the overlay over its interpreter has."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from rocmlab.packages import building, declared, requested
from rocmlab.packages.overlays import Place
from rocmlab.packages.requested import Requirement


@dataclass(frozen=True)
class State:
    """Whether a kernel has what its list names."""

    kernel: str
    requirements: tuple[str, ...]
    missing: tuple[str, ...]  # those that are not installed for this image, with what is declared and not in the list
    reasons: tuple[str, ...]  # why it has not, a line each; empty: it has

    @property
    def is_synchronised(self) -> bool:
        """Whether it has."""
        return not self.reasons


def state(place: Place, wanted: Sequence[Requirement] = ()) -> State:
    """Return whether the overlay over the present interpreter has the present list, and what is declared."""
    return state_of(place.kernel, place.current(), requested.read(place.share, place.kernel), wanted)


def state_of(
    kernel: str, prefix: Path | None, listed: Sequence[Requirement], wanted: Sequence[Requirement] = ()
) -> State:
    """Return whether an overlay has what a list names, and whether this has what is declared."""
    texts = tuple(each.text for each in listed)
    missing = failed(prefix) if (is_made := is_made_of(prefix, listed)) else texts
    difference = declared.difference(listed, wanted)
    reasons = [f"{', '.join(missing)} not installed for this image"] if missing else difference.reasons
    if missing and difference.new:
        reasons += replace(difference, gone=()).reasons
    reasons += [] if is_made or reasons else ["the list was changed"]
    return State(kernel, texts, (*missing, *(each.text for each in difference.new)), tuple(reasons))


def is_made_of(prefix: Path | None, listed: Sequence[Requirement]) -> bool:
    """Return whether an overlay was made from a list; None, no overlay, is made from an empty one."""
    made_from = building.record_of(prefix).get("requirements") if prefix else []
    return made_from == [each.text for each in listed]


def failed(prefix: Path | None) -> tuple[str, ...]:
    """Return what could not be installed when an overlay was made."""
    return tuple(building.record_of(prefix).get("failed", ())) if prefix else ()
