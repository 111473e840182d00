"""What a run will do: its jobs in the order of their turn, by which rules, and how long that may take."""

from __future__ import annotations

from bisect import insort
from collections import deque
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from rocmlab.runs.jobs import Job, Resources, Result, describe
from rocmlab.runs.scheduling.place import Place
from rocmlab.runs.scheduling.scheduler import Scheduler, Waiting


@dataclass(frozen=True)
class Rules:
    """How a run goes about its jobs."""

    retries: int = 0  # of a job whose kernel died or was killed
    fail_fast: bool = False  # stop everything at the first failure
    warm: Literal["auto", "off"] = "auto"


@dataclass(frozen=True)
class Before:
    """What an earlier session of the same run has left; nothing if this is the first."""

    results: Mapping[str, Result] = field(default_factory=dict)  # by name; not run again
    attempts: Mapping[str, list[dict[str, Any]]] = field(default_factory=dict)  # by name, of those that are run again
    started: str | None = None  # of the first session
    seconds: float = 0.0  # of all sessions
    notes: Sequence[str] = ()


def longest_first(jobs: Sequence[Job], seconds: Mapping[str, float]) -> list[Job]:
    """Return jobs in the order of their turn: unknown times first, as given, for they may be long; then the longest."""
    return sorted(jobs, key=lambda job: -seconds.get(job.name, float("inf")))


class Queue:
    """The jobs that wait. Those that request the same are in one queue, so that few are examined."""

    def __init__(self, jobs: Sequence[Job], slots: Scheduler) -> None:
        self._slots = slots
        self._lines: dict[Hashable, deque[Waiting]] = {}
        self._heads: list[Waiting] = []  # of the lines, in the order of their turn
        self._requested: frozenset[Resources] = frozenset()  # by the heads
        self._count = 0
        self._first = 0
        self.excluded: dict[str, Place] = {}  # by name, where a job has ended badly
        for number, job in enumerate(jobs, 1):
            resources = slots.resources(job)
            self._line(job, resources).append((number, job, resources))
            self._count += 1
        self._heads = sorted((line[0] for line in self._lines.values()), key=_turn)
        self._note_requests()

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[Job]:
        """Go through the jobs in the order of their turn."""
        return iter([job for _, job, _ in sorted((each for line in self._lines.values() for each in line), key=_turn)])

    def heads(self) -> list[Job]:
        """Return the first of each line, in the order of their turn."""
        return [job for _, job, _ in self._heads]

    def take(self) -> tuple[Job, Place] | None:
        """Take out the job that can start now, and give it its place; None if none can."""
        if taken := self._slots.take(self._heads, self._requested, self.excluded):
            self.remove(taken[0])
        return taken

    def remove(self, job: Job) -> None:
        """Take out the head of a line."""
        at = next(at for at, (_, head, _) in enumerate(self._heads) if head is job)
        _, _, resources = self._heads.pop(at)
        line = self._line(job, resources)
        line.popleft()
        if line:
            insort(self._heads, line[0], key=_turn)
        else:
            del self._lines[self._key(job, resources)]
            self._note_requests()
        self._count -= 1
        self.excluded.pop(job.name, None)

    def put_first(self, job: Job, last: Place) -> None:
        """Put a job before all others, to be placed elsewhere than the last time if possible."""
        self.excluded[job.name] = last
        self._first -= 1
        resources = self._slots.resources(job)
        line = self._line(job, resources)
        if line:
            self._heads.remove(line[0])
        line.appendleft((self._first, job, resources))
        self._heads.insert(0, line[0])
        self._note_requests()
        self._count += 1

    def _note_requests(self) -> None:
        self._requested = frozenset(resources for _, _, resources in self._heads)

    def _line(self, job: Job, resources: Resources) -> deque[Waiting]:
        return self._lines.setdefault(self._key(job, resources), deque())

    def _key(self, job: Job, resources: Resources) -> Hashable:
        return resources, job.name if job.name in self.excluded else None


def _turn(waiting: Waiting) -> int:
    return waiting[0]


def planned(job: Job, slots: Scheduler, seconds: Mapping[str, float], before: Before) -> dict[str, Any]:
    """Return the line of a dry run for a job."""
    problem = job.problem or slots.problem(job)
    is_done = job.name in before.results
    return {
        "name": job.name,
        "notebook": job.notebook,
        "parameters": job.parameters,
        "kernel": job.kernel,
        "gpus": None if problem else slots.wanted(job),
        "note": None if problem else slots.shortage(job),
        "vram_bytes": job.vram_bytes,
        "expected_seconds": seconds.get(job.name),
        "skipped": is_done,
        "problem": describe(problem) if problem and not is_done else None,
        "warning": job.warning,
    }
