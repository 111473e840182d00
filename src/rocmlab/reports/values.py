"""What the notebooks recorded, as numbers, and how it spreads over the parameters of a run."""

from __future__ import annotations

import json
import re
import statistics
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rocmlab.base import formatting
from rocmlab.base.formatting import stem

Jobs = Sequence[Mapping[str, Any]]  # of results.json
NESTED = 4  # levels of dicts in a record that are looked at
MAX_NUMBER = 1e300  # Python's integers have no end, those of others do
# Words in the name of a parameter whose values only change randomness, such as `seed` or `data_seed`.
CHANCE = frozenset(("seed", "seeds", "repeat", "repetition", "replicate", "trial", "fold"))


@dataclass(frozen=True)
class Group:
    """The jobs of one notebook."""

    title: str
    jobs: Jobs
    varying: list[str]  # parameters that are not the same in all of them
    metrics: list[str]  # names of the recorded numbers, those a user looks for first

    @property
    def chances(self) -> list[str]:
        """Parameters that vary only to see how much chance does, such as `seed`; none where nothing else varies."""
        found = [name for name in self.varying if is_chance(name)]
        return found if len(found) < len(self.varying) else []


def is_chance(name: str) -> bool:
    """Whether a parameter's values only change randomness, by its name."""
    return not CHANCE.isdisjoint(re.split(r"[^a-z]+", name.lower()))


@dataclass(frozen=True)
class Spread:
    """Several values of one number."""

    mean: float
    deviation: float | None  # of the sample; None of a single value


def spread(numbers: Sequence[float]) -> Spread:
    """Return mean and standard deviation of at least one number."""
    deviation = statistics.stdev(numbers) if len(numbers) > 1 else None
    return Spread(statistics.fmean(numbers), deviation)


def used(devices: Sequence[Mapping[str, Any]]) -> dict[str, float | None]:
    """Return what a job used in all: the VRAM of the fullest device, the mean use, the energy of all; None: unknown.

    The energy is also unknown where it is of one device, or for a part of the time.
    """

    def known(name: str) -> list[float]:
        return [device[name] for device in devices if is_number(device.get(name))]

    peak, busy, energy = known("peak_vram_bytes"), known("mean_busy_percent"), known("energy_joules")
    is_whole = len(energy) == len(devices) and not any(device.get("energy_is_partial") for device in devices)
    return {
        "peak_vram_bytes": max(peak) if peak else None,
        "mean_busy_percent": statistics.fmean(busy) if busy else None,
        "energy_joules": sum(energy) if energy and is_whole else None,
    }


@dataclass(frozen=True)
class GpuTotals:
    """What all jobs of a run took of GPUs, attempts that were retried included."""

    seconds: float | None  # for which they were leased, added up over GPUs; None: no job had one
    joules: float | None  # of what is known
    is_whole: bool  # whether the energy of every job with a GPU is known

    def __str__(self) -> str:
        """Return `GPU time 1:02:45, energy 41.2 Wh`; empty without a GPU."""
        energy = f"energy {'' if self.is_whole else 'at least '}{formatting.energy(self.joules)}"
        parts = [f"GPU time {formatting.duration(self.seconds)}"] * (self.seconds is not None)
        return ", ".join([*parts, *([energy] if self.joules is not None else [])])


def gpu_totals(jobs: Jobs) -> GpuTotals:
    """Add up the GPUs of a run. A job has its GPUs to itself, so nothing is counted twice."""
    every = [each for job in jobs for each in (job, *(job.get("attempts") or []))]
    held = [(each.get("seconds"), device) for each in every for device in each.get("devices") or []]
    held = [(time, device) for time, device in held if device.get("backend") != "cpu"]
    seconds = [time for time, _ in held if is_number(time)]
    joules = [device["energy_joules"] for _, device in held if is_number(device.get("energy_joules"))]
    is_whole = len(joules) == len(held) and not any(device.get("energy_is_partial") for _, device in held)
    return GpuTotals(sum(seconds) if seconds else None, sum(joules) if joules else None, is_whole)


def by(jobs: Jobs, names: Sequence[str]) -> dict[tuple[str, ...], list[Mapping[str, Any]]]:
    """Return the jobs by what these parameters are; a missing one is a value of its own."""
    found: dict[tuple[str, ...], list[Mapping[str, Any]]] = {}
    for job in jobs:
        parameters = job["parameters"]
        key = tuple(canonical(parameters[name]) if name in parameters else "" for name in names)
        found.setdefault(key, []).append(job)
    return found


def numbers(recorded: Mapping[str, Any]) -> dict[str, float]:
    """Return the finite numbers of a record; those in a dict get a dotted name, lists and flags are omitted."""
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
    return isinstance(value, int | float) and not isinstance(value, bool) and -MAX_NUMBER < value < MAX_NUMBER


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
    """Return names of recorded numbers; one that repeats a parameter is omitted."""
    names: dict[str, None] = {}
    for job in jobs:
        for name, value in numbers(job["recorded"]).items():
            if job["parameters"].get(name) != value:
                names[name] = None
    return sorted(names, key=_rank)


def _rank(name: str) -> int:
    return next((rank for rank, word in enumerate(("accuracy", "loss")) if word in name), 2)
