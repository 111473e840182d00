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
from rocmlab.cli.bench_rows import Row
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
    print(f"{'result':22} {'ours':>9} {'theirs':>9} {'ratio':>6}  unit  runs  least … most")
    for row in rows:
        theirs = f"{row.theirs:9.2f}" if row.theirs is not None else f"{'':9}"
        ratio = f"{row.ratio:5.1f}x" if row.ratio is not None else f"{'':6}"
        least, most = row.spread
        print(f"{row.name:22} {row.ours:9.2f} {theirs} {ratio}  {row.unit:4}  {row.runs:4}  {least:.2f} … {most:.2f}")
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
    results = start.measure(project, chosen.runs)
    kind = {"runtime": project.choice.runtime, "backend": project.choice.backend}
    return _report("up", results, {**_versions(), **kind})


def _devices(chosen: argparse.Namespace) -> dict[str, Any]:
    from benchmarks import devices

    return _report("devices", devices.measure(chosen.runs, chosen.theirs), _versions())


def _runner(chosen: argparse.Namespace) -> dict[str, Any]:
    from benchmarks import runner
    from rocmlab.runs.run import versions

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
