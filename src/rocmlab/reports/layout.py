"""Which parameter of a grid is the axis of its plots, which have a line each, and which are averaged over."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rocmlab.base import formatting
from rocmlab.reports.values import Group, by, canonical, is_chance, is_number, numbers

SERIES = 8  # lines that can be distinguished


@dataclass(frozen=True)
class Layout:
    """How the jobs of a grid lie in its plots."""

    axis: str  # parameter along the axis
    lines: list[str]  # parameters of which each combination has a line of its own
    pooled: list[str]  # parameters over which a line is a mean
    is_chance: bool  # the axis itself is one, so that no line may join its points


@dataclass(frozen=True)
class Point:
    """What one job recorded."""

    where: Any  # value of the parameter along the axis
    value: float
    is_ok: bool


def arrange(group: Group) -> Layout:
    """Return the layout for a group in which something varies.

    Along the axis: numbers before text, then the parameter with most values. Lines: as many of the others, those with
    fewest values first, as can be distinguished.
    """
    counts = {name: len(by(group.jobs, [name])) for name in group.varying}
    real = [name for name in group.varying if name not in group.chances]

    def order(name: str) -> tuple[bool, int]:
        return all(is_number(job["parameters"].get(name)) for job in group.jobs), counts[name]

    axis = max(real, key=order)
    lines: list[str] = []
    pooled = list(group.chances)
    for name in sorted((name for name in real if name != axis), key=counts.__getitem__):
        (lines if len(by(group.jobs, [*lines, name])) <= SERIES else pooled).append(name)
    # In the order in which they were requested.
    return Layout(
        axis,
        [name for name in group.varying if name in lines],
        [name for name in group.varying if name in pooled],
        is_chance(axis),
    )


def series(group: Group, layout: Layout, metric: str) -> dict[str, list[Point]]:
    """Return the points of one recorded number by line: `optimizer = adam, width = 64`."""
    found: dict[str, list[Point]] = {}
    for job in group.jobs:
        value = numbers(job["recorded"]).get(metric)
        if value is None:
            continue
        label = ", ".join(f"{name} = {_value(job['parameters'], name)}" for name in layout.lines)
        point = Point(job["parameters"].get(layout.axis), value, job["status"] == "ok")
        found.setdefault(label, []).append(point)
    return found


def _value(parameters: Mapping[str, Any], name: str) -> str:
    return formatting.short(formatting.value(parameters[name]), 24) if name in parameters else "unset"


def at_places(points: Sequence[Point]) -> dict[str, list[float]]:
    """Return the numbers of the good jobs by place on the axis, as `canonical` writes it."""
    found: dict[str, list[float]] = {}
    for point in points:
        if point.is_ok:
            found.setdefault(canonical(point.where), []).append(point.value)
    return found
