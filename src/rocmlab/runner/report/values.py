"""What the notebooks recorded, as numbers, and how it spreads over the parameters of a run."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rocmlab.runner.jobs import stem

Jobs = Sequence[Mapping[str, Any]]  # of results.json
NESTED = 4  # levels of dicts in a record that are looked at
LARGEST = 1e300  # Python's integers have no end, those of others do


@dataclass(frozen=True)
class Group:
    """The jobs of one notebook."""

    title: str
    jobs: Jobs
    varying: list[str]  # parameters that are not the same in all of them
    metrics: list[str]  # names of the recorded numbers, those a person looks for first


def numbers(recorded: Mapping[str, Any]) -> dict[str, float]:
    """Return the finite numbers of a record; those in a dict get a dotted name, lists and flags are left out."""
    found = dict(_flatten({name: value for name, value in recorded.items() if name != "acceptance"}, "", NESTED))
    accepted = recorded.get("acceptance")  # what the notebook is judged by: name, value, threshold, ok
    if isinstance(accepted, Mapping) and is_number(accepted.get("value")):
        found.setdefault(str(accepted.get("name")), accepted["value"])
    return found


def _flatten(values: Mapping[str, Any], prefix: str, levels: int) -> Iterator[tuple[str, float]]:
    for name, value in values.items():
        if is_number(value):
            yield f"{prefix}{name}", value
        elif isinstance(value, Mapping) and levels > 1:
            yield from _flatten(value, f"{prefix}{name}.", levels - 1)


def is_number(value: object) -> bool:
    """Whether a value is a number that can be reckoned with; True, False, NaN and infinity are none."""
    return isinstance(value, int | float) and not isinstance(value, bool) and -LARGEST < value < LARGEST


def canonical(value: object) -> str:
    """Return one text for equal JSON values, whatever the order of their keys."""
    return json.dumps(value, sort_keys=True, ensure_ascii=False, default=str)


def groups(jobs: Jobs) -> list[Group]:
    """Return the jobs by notebook, in the order of the run."""
    by_notebook: dict[str, list[Mapping[str, Any]]] = {}
    for job in jobs:
        by_notebook.setdefault(job["notebook"], []).append(job)
    names = Counter(stem(notebook) for notebook in by_notebook)
    return [
        Group(
            title=stem(notebook) if names[stem(notebook)] == 1 else f"{Path(notebook).parent.name}/{stem(notebook)}",
            jobs=members,
            varying=_varying(members),
            metrics=_metrics(members),
        )
        for notebook, members in by_notebook.items()
    ]


def _varying(jobs: Jobs) -> list[str]:
    names = list(dict.fromkeys(name for job in jobs for name in job["parameters"]))
    nothing = object()
    return [
        name
        for name in names
        if len({canonical(job["parameters"][name]) if name in job["parameters"] else nothing for job in jobs}) > 1
    ]


def _metrics(jobs: Jobs) -> list[str]:
    """Return names of recorded numbers; one that repeats a parameter says nothing."""
    names: dict[str, None] = {}
    for job in jobs:
        for name, value in numbers(job["recorded"]).items():
            if job["parameters"].get(name) != value:
                names[name] = None
    return sorted(names, key=_rank)


def _rank(name: str) -> int:
    return next((rank for rank, word in enumerate(("accuracy", "loss")) if word in name), 2)
