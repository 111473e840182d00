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
    from rocmlab.runs.outcome.resume import Session
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

    args: argparse.Namespace
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


def new(args: argparse.Namespace, means: Means) -> Task:
    """Return a new run.

    Raises:
        RocmlabError: the arguments cannot be satisfied.
    """
    if args.reproduce:
        return _reproduced(args, means)
    _begin_cluster(args, means)
    requests = requested.of(args, parameters.parse(args.parameters))
    return _task(args, means, requests, options.share_of(args))


def _reproduced(args: argparse.Namespace, means: Means) -> Task:
    from rocmlab.runs.outcome import resume

    share = options.share_of(args)
    folder = resume.find(args.reproduce, share / "runs", "--reproduce")
    session = resume.read(folder)
    own = argparse.Namespace(**{**session.options, "compare": args.compare, "reproduce": str(folder.path)})
    args = options.restored(args, vars(own))
    _begin_cluster(args, means)
    _use_versions(args, share)
    return _task(args, means, resume.requests(session, selection.notebooks_folder(os.environ)), share)


def _use_versions(args: argparse.Namespace, share: Path) -> None:
    """Have all kernels of this process use the versions of the run that this one reproduces."""
    from rocmlab.runs.outcome import reproduce

    os.environ.update(reproduce.variables(Path(args.reproduce), share, is_dry=args.dry_run))


def continued(args: argparse.Namespace, means: Means) -> Task:
    """Return the rest of an earlier run, whose folder is then locked.

    Raises:
        RocmlabError: the run was not found, or it cannot be continued.
    """
    from rocmlab.runs.outcome import resume

    folder = resume.find(args.resume, options.share_of(args) / "runs")
    if not args.dry_run:
        folder.lock()
    session = resume.read(folder)
    args = options.restored(args, session.options)
    _begin_cluster(args, means)
    if args.reproduce:
        _use_versions(args, folder.share)
    requests = resume.requests(session, selection.notebooks_folder(os.environ))
    task = _task(args, means, requests, folder.share, folder, session)
    return task if args.dry_run else replace(task, before=resume.set_aside(folder, session, task.before))


def _begin_cluster(args: argparse.Namespace, means: Means) -> None:
    """Start to connect to the cluster, if it is to run the jobs; that continues while these are examined."""
    if (args.engine or os.environ.get("ROCMLAB_ENGINE")) != "ray":
        if given := [word for word, value in (("--cluster", args.cluster), ("--exchange", args.exchange)) if value]:
            raise RocmlabError(
                f"{' and '.join(given)} without --engine ray", "this machine alone runs the jobs", "add --engine ray"
            )
        return
    assert means.connect is not None, "`cli.run` passes it"
    means.cluster = means.connect(args.cluster, os.environ, args.exchange)


def _slots(args: argparse.Namespace, means: Means, requests: list[Request]) -> Scheduler:
    """Return the places of the run; on this machine imports also begin, while the jobs are examined."""
    from rocmlab.devices import discover
    from rocmlab.runs.scheduling.placement import Slots, choose_gpus, free_vram, numbered

    devices = discover()
    gpus = choose_gpus(devices, args.gpus, os.environ)
    slots = Slots(gpus, devices[-1], is_mixed=args.mixed, free_vram=free_vram, numbered=numbered)
    if args.warm != "off" and not args.dry_run:
        means.fork_servers.begin(requests, slots.usual_environment(os.environ))
    return slots


def _task(
    args: argparse.Namespace,
    means: Means,
    requests: list[Request],
    share: Path,
    folder: RunFolder | None = None,
    session: Session | None = None,
) -> Task:
    earlier = None
    if args.compare:  # before anything runs, so that a typo is reported now
        from rocmlab.reports import compare

        earlier = compare.load(args.compare, share / "runs")
    slots = None if means.cluster else _slots(args, means, requests)
    from rocmlab.runs.outcome import history, resume  # what takes long has begun
    from rocmlab.runs.scheduling.plan import Before
    from rocmlab.runs.spec.preflight import jobs_of

    jobs = jobs_of(requests)
    jobs = jobs if folder else name_uniquely(jobs)
    seconds = history.expected_seconds(jobs, share / "runs")
    if means.cluster:
        slots = means.cluster.find_places(args.gpus, is_mixed=args.mixed)
    assert slots
    before = resume.before(session, jobs) if session else Before()
    task = Task(args, jobs, slots, share, seconds, before, earlier, folder, means.cluster)
    if not args.dry_run:
        space.check(share)
        if folder is None:
            requested.check_any(  # a run of which no job can start leaves no folder
                ("" if job.request and problem == job.request.problem else job.name, problem)
                for job in jobs
                for problem in [job.problem or slots.problem(job)]
            )
        _check_not_inside(task)
        if slots.gpus and not means.cluster:
            from rocmlab.kernels.leases import Leases

            Leases.of_host().check(slots.gpus)  # before a folder is made and notebooks wait
    return task


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
