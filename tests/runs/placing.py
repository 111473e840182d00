"""Jobs given to places one by one, without the queue of a run."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from rocmlab.runs.jobs import Job
from rocmlab.runs.scheduling.place import Place
from rocmlab.runs.scheduling.scheduler import Scheduler


def take(
    slots: Scheduler, jobs: Iterable[Job], excluded: Mapping[str, Place] | None = None
) -> tuple[Job, Place] | None:
    """Return the next of these jobs, which are in the order of their turn, and its place; None if none can start."""
    waiting = [(0, job, slots.resources(job)) for job in jobs]
    return slots.take(waiting, frozenset(resources for _, _, resources in waiting), excluded or {})
