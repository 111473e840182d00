"""What the command line asks for: lists read, grids laid out."""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from rocmlab.base.errors import RocmlabError
from rocmlab.runs.jobs import Request
from rocmlab.runs.spec import grid, selection


def of(
    asked: argparse.Namespace, axes: dict[str, list[Any]], folder: Path | None = None, here: Path | None = None
) -> list[Request]:
    """Return what the command line asks for, lists read and grids laid out.

    Args:
        asked: the command line.
        axes: the values of its parameters.
        folder: the lab's notebooks; None: as the environment names it.
        here: the folder that relative paths start from; None: the current one.
    """
    folder = folder or selection.notebooks_folder(os.environ)
    entries: list[grid.Entry] = []
    for word in asked.notebooks or [str(found.notebook) for found in selection.find([], folder)]:
        entries += _listed(word, folder) if selection.is_list(word) else [grid.Entry(word, here=here)]
    said = {
        "kernel": asked.kernel,
        "gpus": asked.job_gpus,
        "vram_bytes": asked.vram,
        "timeout_seconds": asked.timeout,
    }
    given = {name: value for name, value in said.items() if value is not None}
    entries = [
        replace(entry, axes={**entry.axes, **axes}, source="words" if axes else entry.source, **given)
        for entry in entries
    ]
    requests = grid.expand(entries, folder)
    _check_anything(requests, folder)
    return requests


def _listed(word: str, folder: Path) -> list[grid.Entry]:
    from rocmlab.runs.spec import lists

    return lists.read(selection.find_list(word, folder))


def _check_anything(requests: Sequence[Request], folder: Path) -> None:
    if not requests:
        raise RocmlabError(
            "there is no notebook to run", f"{folder} holds no .ipynb file", "name one: rocmlab run PATH.ipynb"
        )
    problems = {request.problem.what: request.problem for request in requests if request.problem}
    if all(request.problem for request in requests):
        first = next(iter(problems.values()))
        raise RocmlabError("; ".join(problems), first.why, first.fix)
