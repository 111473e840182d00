"""`rocmlab bench up|devices|runner|telemetry|cluster`, whose arguments `rocmlab.cli.bench` has parsed."""

from __future__ import annotations

import argparse
import json
import platform
import sys
from collections.abc import Callable
from importlib.metadata import version
from typing import Any

from benchmarks.results import Results
from rocmlab import __version__
from rocmlab.benchmarking.rows import Row, span, table
from rocmlab.stack import project as projects


def run(chosen: argparse.Namespace) -> int:
    """Measure and print a table, or JSON."""
    measures: dict[str, Callable[[argparse.Namespace], dict[str, Any]]] = {
        "up": _up,
        "devices": _devices,
        "runner": _runner,
        "telemetry": _telemetry,
        "cluster": _cluster,
    }
    report = measures[chosen.name](chosen)
    rows: list[Row] = report["rows"]
    if chosen.json:
        print(json.dumps({**report, "rows": [row.as_dict() for row in rows]}, indent=1))
        return 0
    if report["simulated"]:
        print(f"SIMULATED: measured on a simulated host with {report['device']}")
    cells = [
        (row.name, row.ours, row.theirs, row.ratio and f"{row.ratio:.1f}x", row.unit, row.runs, span(row.spread))
        for row in rows
    ]
    print("\n".join(table(("result", "ours", "theirs", "ratio", "unit", "runs", "least … most"), cells)))
    for name, why in report.get("skipped", {}).items():
        print(f"{name}: not measured, {why}", file=sys.stderr)
    return 0


def _report(name: str, results: Results, versions: dict[str, Any]) -> dict[str, Any]:
    return {
        "bench": name,
        "device": results.device,
        "simulated": results.simulated,
        "versions": versions,
        "rows": results.rows(),
    }


def _up(chosen: argparse.Namespace) -> dict[str, Any]:
    from benchmarks import start

    project = projects.plan(projects.find())
    if chosen.row:
        results = start.measure_cold(project, chosen.runs, chosen.row)
    else:
        results = start.measure(project, chosen.runs)
    kind = {"runtime": project.choice.runtime, "backend": project.choice.backend}
    return _report("up", results, {**_versions(), **kind})


def _devices(chosen: argparse.Namespace) -> dict[str, Any]:
    from benchmarks import devices

    return _report("devices", devices.measure(chosen.runs, chosen.theirs), _versions())


def _runner(chosen: argparse.Namespace) -> dict[str, Any]:
    from benchmarks import runner
    from rocmlab.runs.outcome.results import versions

    results = runner.measure(chosen.runs, chosen.row or runner.ROWS)
    return _report("runner", results, versions()) | {"skipped": results.skipped}


def _telemetry(chosen: argparse.Namespace) -> dict[str, Any]:
    from benchmarks import telemetry

    results = telemetry.measure(chosen.runs, chosen.theirs, chosen.row or telemetry.ROWS)
    return _report("telemetry", results, _versions()) | {"skipped": results.skipped}


def _cluster(chosen: argparse.Namespace) -> dict[str, Any]:
    from benchmarks import cluster, ray_nodes

    results = cluster.measure(chosen.runs, chosen.row or ())
    versions = _versions() | ({"ray": version("ray")} if set(results.ours) & set(ray_nodes.ROWS) else {})
    return _report("cluster", results, versions) | {
        "rows": results.rows(costs=ray_nodes.COSTS),
        "skipped": results.skipped,
    }


def _versions() -> dict[str, str]:
    return {"rocmlab": __version__, "python": platform.python_version()}
