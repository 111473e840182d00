"""The run whose outputs the notebooks' pages show."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

FIELDS = ("simulated", "devices", "parameters", "started", "seconds")  # of a job, which its page needs


class UnreadableRun(Exception):
    """A run that cannot be shown; the message names the file."""


@dataclass(frozen=True)
class Run:
    """A run that has executed notebooks."""

    folder: Path
    jobs: dict[str, dict[str, Any]]  # by notebook of the repository, only those that ended ok


def heading(notebook: Path) -> str:
    """Return the first line of the first text of a notebook; empty: it has none."""
    for cell in json.loads(notebook.read_text(encoding="utf-8"))["cells"]:
        if cell["cell_type"] == "markdown":
            return "".join(cell["source"]).strip().partition("\n")[0]
    return ""


def run_folder(root: Path, given: str) -> Run | None:
    """Return the run in the given folder; without one, the newest of the project's share that executed a notebook.

    Raises:
        UnreadableRun: what is in the given folder cannot be shown.
    """
    headings = {path.stem: heading(path) for path in (root / "notebooks").glob("*.ipynb")}
    if given:
        return _read(root / Path(given).expanduser() / "results.json", headings)
    for results in sorted(root.glob("share/runs/*/results.json"), reverse=True):
        try:
            found = _read(results, headings)
        except UnreadableRun:
            continue
        if found.jobs:
            return found
    return None


def _read(results: Path, headings: Mapping[str, str]) -> Run:
    """Return a run, without notebooks that only have the file name of one of ours."""
    file, jobs = results, {}
    try:
        for job in json.loads(results.read_text(encoding="utf-8"))["jobs"]:
            file, name = results, Path(job["notebook"]).stem
            if job["status"] != "ok" or name not in headings or name in jobs or "notebook" not in job["files"]:
                continue
            file = results.parent / job["files"]["notebook"]
            is_ours, file = heading(file) == headings[name], results
            if is_ours:
                jobs[name] = {**{field: job[field] for field in FIELDS}, **job}
    except OSError as err:
        raise UnreadableRun(f"{file} cannot be read: {err.strerror}") from err
    except (ValueError, KeyError, TypeError, AttributeError) as err:  # cut off, or of another kind
        raise UnreadableRun(f"{file} cannot be read: {type(err).__name__}: {err}") from err
    return Run(results.parent, jobs)
