"""A row of `rocmlab bench`: the medians of what was measured, and their ratio; and the tables of all benchmarks."""

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
    spread: tuple[float, float]  # our smallest and largest value

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


def table(titles: Sequence[str], rows: Sequence[Sequence[object]]) -> list[str]:
    """Return the lines of a table for a terminal: first and last column to the left, those between to the right."""
    cells = [list(titles), *([text(value) for value in row] for row in rows)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    return [
        "  ".join([name.ljust(widths[0]), *map(str.rjust, middle, widths[1:-1]), last]).rstrip()
        for name, *middle, last in cells
    ]


def markdown(titles: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """Return a table of Markdown."""
    cells = [titles, *([text(value).replace("|", "\\|") for value in row] for row in rows)]
    head, *lines = ("| " + " | ".join(row) + " |" for row in cells)
    return "\n".join([head, "|---" * len(titles) + "|", *lines])


def text(value: object) -> str:
    """Return what a cell shows: numbers with about three digits, nothing for None."""
    if not isinstance(value, float):
        return "" if value is None else str(value)
    for limit, form in ((100, ",.0f"), (10, ".1f"), (0.1, ".2f")):
        if value >= limit:
            return format(value, form)
    return format(value, ".3g")


def span(values: Sequence[float]) -> str:
    """Return what a cell shows of the least and the most."""
    return " … ".join(map(text, values))
