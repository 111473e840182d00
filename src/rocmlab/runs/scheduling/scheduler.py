"""Which job starts next, on one machine and on a cluster.

Jobs that request the same resources form a demand class. What a class can be given is found out once, and a turn looks
at the first job of each class only, so that neither the number of jobs nor the number of GPUs makes a turn longer.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from rocmlab.base.errors import Problem
from rocmlab.devices import Device
from rocmlab.notebook.outcome import Outcome
from rocmlab.runs.jobs import Job, Resources
from rocmlab.runs.scheduling.place import Place

Group = int  # of devices that are interchangeable: GPUs of one product, or nodes with equal GPUs
CPU: Group = -1  # the group of the places without a GPU
Waiting = tuple[int, Job, Resources]  # whose turn it is, and what the job requests


@dataclass(frozen=True, eq=False)
class Demand:
    """What all jobs of a class get: those that request the same resources."""

    resources: Resources
    count: int  # of GPUs; 0 is a place without one
    groups: frozenset[Group]  # those that could ever serve it
    problem: Problem | None = None  # why it can never be placed
    shortage: str | None = None  # why it gets no GPU although it requests all


class Scheduler(ABC):
    """The places of a run, given to jobs in the order of their turn."""

    gpus: tuple[Device, ...]  # of the run
    count: int  # how many jobs with one GPU run side by side; at least 1

    def __init__(self, *, is_mixed: bool = False) -> None:
        """Begin; with `is_mixed` every job may get GPUs of different products."""
        self._is_mixed = is_mixed
        self._demands: dict[Resources, Demand] = {}

    def resources(self, job: Job) -> Resources:
        """Return what a job requests; jobs with equal resources are in one queue."""
        is_mixed = self._is_mixed or job.is_mixed
        return Resources(job.gpus, job.min_gpus, job.vram_bytes, is_mixed, job.takes_gpus_from_ray)

    def demand(self, resources: Resources) -> Demand:
        """Return what jobs get that request these resources: the same object until the places change."""
        if resources not in self._demands:
            self._demands[resources] = self._resolve(resources)
        return self._demands[resources]

    def wanted(self, job: Job) -> int:
        """Return how many GPUs a job gets; 0 is a place without one."""
        return self.demand(self.resources(job)).count

    def shortage(self, job: Job) -> str | None:
        """Return why a job that requests all GPUs gets none: `it needs 2 GPUs, this run has 1 GPU`; else None."""
        return self.demand(self.resources(job)).shortage

    def problem(self, job: Job) -> Problem | None:
        """Return why a job could never be placed."""
        return self.demand(self.resources(job)).problem

    def take(
        self, waiting: Iterable[Waiting], requested: frozenset[Resources], excluded: Mapping[str, Place]
    ) -> tuple[Job, Place] | None:
        """Return the next job and its place; None if none can start now.

        Args:
            waiting: in the order of their turn; of the jobs that request the same the first is enough.
            requested: all that they request; the same object as long as it is the same.
            excluded: by the name of a job, the place of its last attempt, whose GPUs or node others are preferred to.
        """
        groups = self._available(requested)
        for _, job, resources in waiting:
            demand = self.demand(resources)
            if demand.groups.isdisjoint(groups):
                continue
            if place := self._place(demand, groups, excluded.get(job.name)):
                return job, place
            groups -= self._kept_for(demand)
            if not groups:
                break
        return None

    @abstractmethod
    def release(self, place: Place) -> None:
        """Have what a job had free again."""

    def note_end(self, place: Place, outcome: Outcome) -> str | None:
        """Note how a job ended at a place that is free again; return why that gets no further job now, if so."""
        return None

    def wake(self, *, is_idle: bool) -> bool:
        """Use places again that have rested enough, or all if nothing else runs; return whether there were any."""
        return False

    @abstractmethod
    def _resolve(self, resources: Resources) -> Demand:
        """Return what jobs get that request these resources."""

    @abstractmethod
    def _available(self, requested: frozenset[Resources]) -> set[Group]:
        """Begin a turn in which jobs wait with these requests; return the groups that have something free."""

    @abstractmethod
    def _place(self, demand: Demand, groups: set[Group], last: Place | None) -> Place | None:
        """Return a place in these groups, elsewhere than the last attempt if possible; None if a job must wait."""

    @abstractmethod
    def _kept_for(self, demand: Demand) -> frozenset[Group]:
        """Return the groups of which no later job may have anything while a job waits for them."""
