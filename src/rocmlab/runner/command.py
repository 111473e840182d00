"""`rocmlab run`: notebooks, headless."""

from __future__ import annotations

import argparse
import math
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rocmlab.errors import RocmlabError
from rocmlab.runner import files, parameters, selection, words
from rocmlab.runner.jobs import Job, describe, name_uniquely

if TYPE_CHECKING:
    from rich.console import Console

    from rocmlab.runner.placement import Slots
    from rocmlab.runner.runs import Run

WIDTH_OF_A_LOG = 160  # columns, where there is no terminal to ask


def main(arguments: Sequence[str]) -> int:
    """Run notebooks and return the exit code: 0 all ran, 1 one did not, 2 there is nothing to run or a usage error.

    Raises:
        RocmlabError: the arguments cannot be met, before anything has run.
    """
    options = parser().parse_args(arguments)
    from rocmlab.devices import discover
    from rocmlab.runner.placement import Slots, choose_gpus
    from rocmlab.runner.preflight import examine

    values = parameters.parse(options.parameters)
    earlier = _earlier(options)
    folder = selection.notebooks_folder(os.environ)
    found = selection.find(options.notebooks, folder)
    _check_anything(found, folder)
    devices = discover()
    slots = Slots(choose_gpus(devices, options.gpus, os.environ), devices[-1])
    jobs = name_uniquely(examine(found, values, options.kernel))
    if options.dry_run:
        return _plan(jobs, slots, options.json)
    run = _run(jobs, slots, options, earlier)
    if options.json:
        sys.stdout.write(files.to_json(run.as_dict()) + "\n")
    else:
        from rocmlab.runner import summary

        summary.show(run, _console())
    return 0 if run.is_ok else 1


def parser() -> argparse.ArgumentParser:
    """Return the parser of `rocmlab run`."""
    made = argparse.ArgumentParser(
        prog="rocmlab run",
        description="Run notebooks headless, one process each, spread over the GPUs.",
        epilog="Exit code: 0 every notebook ran to its end, 1 one did not, 2 nothing to run. See docs/running.md.",
    )
    made.add_argument(
        "notebooks",
        nargs="*",
        metavar="NOTEBOOK",
        help="path, name, folder or glob; default: every notebook of the lab",
    )
    made.add_argument(
        "-p",
        "--parameter",
        dest="parameters",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="a parameter for every notebook; the value is YAML; may be repeated",
    )
    made.add_argument("--gpus", metavar="WHICH", help="all, none, how many (2), or which (0,2 or 0000:03:00.0)")
    made.add_argument("--share", metavar="DIR", help="the share; results go to DIR/runs (default: the lab's share)")
    made.add_argument("--name", help="the name of the run (default: of the notebook, or `notebooks`)")
    made.add_argument("--kernel", metavar="NAME", help="the kernel to use (default: each notebook's own)")
    made.add_argument("--timeout", type=_seconds, metavar="SECONDS", help="the longest a notebook may take")
    made.add_argument("--cell-timeout", type=_seconds, metavar="SECONDS", help="the longest a cell may take")
    made.add_argument("--compare", metavar="RUN", help="an earlier run: its folder, its name in the share, or `last`")
    made.add_argument("--json", action="store_true", help="print results.json instead of the summary")
    made.add_argument("--dry-run", action="store_true", help="print what would run, and run nothing")
    return made


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if math.isfinite(seconds) and seconds > 0:
        return seconds
    raise argparse.ArgumentTypeError(f"{text} is not a time in seconds")


def _check_anything(found: Sequence[selection.Found], folder: Path) -> None:
    if not found:
        raise RocmlabError(
            "there is no notebook to run", f"{folder} holds no .ipynb file", "name one: rocmlab run PATH.ipynb"
        )
    problems = [each.problem for each in found if each.problem]
    if len(problems) == len(found):
        what = "; ".join(problem.what for problem in problems)
        raise RocmlabError(what, problems[0].why, problems[0].fix)


def _share(options: argparse.Namespace) -> Path:
    return Path(options.share or os.environ.get("ROCMLAB_SHARE") or "share").expanduser().absolute()


def _earlier(options: argparse.Namespace) -> dict[str, Any] | None:
    """Return the results of the run to compare with, before anything runs: a night is too late to learn of a typo."""
    from rocmlab.runner import compare

    return compare.load(options.compare, _share(options) / "runs") if options.compare else None


def _run(jobs: list[Job], slots: Slots, options: argparse.Namespace, earlier: Mapping[str, Any] | None) -> Run:
    from rocmlab.runner import progress
    from rocmlab.runner.folder import RunFolder
    from rocmlab.runner.runs import run
    from rocmlab.runner.supervisor import Limits

    environment = dict(os.environ)
    share = _share(options)
    environment["ROCMLAB_SHARE"] = str(share)
    folder = RunFolder.create(share, options.name or (jobs[0].name if len(jobs) == 1 else "notebooks"))
    limits = Limits(options.timeout, math.ceil(options.cell_timeout) if options.cell_timeout else None)
    console = _console(to_stderr=True)
    where = words.device_names(slots.gpus) or "the CPU"
    console.print(
        f"{words.plural(len(jobs), 'notebook')} on {where}, results in {words.path(folder.path)}",
        highlight=False,
        markup=False,
        soft_wrap=True,
    )
    try:
        with progress.display(console, len(jobs)) as display:
            return run(
                jobs,
                folder=folder,
                slots=slots,
                display=display,
                limits=limits,
                environment=environment,
                earlier=earlier,
            )
    except OSError as err:
        what = f"the run folder {words.path(folder.path)} cannot be written"
        raise RocmlabError(what, str(err), "make room there, or choose another place: --share DIR") from err


def _console(*, to_stderr: bool = False) -> Console:
    from rich.console import Console

    stream = sys.stderr if to_stderr else sys.stdout
    return Console(file=stream, highlight=False, width=None if stream.isatty() else WIDTH_OF_A_LOG)


def _plan(jobs: list[Job], slots: Slots, as_json: bool) -> int:
    """Print what would run; the exit code says whether all of it could."""
    plan = [_planned(job, slots) for job in jobs]
    if as_json:
        sys.stdout.write(files.to_json({"slots": slots.count, "jobs": plan}) + "\n")
    else:
        console = _console()
        console.print(_plan_table(plan))
        for each in plan:
            if each["problem"]:
                lines = (
                    f"{each['name']}: {each['problem']['value']}",
                    *(f"  {k}: {each['problem'][k]}" for k in ("why", "fix")),
                )
                console.print("\n".join(lines), markup=False, soft_wrap=True)
    return 1 if any(each["problem"] for each in plan) else 0


def _planned(job: Job, slots: Slots) -> dict[str, Any]:
    problem = job.problem or slots.problem(job)
    return {
        "name": job.name,
        "notebook": job.notebook,
        "parameters": job.parameters,
        "kernel": job.kernel,
        "gpus": None if problem else slots.wanted(job),
        "problem": describe(problem) if problem else None,
    }


def _plan_table(plan: Sequence[Mapping[str, Any]]) -> Any:  # noqa: ANN401  a Table of rich, which is imported late
    from rich import box
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, header_style="dim")
    for title in ("notebook", "kernel", "gets", "parameters"):
        table.add_column(title)
    for each in plan:
        gets = (
            Text("cannot run", "yellow")
            if each["problem"]
            else Text(words.plural(each["gpus"], "GPU") if each["gpus"] else "CPU")
        )
        values = " ".join(f"{name}={value}" for name, value in each["parameters"].items())
        table.add_row(Text(each["name"], "bold"), each["kernel"] or "", gets, Text(values))
    return table
