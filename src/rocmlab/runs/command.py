"""`rocmlab run`: notebooks, headless."""

from __future__ import annotations

import argparse
import contextlib
import math
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rocmlab.base import files, formatting
from rocmlab.base.errors import RocmlabError
from rocmlab.kernels.run_warmth import Warmth
from rocmlab.runs import space
from rocmlab.runs.jobs import Job, Request, name_uniquely, stem
from rocmlab.runs.spec import notice, options, parameters, requested, selection
from rocmlab.runs.spec.options import parser as parser

if TYPE_CHECKING:
    from rich.console import Console

    from rocmlab.cluster.executor.cluster import Cluster
    from rocmlab.runs.folder import RunFolder
    from rocmlab.runs.run import Run
    from rocmlab.runs.scheduling.placement import Slots
    from rocmlab.runs.scheduling.plan import Before

WIDTH_OF_A_LOG = 160  # columns, where there is no terminal to ask


@dataclass(frozen=True)
class _Task:
    """What is to be run, and how."""

    asked: argparse.Namespace
    jobs: list[Job]
    slots: Slots
    share: Path
    seconds: Mapping[str, float]  # that jobs may take, by name
    before: Before
    earlier: dict[str, Any] | None  # the run to compare with
    folder: RunFolder | None  # of a run that is continued
    cluster: Cluster | None  # None: this machine


@dataclass
class _Means:
    """What was started before anything runs, and ends in any case."""

    warmth: Warmth
    cluster: Cluster | None = None

    def close(self) -> None:
        """End it."""
        self.warmth.close()
        if self.cluster is not None:
            self.cluster.shut()


def main(arguments: Sequence[str]) -> int:
    """Run notebooks and return the exit code: 0 all ran, 1 one did not, 2 there is nothing to run or a usage error.

    Raises:
        RocmlabError: the arguments cannot be met, before anything has run.
    """
    asked = parser().parse_intermixed_args(arguments)
    options.check(asked)
    if asked.list:
        return _list(asked)
    with contextlib.closing(_Means(Warmth())) as means:
        with notice.shown(notice.preparing(asked.resume, asked.notebooks)):
            task = _continued(asked, means) if asked.resume else _new(asked, means)
        if asked.dry_run:
            return _plan(task)
        run = _run(task, means.warmth)
    if asked.json:
        sys.stdout.write(files.to_json(run.as_dict()) + "\n")
    else:
        from rocmlab.runs.screen import summary

        summary.show(run, _console())
    return 0 if run.is_ok else 1


def _list(asked: argparse.Namespace) -> int:
    from rocmlab.runs.outcome import listing

    runs = _share(asked) / "runs"
    found = listing.runs_of(runs)
    if asked.json:
        sys.stdout.write(files.to_json(found) + "\n")
    elif found:
        _console().print(listing.table(found))
    else:
        _console().print(f"no run in {formatting.path(runs)}", markup=False)
    return 0


def _new(asked: argparse.Namespace, means: _Means) -> _Task:
    from rocmlab.runs.scheduling.plan import Before

    _begin_cluster(asked, means)

    axes = parameters.parse(asked.parameters)
    earlier = _earlier(asked.compare, _share(asked))
    requests = requested.of(asked, axes)
    return _task(asked, means, requests, _share(asked), earlier, None, lambda jobs: Before())


def _continued(asked: argparse.Namespace, means: _Means) -> _Task:
    from rocmlab.runs.outcome import resume

    folder = resume.find(asked.resume, _share(asked) / "runs")
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


def _begin_cluster(asked: argparse.Namespace, means: _Means) -> None:
    """Start to connect to the cluster, if it is to run the jobs; that goes on while these are looked at."""
    if _engine(asked) != "ray":
        if given := [word for word, value in (("--cluster", asked.cluster), ("--exchange", asked.exchange)) if value]:
            raise RocmlabError(
                f"{' and '.join(given)} without --engine ray", "this machine alone runs the jobs", "add --engine ray"
            )
        return
    from rocmlab.cluster.executor.cluster import Cluster

    means.cluster = Cluster(asked.cluster, os.environ, asked.exchange)


def _slots(asked: argparse.Namespace, means: _Means, requests: list[Request]) -> Slots:
    """Return the places of the run; on this machine imports begin, too, while the jobs are looked at."""
    from rocmlab.devices import discover
    from rocmlab.runs.scheduling.placement import Slots, choose_gpus, free_vram

    devices = discover()
    gpus = choose_gpus(devices, asked.gpus, os.environ)
    slots = Slots(gpus, devices[-1], is_mixed=asked.mixed, free_vram=free_vram)
    if asked.warm != "off" and _engine(asked) == "rocmlab" and not asked.dry_run:
        means.warmth.begin(requests, slots.usual_environment(os.environ))
    return slots


def _task(
    asked: argparse.Namespace,
    means: _Means,
    requests: list[Request],
    share: Path,
    earlier: dict[str, Any] | None,
    folder: RunFolder | None,
    before: Any,  # noqa: ANN401  jobs -> Before
) -> _Task:
    here = None if means.cluster else _slots(asked, means, requests)
    from rocmlab.runs.outcome import history
    from rocmlab.runs.scheduling import plan  # what takes long has begun
    from rocmlab.runs.spec.preflight import jobs_of

    jobs = jobs_of(requests)
    jobs = jobs if folder else name_uniquely(jobs)
    seconds = history.expected_seconds(jobs, share / "runs")
    slots = here or _places(asked, means)
    task = _Task(asked, jobs, slots, share, seconds, before(jobs), earlier, folder, means.cluster)
    if not asked.dry_run:
        space.check(share)
        if folder is None:
            plan.check_any(jobs, slots)  # a run of which no job can start leaves no folder
        _check_not_inside(task)
    return task


def _places(asked: argparse.Namespace, means: _Means) -> Slots:
    assert means.cluster is not None
    return means.cluster.find_places(asked.gpus, is_mixed=asked.mixed)


def _check_not_inside(task: _Task) -> None:
    """Refuse to wait for ever for the lease of the job that this run is started from."""
    from rocmlab.runs.workers.supervisor import LEASED

    left = [job for job in task.jobs if not job.problem and job.name not in task.before.results]
    if os.environ.get(LEASED) == "1" and task.slots.gpus and not task.cluster and any(map(task.slots.wanted, left)):
        raise RocmlabError(
            "this runs inside a job of another run",
            f"its GPUs ({formatting.device_names(task.slots.gpus)}) are leased to that job's kernel until it ends",
            "compute on the CPU: --gpus none, or start it from a terminal",
        )


def _share(asked: argparse.Namespace) -> Path:
    return Path(asked.share or os.environ.get("ROCMLAB_SHARE") or "share").expanduser().absolute()


def _earlier(which: str | None, share: Path) -> dict[str, Any] | None:
    """Return the results of the run to compare with, before anything runs: a night is too late to learn of a typo."""
    if not which:
        return None
    from rocmlab.reports import compare

    return compare.load(which, share / "runs")


def _engine(asked: argparse.Namespace) -> str:
    return asked.engine or os.environ.get("ROCMLAB_ENGINE") or "rocmlab"


def _run(task: _Task, warmth: Warmth) -> Run:
    from rocmlab.runs.folder import RunFolder
    from rocmlab.runs.run import run
    from rocmlab.runs.scheduling.plan import Rules
    from rocmlab.runs.scheduling.usage import Meters
    from rocmlab.runs.screen import progress
    from rocmlab.runs.workers.supervisor import Limits

    asked = task.asked
    environment = {**os.environ, "ROCMLAB_SHARE": str(task.share)}
    engine: Any = "rocmlab" if task.cluster else _engine(asked)  # which is what a node of the cluster has, too
    environment["ROCMLAB_ENGINE"] = engine
    folder = task.folder or RunFolder.create(task.share, asked.name or _name(task))
    console = _console(to_stderr=True)
    _announce(task, folder, console)
    cell_seconds = asked.cell_timeout
    if engine == "papermill" and cell_seconds:
        cell_seconds = math.ceil(cell_seconds)  # it counts whole seconds
    meters = Meters()
    count = len(task.jobs) - len(task.before.results)
    seconds = {job.name: task.seconds.get(job.name) for job in task.jobs if job.name not in task.before.results}
    try:
        seen = None if task.cluster else meters  # of the devices of this machine
        with progress.display(console, count, slots=task.slots.count, expected=seconds, meters=seen) as display:
            return run(
                task.jobs,
                folder=folder,
                slots=task.slots,
                display=display,
                limits=Limits(asked.timeout, cell_seconds, asked.memory),
                environment=environment,
                earlier=task.earlier,
                rules=Rules(asked.retries, asked.fail_fast, asked.warm, engine),
                expected_seconds=task.seconds,
                meters=meters,
                warmth=warmth,
                before=task.before,
                options=options.kept(asked, task.earlier),
                site=task.cluster,
            )
    except OSError as err:
        folder.remove_stub()
        what = f"the run folder {formatting.path(folder.path)} cannot be written"
        fix = "free space there, or choose another folder: --share DIR"
        if folder.path.exists():  # its journal and what has finished are whole
            fix = f"free space there, then continue it: rocmlab run --resume {folder.path.name}"
        raise RocmlabError(what, str(err), fix) from err


def _name(task: _Task) -> str:
    """Return what a run is called that was given no name: as its job, its notebook, its list, or `notebooks`."""
    if len(task.jobs) == 1:
        return task.jobs[0].name
    sources = {job.notebook for job in task.jobs}
    asked = task.asked.notebooks
    if len(sources) == 1:
        return stem(sources.pop())
    return Path(asked[0]).stem if len(asked) == 1 and selection.is_list(asked[0]) else "notebooks"


def _announce(task: _Task, folder: RunFolder, console: Console) -> None:
    where = formatting.device_names(task.slots.gpus) or "the CPU"
    if task.cluster:
        where += f" of {formatting.plural(len(task.cluster.nodes), 'node')}"
    count = formatting.plural(len(task.jobs), "notebook" if len(task.jobs) == 1 else "job")
    lines = [f"{count} on {where}, results in {formatting.path(folder.path)}", *task.before.notes[:1]]
    console.print("\n".join(lines), highlight=False, markup=False, soft_wrap=True)


def _console(*, to_stderr: bool = False) -> Console:
    from rich.console import Console

    stream = sys.stderr if to_stderr else sys.stdout
    return Console(file=stream, highlight=False, width=None if stream.isatty() else WIDTH_OF_A_LOG)


def _plan(task: _Task) -> int:
    """Print what would run, in that order; the exit code says whether all of it could."""
    from rocmlab.runs.scheduling.plan import longest_first, planned
    from rocmlab.runs.screen import preview

    plan = [planned(job, task.slots, task.seconds, task.before) for job in longest_first(task.jobs, task.seconds)]
    if task.asked.json:
        notes = list(task.before.notes)
        sys.stdout.write(files.to_json({"slots": task.slots.count, "jobs": plan, "notes": notes}) + "\n")
    else:
        preview.show(plan, task.slots.count, _console())
        if task.before.notes:
            _console().print("\n".join(task.before.notes), markup=False, soft_wrap=True)
    return 1 if any(each["problem"] for each in plan) else 0
