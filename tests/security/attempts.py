"""What an attack is here: named attempts with an effect that can be seen, controls, and a count of all of them.

A group of attempts has one area, such as "requests without the token". Its control does what an authorised user may do
and reports whether the effect was seen; a group whose control fails proves nothing, so its test fails. An attempt
returns evidence, which is a text, where it succeeded, and nothing where it was kept out. One that cannot be tried
raises, so that a broken attack is never counted as a defended one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

EVIDENCE_LETTERS = 300


@dataclass(frozen=True)
class Attempt:
    """One thing that an attacker does."""

    name: str
    run: Callable[[], str | None]  # evidence of success; None or empty: kept out


@dataclass(frozen=True)
class Group:
    """Attempts of one area against one target."""

    area: str
    success: str  # what it would mean
    control: Callable[[Any], str | None]  # why an effect would not be seen; None or empty: it would
    attempts: Callable[[Any], Iterable[Attempt]]
    targets: tuple[str, ...] = ("native", "container")

    def __str__(self) -> str:
        return self.area


@dataclass
class Row:
    """What came of a group."""

    area: str
    target: str
    tried: int = 0
    succeeded: list[str] = field(default_factory=list)


@dataclass
class Tally:
    """All that was tried in this session."""

    rows: list[Row] = field(default_factory=list)

    @property
    def tried(self) -> int:
        """How many attempts there were."""
        return sum(row.tried for row in self.rows)

    def against(self, target: str) -> list[Row]:
        """Return what was tried against one target."""
        return [row for row in self.rows if row.target == target]

    def lines(self) -> Iterator[str]:
        """Return the table: area, target, attempts, how many succeeded."""
        width = max((len(row.area) for row in self.rows), default=4)
        yield f"{'area':{width}}  {'target':9}  {'tried':>5}  {'succeeded':>9}"
        for row in self.rows:
            yield f"{row.area:{width}}  {row.target:9}  {row.tried:5}  {len(row.succeeded):9}"
        succeeded = sum(len(row.succeeded) for row in self.rows)
        yield f"{'all':{width}}  {'':9}  {self.tried:5}  {succeeded:9}"


TALLY = Tally()


def attack(group: Group, target: Any) -> Row:
    """Check the control, try everything, and count it.

    Raises:
        AssertionError: the control failed, so that no attempt would have been noticed.
    """
    why = group.control(target)
    assert not why, f"the control of {group.area!r} failed against {target.name}: {why}"
    row = Row(group.area, target.name)
    TALLY.rows.append(row)
    for attempt in group.attempts(target):
        evidence = attempt.run()
        row.tried += 1
        if evidence:
            row.succeeded.append(f"{attempt.name}: {evidence[:EVIDENCE_LETTERS]}")
    assert row.tried, f"{group.area!r} tried nothing against {target.name}"
    return row
