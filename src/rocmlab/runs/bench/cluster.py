"""The rows of `rocmlab bench cluster`: what a run as large as a site costs (`scale`), and Ray (`ray_rows`)."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field

from rocmlab.base.errors import RocmlabError
from rocmlab.runs.bench import invented, ray_rows, scale

RAY = "ray"  # a measure whose rows have something to compare with
# What each measure gives, so that a row is known before it is measured.
ROWS = {
    "plan_100k": "plan",
    "plan_100k_memory": "plan",
    "journal_100k": "journal",
    "journal_100k_size": "journal",
    "journal_100k_memory": "journal",
    "journal_line": "journal",
    "set_aside_1k": "journal",
    "report_100k": "report",
    "report_100k_size": "report",
    "junit_100k_size": "report",
    "results_100k": "report",
    "results_100k_size": "report",
    "report_100k_memory": "report",
    "report_100k_open": "report",
    "report_100k_elements": "report",
    "preflight_100k": "preview",
    "expected_100k": "preview",
    "preview_100k": "preview",
    "preview_100k_memory": "preview",
    "metrics_8": "metrics",
    "metrics_8_size": "metrics",
    "metrics_8000": "metrics",
    "metrics_8000_size": "metrics",
    **dict.fromkeys(ray_rows.ROWS, RAY),
}
LIMIT_SECONDS = 1800.0  # of one measure
NO_BROWSER = "no Chromium, or no playwright beside rocmlab"


@dataclass(frozen=True)
class Figures:
    """Figures by name of the row."""

    units: dict[str, str] = field(default_factory=dict)
    ours: dict[str, list[float]] = field(default_factory=dict)
    theirs: dict[str, list[float]] = field(default_factory=dict)  # none where there is nothing to compare with
    skipped: dict[str, str] = field(default_factory=dict)  # what could not be measured here, and why


def measure(runs: int, names: Sequence[str] = (), jobs: int = invented.JOBS, gpus: int = invented.GPUS) -> Figures:
    """Take figures, each measure in a process of its own; those with Ray come last.

    Args:
        runs: how often each is taken, at least 1.
        names: of the rows; none: all.
        jobs: of the invented run; those with Ray have their own.
        gpus: of it.

    Raises:
        RocmlabError: there is no such row, or a measure failed.
    """
    if unknown := sorted(set(names) - set(ROWS)):
        raise RocmlabError(f"no such row: {', '.join(unknown)}", "", f"one of {', '.join(ROWS)}")
    wanted = names or list(ROWS)
    figures = Figures()
    for _ in range(runs):
        for name in dict.fromkeys(ROWS[row] for row in wanted if ROWS[row] != RAY):
            for row, (unit, value) in _measured(name, jobs, gpus).items():
                if row in wanted:
                    figures.units[row] = unit
                    figures.ours.setdefault(row, []).append(value)
    figures.skipped.update({row: NO_BROWSER for row in wanted if ROWS[row] != RAY and row not in figures.ours})
    if with_ray := [row for row in wanted if ROWS[row] == RAY]:
        _measure_ray(runs, with_ray, figures)
    return figures


def _measure_ray(runs: int, names: Sequence[str], figures: Figures) -> None:
    if why := ray_rows.missing():
        figures.skipped.update(dict.fromkeys(names, why))
        return
    found = ray_rows.measure(runs, names)
    for name in names:
        ours, theirs = ray_rows.ROWS[name]
        figures.units[name], figures.ours[name], figures.theirs[name] = "s", found[ours], found[theirs]


def _measured(name: str, jobs: int, gpus: int) -> scale.Figures:
    command = [sys.executable, "-m", scale.__name__, name, "--jobs", str(jobs), "--gpus", str(gpus)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_SECONDS, check=True)
    except (subprocess.CalledProcessError, subprocess.TimeoutExpired) as err:
        said = err.stderr.decode(errors="replace") if isinstance(err.stderr, bytes) else err.stderr or ""
        raise RocmlabError(f"{name} could not be measured", said[-600:].strip() or str(err), " ".join(command)) from err
    found: scale.Figures = {row: (unit, value) for row, (unit, value) in json.loads(done.stdout).items()}
    return found
