"""Writing `report.html` and `junit.xml` into a run folder, with the failing cells and device samples found there."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rocmlab import reports
from rocmlab.base import files, formatting, safe
from rocmlab.base.errors import RocmlabError
from rocmlab.devices import recording
from rocmlab.notebook import executed
from rocmlab.reports.failures import Failure, clean

MAX_CHARACTERS = 12_000  # of a text; what a user reads of 200 MB is its end
SOURCE_LINES = 60
LOG_LINES = 30
MAX_PLOTS = 60  # of the use of devices in one report, so that a browser can open it


def write(results: Mapping[str, Any], folder: Path) -> None:
    """Write both files, each atomically, of `results.json` and of what the jobs have left in the folder.

    Raises:
        OSError: the folder cannot be written.
    """
    from rocmlab.reports import junit, page

    jobs = results["jobs"]
    failures = {job["name"]: read_failure(job, folder) for job in jobs if job["error"] is not None}
    files.write_text(folder / reports.JUNIT, junit.render(results, failures))
    files.write_text(folder / reports.HTML, page.render(results, failures, plot_devices(jobs, folder)))


def plot_devices(jobs: Sequence[Mapping[str, Any]], folder: Path) -> list[dict[str, Any]]:
    """Return a plot for each job that has enough samples to draw a line, in the order of the jobs."""
    from rocmlab.devices.recording_plot import draw, legend

    found: list[dict[str, Any]] = []
    for job in jobs:
        name = job["files"].get("samples")
        if name is None or len(found) == MAX_PLOTS:
            continue
        try:
            if (folder / name).is_symlink():
                continue  # it may lead out of this run
            samples = recording.read(folder / name)
        except (RocmlabError, OSError):
            continue  # the file is damaged or missing: the report has no plot of it
        if plot := draw(samples, f"use of the devices by {job['name']}"):
            found.append({"name": job["name"], "plot": plot, "legend": legend(samples), "simulated": samples.simulated})
    return found


def read_failure(job: Mapping[str, Any], folder: Path) -> Failure:
    """Return what a failed job left; what cannot be read is empty."""
    error, left = job["error"], job["files"]
    index = error.get("cell_index")
    cell = _cell(folder / left["notebook"], index) if "notebook" in left and index is not None else None
    if cell is None:
        return Failure(source=clean(error.get("source", "")), log=_tail(folder / left["log"]) if "log" in left else "")
    outputs = [output for output in cell.get("outputs", []) if isinstance(output, dict)]
    return Failure(
        source=_excerpt(clean(executed.text_of(cell.get("source", ""))), error.get("line", 1)),
        output=_shorten(clean("".join(_text(output) for output in outputs))).rstrip(),
        traceback=_shorten(clean("\n".join(_traceback(output) for output in outputs))).strip("\n"),
    )


def _cell(path: Path, index: int) -> dict[str, Any] | None:
    notebook = None if path.is_symlink() else executed.load(path)
    try:
        cell = notebook["cells"][index] if notebook else None
    except (KeyError, IndexError, TypeError):
        return None
    return cell if isinstance(cell, dict) else None


def _text(output: Mapping[str, Any]) -> str:
    """Return what an output reads like; an image has no text."""
    if output.get("output_type") == "stream":
        return executed.text_of(output.get("text", ""))
    data = output.get("data")
    return executed.text_of(data.get("text/plain", "")) + "\n" if isinstance(data, dict) else ""


def _traceback(output: Mapping[str, Any]) -> str:
    if output.get("output_type") != "error":
        return ""
    lines = output.get("traceback") or [f"{output.get('ename')}: {output.get('evalue')}"]
    return "\n".join(str(line) for line in lines)


def _excerpt(source: str, line: object) -> str:
    """Return a source, or so many of its lines that the failing one is among them."""
    lines = source.rstrip("\n").split("\n")
    shown = formatting.around(lines, line if isinstance(line, int) else 1, SOURCE_LINES)
    before, behind = shown.start, len(lines) - shown.stop
    kept = lines[shown.start : shown.stop]
    if before:
        kept.insert(0, f"… {formatting.plural(before, 'line')}")
    if behind:
        kept.append(f"… {behind} more lines")
    return "\n".join(kept)[:MAX_CHARACTERS]


def _shorten(text: str) -> str:
    """Return the end of a long text, from the beginning of a line."""
    if len(text) <= MAX_CHARACTERS:
        return text
    kept = text[-MAX_CHARACTERS:]
    return "… (the beginning is omitted)\n" + (kept.partition("\n")[2] or kept)


def _tail(path: Path) -> str:
    try:
        with safe.reading(path) as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - MAX_CHARACTERS))
            text = file.read(MAX_CHARACTERS).decode("utf-8", errors="replace")
    except OSError:
        return ""
    return "\n".join(clean(text).rstrip().split("\n")[-LOG_LINES:])
