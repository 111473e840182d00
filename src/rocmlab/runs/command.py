"""`rocmlab run`: notebooks, headless."""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from rocmlab.base import files, formatting
from rocmlab.base.errors import RocmlabError
from rocmlab.devices import product_names
from rocmlab.runs import prepare
from rocmlab.runs.notification import Notification
from rocmlab.runs.prepare import Connect, Means, Task
from rocmlab.runs.screen.lossy import Lossy, make_lossy
from rocmlab.runs.spec import options
from rocmlab.runs.spec.options import parser as parser
from rocmlab.runs.workers.forking import JobForkServers

if TYPE_CHECKING:
    from rich.console import Console

    from rocmlab.runs.folder import RunFolder
    from rocmlab.runs.run import Run

LOG_COLUMNS = 160  # of the output where it is not a terminal
MAX_NAMES = 3  # arguments that are named while they are read


def main(arguments: Sequence[str], connect: Connect | None = None) -> int:
    """Run notebooks and return the exit code: 0 all ran, 1 one did not, 2 there is nothing to run or a usage error.

    Raises:
        RocmlabError: the arguments cannot be met, before anything has run.
    """
    args = parser().parse_intermixed_args(arguments)
    options.check(args)
    if args.list:
        return _list(args)
    notification = Notification(os.environ)
    with contextlib.closing(Means(JobForkServers(), connect)) as means:
        with _preparing(args):
            task = prepare.continued(args, means) if args.resume else prepare.new(args, means)
        if args.dry_run:
            return _plan(task)
        run = _run(task, means.fork_servers, notification)
    try:
        if args.json:
            sys.stdout.write(files.to_json(run.as_dict()) + "\n")
        else:
            from rocmlab.runs.screen import summary

            summary.show(run, make_lossy(_console()))
    finally:  # also where the terminal was closed
        if notification.is_due:  # what a run has to tell takes seconds where it has many jobs
            notification.send(run.folder.path, run.as_dict())
    Lossy(sys.stderr).flush()  # a warning that no one reads any more is no reason to exit with 120
    return 0 if run.is_ok else 1


@contextlib.contextmanager
def _preparing(args: argparse.Namespace) -> Iterator[None]:
    """Report on stderr what is prepared, which takes seconds: in a terminal until it is done, else in a line."""
    names, more = ", ".join(args.notebooks[:MAX_NAMES]), len(args.notebooks) - MAX_NAMES
    named = f"{names} and {more} more" if more > 0 else names
    again = f"to continue {args.resume}" if args.resume else f"to reproduce {args.reproduce}" if args.reproduce else ""
    what = again or named or "every notebook of the lab"
    text = f"preparing {what}: reading the notebooks, looking for kernels and devices"
    is_terminal = sys.stderr.isatty() and os.environ.get("TERM") != "dumb"
    sys.stderr.write(f"{text} …" if is_terminal else f"{text}\n")
    sys.stderr.flush()
    try:
        yield
    finally:
        if is_terminal:
            sys.stderr.write("\r\x1b[2K")
            sys.stderr.flush()


def _list(args: argparse.Namespace) -> int:
    from rocmlab.runs.outcome import listing
    from rocmlab.runs.screen import preview

    runs = options.share_of(args) / "runs"
    found = listing.runs_of(runs)
    if args.json:
        sys.stdout.write(files.to_json(found) + "\n")
    elif found:
        _console().print(preview.runs_table(found))
    else:
        _console().print(f"no runs in {formatting.path(runs)}", markup=False)
    return 0


def _run(task: Task, fork_servers: JobForkServers, notification: Notification) -> Run:
    from rocmlab.runs.folder import RunFolder
    from rocmlab.runs.run import run
    from rocmlab.runs.scheduling.plan import Rules
    from rocmlab.runs.scheduling.usage import Meters
    from rocmlab.runs.screen import progress
    from rocmlab.runs.workers.supervisor import Limits

    args = task.args
    environment = {**os.environ, "ROCMLAB_SHARE": str(task.share)}
    environment["ROCMLAB_ENGINE"] = "rocmlab"  # a run inside a job is one of this machine
    folder = task.folder or RunFolder.create(task.share, options.name_of(args, task.jobs))
    console = make_lossy(_console(to_stderr=True))
    _announce(task, folder, console)
    meters = Meters()
    count = len(task.jobs) - len(task.before.results)
    seconds = {job.name: task.seconds.get(job.name) for job in task.jobs if job.name not in task.before.results}
    try:
        seen = None if task.cluster else meters  # of the devices of this machine
        with (
            notification.of_failure(folder.path),
            progress.display(console, count, slots=task.slots.count, expected=seconds, meters=seen) as display,
        ):
            return run(
                task.jobs,
                folder=folder,
                slots=task.slots,
                display=display,
                limits=Limits(args.timeout, args.cell_timeout, args.memory),
                environment=environment,
                earlier=task.earlier,
                rules=Rules(args.retries, args.fail_fast, args.warm),
                expected_seconds=task.seconds,
                meters=meters,
                fork_servers=fork_servers,
                before=task.before,
                options=options.kept(args, task.earlier),
                site=task.cluster,
            )
    except OSError as err:
        folder.remove_stub()
        what = f"the run folder {formatting.path(folder.path)} cannot be written"
        fix = "free space there, or choose another folder: --share DIR"
        if folder.path.exists():  # its journal and what has finished are whole
            fix = f"free space there, then continue it: rocmlab run --resume {folder.path.name}"
        raise RocmlabError(what, str(err), fix) from err


def _announce(task: Task, folder: RunFolder, console: Console) -> None:
    where = product_names(task.slots.gpus) or "the CPU"
    if task.cluster:
        where += f" of {formatting.plural(len(task.cluster.nodes), 'node')}"
    count = formatting.plural(len(task.jobs), "notebook" if len(task.jobs) == 1 else "job")
    lines = [f"{count} on {where}, results in {formatting.path(folder.path)}", *task.before.notes[:1]]
    console.print("\n".join(lines), highlight=False, markup=False, soft_wrap=True)


def _console(*, to_stderr: bool = False) -> Console:
    from rich.console import Console

    stream = sys.stderr if to_stderr else sys.stdout
    return Console(file=stream, highlight=False, width=None if stream.isatty() else LOG_COLUMNS)


def _plan(task: Task) -> int:
    """Print what would run, in that order; the exit code shows whether all of it could."""
    from rocmlab.runs.scheduling.plan import longest_first, planned
    from rocmlab.runs.screen import preview

    plan = [planned(job, task.slots, task.seconds, task.before) for job in longest_first(task.jobs, task.seconds)]
    if task.args.json:
        notes = list(task.before.notes)
        sys.stdout.write(files.to_json({"slots": task.slots.count, "jobs": plan, "notes": notes}) + "\n")
    else:
        preview.show(plan, task.slots.count, _console())
        if task.before.notes:
            _console().print("\n".join(task.before.notes), markup=False, soft_wrap=True)
    return 1 if any(each["problem"] for each in plan) else 0
