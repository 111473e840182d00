"""What each job did to its devices over time, from the samples beside it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rocmlab.base.errors import RocmlabError
from rocmlab.devices import recording
from rocmlab.devices.recording_plot import draw, legend

PLOTS = 60  # of one report, so that it can be opened


def plots(jobs: Sequence[Mapping[str, Any]], folder: Path) -> list[dict[str, Any]]:
    """Return a plot for each job that has samples enough to draw a line, in the order of the jobs.

    Args:
        jobs: of `results.json`.
        folder: of the run.
    """
    found: list[dict[str, Any]] = []
    for job in jobs:
        name = job["files"].get("samples")
        if name is None or len(found) == PLOTS:
            continue
        try:
            if (folder / name).is_symlink():
                continue  # what it leads to is not of this run
            samples = recording.read(folder / name)
        except (RocmlabError, OSError):
            continue  # its file was damaged or taken away: the report goes on without it
        if plot := draw(samples, f"use of the devices by {job['name']}"):
            found.append({"name": job["name"], "plot": plot, "legend": legend(samples), "simulated": samples.simulated})
    return found
