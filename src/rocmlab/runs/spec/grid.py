"""Parameter grids: every combination of the values that parameters are given."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from rocmlab.base import formatting
from rocmlab.base.errors import RocmlabError
from rocmlab.runs.jobs import Request, cut, stem
from rocmlab.runs.spec import selection

MAX_JOBS = 10_000  # jobs of a run
MAX_VALUE_BYTES = 24  # of a value in a job's name

Axes = Mapping[str, Sequence[Any]]  # parameter -> its values


def points(axes: Axes) -> Iterator[dict[str, Any]]:
    """Yield the parameters of every point; the last parameter varies fastest. One empty point if there are no axes."""
    for values in itertools.product(*axes.values()):
        yield dict(zip(axes, values, strict=True))


def check(jobs: int, why: str) -> None:
    """Refuse more jobs than a run can sensibly have.

    Raises:
        RocmlabError: there are too many.
    """
    if jobs > MAX_JOBS:
        raise RocmlabError(
            f"these are {jobs:,} jobs",
            f"a run has at most {MAX_JOBS:,}, and {why}",
            "give fewer values, or make several runs",
        )


def suffix(axes: Axes, point: Mapping[str, Any]) -> str:
    """Return the part of a job's name for its point: the parameters that differ, as `-lr=0.1-seed=2`."""
    varying = (name for name, values in axes.items() if len(values) > 1)
    return "".join(f"-{name}={cut(formatting.value(point[name]), MAX_VALUE_BYTES)}" for name in varying)


@dataclass(frozen=True)
class Entry:
    """An argument that names notebooks, the options of all its jobs, and a grid of parameters."""

    request: Request
    axes: Axes = field(default_factory=dict)
    here: Path | None = None  # what the word is relative to; None: the current folder


def expand(entries: Sequence[Entry], folder: Path) -> list[Request]:
    """Return one request for each notebook and point of the grid; `folder` has the lab's notebooks.

    Raises:
        RocmlabError: there would be too many, which is found out before any is made.
    """
    found = [(entry, selection.find([entry.request.word], folder, entry.here)) for entry in entries]
    count = sum(len(notebooks) * math.prod(map(len, entry.axes.values())) for entry, notebooks in found)
    check(count, "every combination of notebook and parameters is one")
    return [
        _request(entry, each, point, is_alone=len(notebooks) == 1)
        for entry, notebooks in found
        for each in notebooks
        for point in points(entry.axes)
    ]


def _request(entry: Entry, found: selection.Found, point: dict[str, Any], *, is_alone: bool) -> Request:
    own, name = stem(str(found.notebook or found.word)), entry.request.name
    name = own if name is None else name if is_alone else f"{name}-{own}"
    return replace(
        entry.request,
        word=found.word,
        notebook=str(found.notebook) if found.notebook else None,
        parameters=point,
        name=name + suffix(entry.axes, point),
        problem=found.problem,
    )
