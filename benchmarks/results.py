"""What a benchmark has measured, by name of the row."""

from __future__ import annotations

from collections.abc import Container, Iterable, Sequence
from dataclasses import dataclass, field

from rocmlab.base.errors import RocmlabError
from rocmlab.benchmarking.rows import Row, row


@dataclass
class Results:
    """Values by name of the row."""

    device: str | None = None  # what was measured on
    simulated: bool = True
    units: dict[str, str] = field(default_factory=dict)
    ours: dict[str, list[float]] = field(default_factory=dict)
    theirs: dict[str, list[float]] = field(default_factory=dict)  # only of rows that have something to compare with
    skipped: dict[str, str] = field(default_factory=dict)  # what could not be measured here, and why

    def add(self, name: str, unit: str, ours: float, theirs: float | None = None) -> None:
        """Add one value of ours, and what it is compared with."""
        self.extend(name, unit, [ours], [] if theirs is None else [theirs])

    def extend(self, name: str, unit: str, ours: Sequence[float], theirs: Sequence[float] = ()) -> None:
        """Add values of ours, and those they are compared with."""
        self.units[name] = unit
        self.ours.setdefault(name, []).extend(ours)
        if theirs:
            self.theirs.setdefault(name, []).extend(theirs)

    def rows(self, costs: Container[str] = ()) -> list[Row]:
        """Return the rows; of those in `costs` the ratio is ours to theirs."""
        return [
            row(name, self.units[name], ours, self.theirs.get(name, ()), is_cost=name in costs)
            for name, ours in self.ours.items()
        ]


def check_names(names: Iterable[str], known: Iterable[str]) -> None:
    """Make sure that there are such rows.

    Raises:
        RocmlabError: there are not.
    """
    if unknown := sorted(set(names) - set(known)):
        raise RocmlabError(f"no such row: {', '.join(unknown)}", "", f"one of {', '.join(known)}")
