"""The requests of a command line: lists read, grids expanded; and the error if none can run."""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

from rocmlab.base import formatting
from rocmlab.base.errors import Problem, RocmlabError
from rocmlab.runs.jobs import Request
from rocmlab.runs.spec import grid, lists, selection

SHOWN_NAMES = 3  # of the jobs that have the same problem


def of(
    args: argparse.Namespace, axes: dict[str, list[Any]], folder: Path | None = None, here: Path | None = None
) -> list[Request]:
    """Return the requests of a command line, lists read and grids expanded.

    Args:
        args: the command line.
        axes: the values of its parameters.
        folder: the lab's notebooks; None: as the environment names it.
        here: where relative paths start; None: the current folder.

    Raises:
        RocmlabError: that is nothing, or nothing of it exists.
    """
    folder = folder or selection.notebooks_folder(os.environ)
    entries: list[grid.Entry] = []
    for word in args.notebooks or [str(found.notebook) for found in selection.find([], folder)]:
        is_list = selection.is_list(word)
        entries += lists.read(selection.find_list(word, folder)) if is_list else [grid.Entry(Request(word), here=here)]
    options = {
        "kernel": args.kernel,
        "gpus": args.job_gpus,
        "vram_bytes": args.vram,
        "timeout_seconds": args.timeout,
    }
    given: dict[str, Any] = {name: value for name, value in options.items() if value is not None}
    if axes:
        given["source"] = "words"
    entries = [grid.Entry(replace(each.request, **given), {**each.axes, **axes}, each.here) for each in entries]
    requests = grid.expand(entries, folder)
    if not requests:
        raise RocmlabError(
            "no notebook to run", f"{folder} contains no .ipynb file", "name one: rocmlab run PATH.ipynb"
        )
    check_any(("", request.problem) for request in requests)
    return requests


def check_any(jobs: Iterable[tuple[str, Problem | None]]) -> None:
    """Refuse a run of which no job can start, and give each reason once; a problem that names its job needs no name.

    Raises:
        RocmlabError: none can.
    """
    found: dict[Problem, list[str]] = {}
    count = 0
    for name, problem in jobs:
        if problem is None:
            return
        count += 1
        found.setdefault(problem, []).append(name)
    reasons = {problem: _with_names(names, problem.what) for problem, names in found.items()}
    if len(reasons) == 1:
        ((problem, what),) = reasons.items()
        raise RocmlabError(what, problem.why, problem.fix)
    raise RocmlabError(
        f"none of these {formatting.plural(count, 'job')} can run",
        "\n".join(f"{what} ({problem.why})" for problem, what in reasons.items()),
        "\n".join(dict.fromkeys(problem.fix for problem in reasons)),
    )


def _with_names(names: list[str], what: str) -> str:
    """Return a reason with the jobs that it concerns: `a, b and 3 more: its kernel 'x' is not installed`."""
    named = list(filter(None, names))
    if not named:
        return what
    more = f" and {len(named) - SHOWN_NAMES} more" if len(named) > SHOWN_NAMES else ""
    return f"{', '.join(named[:SHOWN_NAMES])}{more}: {what}"
