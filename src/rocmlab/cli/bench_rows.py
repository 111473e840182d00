"""A row of `rocmlab bench`: the medians of what was measured, and their ratio."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass


@dataclass(frozen=True)
class Row:
    """One result: ours, theirs where there is one, and how many times better ours is (see `row`)."""

    name: str
    unit: str
    ours: float
    theirs: float | None
    ratio: float | None
    runs: int
    spread: tuple[float, float]  # least and most of ours

    def as_dict(self) -> dict[str, object]:
        """Return the row, ready for JSON."""
        return asdict(self)


def row(name: str, unit: str, ours: Sequence[float], theirs: Sequence[float] = (), *, is_cost: bool = False) -> Row:
    """Return the medians of interleaved values.

    Args:
        name: of the row.
        unit: of the values, of which less is better.
        ours: values.
        theirs: those to compare with; none: there is no ratio.
        is_cost: ours does more and costs more: the ratio is ours to theirs.
    """
    mine, other = statistics.median(ours), statistics.median(theirs) if theirs else None
    return Row(
        name=name,
        unit=unit,
        ours=round(mine, 3),
        theirs=round(other, 3) if other is not None else None,
        ratio=round(mine / other if is_cost else other / mine, 2) if other is not None else None,
        runs=len(ours),
        spread=(round(min(ours), 3), round(max(ours), 3)),
    )
