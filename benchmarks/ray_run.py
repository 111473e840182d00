"""One run of which nothing but `run.run` is timed: `python -m benchmarks.ray_run HEAD SHARE NOTEBOOK…`.

HEAD is `local` for the GPUs of this machine, else HOST:PORT of a cluster's head. Reading notebooks, finding devices and
connecting to the cluster come first and do not count; what a run starts for itself (workers, fork servers, Ray's
processes and the files they bring) does.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from rocmlab.base.errors import RocmlabError
from rocmlab.cluster.executor.cluster import Cluster
from rocmlab.devices import discover
from rocmlab.runs import run
from rocmlab.runs.folder import RunFolder
from rocmlab.runs.jobs import Job, Result, name_uniquely
from rocmlab.runs.scheduling.place import Place
from rocmlab.runs.scheduling.placement import Slots, choose_gpus, free_vram
from rocmlab.runs.scheduling.scheduler import Scheduler
from rocmlab.runs.spec import options, requested
from rocmlab.runs.spec.preflight import jobs_of
from rocmlab.runs.workers.supervisor import Event

LOCAL = "local"


class _Nobody:
    """A display that shows nothing."""

    def started(self, job: Job, place: Place) -> None:
        """Show nothing."""

    def event(self, job: Job, event: Event) -> None:
        """Show nothing."""

    def finished(self, result: Result) -> None:
        """Show nothing."""

    def mute(self) -> None:
        """Show nothing, as before."""


def seconds_of(head: str, share: Path, notebooks: Sequence[str]) -> tuple[float, int]:
    """Run notebooks, each on one GPU, and return wall seconds and the number of slots.

    Args:
        head: `LOCAL`, or HOST:PORT of a cluster's head.
        share: where the run's folder is made.
        notebooks: their paths.

    Raises:
        RocmlabError: a notebook did not run, or there is no such cluster.
    """
    asked = options.parser().parse_intermixed_args(list(notebooks))
    jobs = name_uniquely(jobs_of(requested.of(asked, {})))
    folder = RunFolder.create(share, head.replace(":", "-"))
    if head == LOCAL:
        devices = discover()
        slots = Slots(choose_gpus(devices, None, os.environ), devices[-1], free_vram=free_vram)
        return _timed(jobs, folder, slots, None), slots.count
    cluster = Cluster(head, os.environ)
    try:
        places = cluster.find_places(None)
        return _timed(jobs, folder, places, cluster), places.count
    finally:
        cluster.shut()


def _timed(jobs: Sequence[Job], folder: RunFolder, slots: Scheduler, cluster: Cluster | None) -> float:
    began = time.monotonic()
    outcome = run.run(jobs, folder=folder, slots=slots, display=_Nobody(), site=cluster)
    seconds = time.monotonic() - began
    if not outcome.is_ok:
        result = next(result for result in outcome.results if not result.is_ok)
        error = result.error or {}
        why = f"{result.name}: {result.status}; {error.get('name', '')} {error.get('value', '')}".strip("; ")
        raise RocmlabError("a notebook of the benchmark did not run", why, "make run-notebooks, which says more")
    return seconds


def main(arguments: Sequence[str]) -> int:
    """Run what the arguments name, and print seconds and slots as JSON."""
    head, share, *notebooks = arguments
    seconds, slots = seconds_of(head, Path(share), notebooks)
    sys.stdout.write(json.dumps({"seconds": seconds, "slots": slots}) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
