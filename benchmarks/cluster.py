"""The rows of `rocmlab bench cluster`: what a run as large as a site costs (`scale`), and Ray (`ray_nodes`)."""

from __future__ import annotations

import json
from collections.abc import Sequence

from benchmarks import ray_nodes, scale, synthetic
from benchmarks.environment import run_module
from benchmarks.results import Results, check_names

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
    **dict.fromkeys(ray_nodes.ROWS, RAY),
}
LIMIT_SECONDS = 1800.0  # of one measure
FLEET = f"{synthetic.GPUS}x {', '.join(product[0] for product in synthetic.PRODUCTS)}"
NODES = f"Ray nodes with {ray_nodes.GPUS} simulated GPUs each"
NO_BROWSER = "no Chromium, or no playwright in this environment"


def measure(runs: int, names: Sequence[str] = (), jobs: int = synthetic.JOBS, gpus: int = synthetic.GPUS) -> Results:
    """Measure rows, each kind in a process of its own; those with Ray come last.

    Args:
        runs: how often each is measured, at least 1.
        names: of the rows; none: all.
        jobs: of the synthetic run; those with Ray have their own.
        gpus: of it.

    Raises:
        RocmlabError: there is no such row, or a measure failed.
    """
    check_names(names, ROWS)
    wanted = names or list(ROWS)
    results = Results()
    for _ in range(runs):
        for name in dict.fromkeys(ROWS[row] for row in wanted if ROWS[row] != RAY):
            for row, (unit, value) in _measured(name, jobs, gpus).items():
                if row in wanted:
                    results.add(row, unit, value)
    results.skipped.update({row: NO_BROWSER for row in wanted if ROWS[row] != RAY and row not in results.ours})
    if with_ray := [row for row in wanted if ROWS[row] == RAY]:
        _measure_ray(runs, with_ray, results)
    kinds = [NODES if name in ray_nodes.ROWS else FLEET for name in results.ours]
    results.device = "; ".join(dict.fromkeys(kinds))
    return results


def _measure_ray(runs: int, names: Sequence[str], results: Results) -> None:
    if why := ray_nodes.missing():
        results.skipped.update(dict.fromkeys(names, why))
        return
    found = ray_nodes.measure(runs, names)
    for name in names:
        ours, theirs = ray_nodes.ROWS[name]
        results.extend(name, "s", found[ours], found[theirs])


def _measured(name: str, jobs: int, gpus: int) -> scale.Measured:
    printed = run_module("scale", name, "--jobs", str(jobs), "--gpus", str(gpus), limit_seconds=LIMIT_SECONDS)
    found: scale.Measured = {row: (unit, value) for row, (unit, value) in json.loads(printed).items()}
    return found
