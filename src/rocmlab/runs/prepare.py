"""Preparing a run: its jobs, devices and folder, from the arguments of `rocmlab run`."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from rocmlab.base.errors import RocmlabError
from rocmlab.devices import product_names
from rocmlab.runs import space
from rocmlab.runs.jobs import Job, Request, name_uniquely
from rocmlab.runs.spec import options, parameters, requested, selection
from rocmlab.runs.workers.forking import JobForkServers

if TYPE_CHECKING:
    from rocmlab.runs.folder import RunFolder
    from rocmlab.runs.scheduling.plan import Before
    from rocmlab.runs.scheduling.scheduler import Scheduler
    from rocmlab.runs.workers.executor import Site

    class Cluster(Site, Protocol):
        """A Ray cluster that runs the jobs."""

        @property
        def nodes(self) -> Sequence[object]:
            """The nodes that get jobs."""

        def find_places(self, gpus: str | None, *, is_mixed: bool = False) -> Scheduler:
            """Wait until the cluster has reported its devices, and return its places."""

        def shut(self) -> None:
            """End the connection."""


Connect = Callable[["str | None", Mapping[str, str], "str | None"], "Cluster"]  # address, environment, exchange


@dataclass(frozen=True)
class Task:
    """What is to be run, and how."""

    asked: argparse.Namespace
    jobs: list[Job]
    slots: Scheduler
    share: Path
    seconds: Mapping[str, float]  # that jobs may take, by name
    before: Before
    earlier: dict[str, Any] | None  # the run to compare with
    folder: RunFolder | None  # of a run that is continued
    cluster: Cluster | None  # None: this machine


@dataclass
class Means:
    """What was started before anything runs, and ends in any case."""

    fork_servers: JobForkServers
    connect: Connect | None
    cluster: Cluster | None = None

    def close(self) -> None:
        """End it."""
        self.fork_servers.close()
        if self.cluster is not None:
            self.cluster.shut()


def new(asked: argparse.Namespace, means: Means) -> Task:
    """Return a new run.

    Raises:
        RocmlabError: the arguments cannot be satisfied.
    """
    from rocmlab.runs.scheduling.plan import Before

    _begin_cluster(asked, means)

    axes = parameters.parse(asked.parameters)
    earlier = _earlier(asked.compare, share_of(asked))
    requests = requested.of(asked, axes)
    return _task(asked, means, requests, share_of(asked), earlier, None, lambda jobs: Before())


def continued(asked: argparse.Namespace, means: Means) -> Task:
    """Return the rest of an earlier run, whose folder is then locked.

    Raises:
        RocmlabError: there is no such run, or it cannot be continued.
    """
    from rocmlab.runs.outcome import resume

    folder = resume.find(asked.resume, share_of(asked) / "runs")
    if not asked.dry_run:
        folder.lock()
    session = resume.read(folder)
    asked = options.restored(asked, session.options)
    _begin_cluster(asked, means)
    share = folder.path.parent.parent
    requests = resume.requests(session, selection.notebooks_folder(os.environ))
    task = _task(
        asked,
        means,
        requests,
        share,
        _earlier(asked.compare, share),
        folder,
        lambda jobs: resume.before(session, jobs),
    )
    return task if asked.dry_run else replace(task, before=resume.set_aside(folder, session, task.before))


def _begin_cluster(asked: argparse.Namespace, means: Means) -> None:
    """Start to connect to the cluster, if it is to run the jobs; that continues while these are examined."""
    if engine_of(asked) != "ray":
        if given := [word for word, value in (("--cluster", asked.cluster), ("--exchange", asked.exchange)) if value]:
            raise RocmlabError(
                f"{' and '.join(given)} without --engine ray", "this machine alone runs the jobs", "add --engine ray"
            )
        return
    assert means.connect is not None, "`cli.run` passes it"
    means.cluster = means.connect(asked.cluster, os.environ, asked.exchange)


def _slots(asked: argparse.Namespace, means: Means, requests: list[Request]) -> Scheduler:
    """Return the places of the run; on this machine imports begin, too, while the jobs are looked at."""
    from rocmlab.devices import discover
    from rocmlab.runs.scheduling.placement import Slots, choose_gpus, free_vram

    devices = discover()
    gpus = choose_gpus(devices, asked.gpus, os.environ)
    slots = Slots(gpus, devices[-1], is_mixed=asked.mixed, free_vram=free_vram)
    if asked.warm != "off" and engine_of(asked) == "rocmlab" and not asked.dry_run:
        means.fork_servers.begin(requests, slots.usual_environment(os.environ))
    return slots


def _task(
    asked: argparse.Namespace,
    means: Means,
    requests: list[Request],
    share: Path,
    earlier: dict[str, Any] | None,
    folder: RunFolder | None,
    before: Any,  # noqa: ANN401  jobs -> Before
) -> Task:
    here = None if means.cluster else _slots(asked, means, requests)
    from rocmlab.runs.outcome import history
    from rocmlab.runs.scheduling import plan  # what takes long has begun
    from rocmlab.runs.spec.preflight import jobs_of

    jobs = jobs_of(requests)
    jobs = jobs if folder else name_uniquely(jobs)
    seconds = history.expected_seconds(jobs, share / "runs")
    slots = here or _places(asked, means)
    task = Task(asked, jobs, slots, share, seconds, before(jobs), earlier, folder, means.cluster)
    if not asked.dry_run:
        space.check(share)
        if folder is None:
            plan.check_any(jobs, slots)  # a run of which no job can start leaves no folder
        _check_not_inside(task)
    return task


def _places(asked: argparse.Namespace, means: Means) -> Scheduler:
    assert means.cluster is not None
    return means.cluster.find_places(asked.gpus, is_mixed=asked.mixed)


def _check_not_inside(task: Task) -> None:
    """Reject a run that would wait for ever for the lease of the job that it is started from."""
    from rocmlab.runs.workers.supervisor import LEASED

    left = [job for job in task.jobs if not job.problem and job.name not in task.before.results]
    if os.environ.get(LEASED) == "1" and task.slots.gpus and not task.cluster and any(map(task.slots.wanted, left)):
        raise RocmlabError(
            "this runs inside a job of another run",
            f"its GPUs ({product_names(task.slots.gpus)}) are leased to that job's kernel until it ends",
            "compute on the CPU: --gpus none, or start it from a terminal",
        )


def share_of(asked: argparse.Namespace) -> Path:
    """Return the share: that of the option, else of the lab, else `share` here."""
    return Path(asked.share or os.environ.get("ROCMLAB_SHARE") or "share").expanduser().absolute()


def _earlier(which: str | None, share: Path) -> dict[str, Any] | None:
    """Return the results of the run to compare with, before anything runs, so that a typo is reported now."""
    if not which:
        return None
    from rocmlab.reports import compare

    return compare.load(which, share / "runs")


def engine_of(asked: argparse.Namespace) -> str:
    """Return the engine: rocmlab or ray."""
    return "ray" if (asked.engine or os.environ.get("ROCMLAB_ENGINE")) == "ray" else "rocmlab"
