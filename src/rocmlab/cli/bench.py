"""`rocmlab bench NAME`."""

from __future__ import annotations

import argparse
import importlib
import json
import os
import platform
import shlex
import sys
from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import version
from typing import Any

from rocmlab import __version__
from rocmlab.base.errors import RocmlabError
from rocmlab.cli.main import runner_missing, verb_parser
from rocmlab.stack import bench
from rocmlab.stack import project as projects

BENCHES = (
    "up: starting, starting again, rebuilding, sizes, imports; devices: finding the GPUs, checking the machine; "
    "runner: running a notebook; telemetry: what looking at the GPUs costs; "
    "cluster: a run of 100,000 jobs on 8,000 simulated GPUs, and what Ray costs; "
    "train: training, and the notebooks on GPU and CPU; multi-gpu: training on several GPUs"
)
ONLY = "runner, telemetry, cluster: only this row, repeatable"
OWN = {  # those with options of their own: `main(verb, arguments)`, the name of the bench not among them
    "train": "rocmlab.cli.bench_train",
    "multi-gpu": "rocmlab.cli.bench_multi_gpu",
}


def main(verb: str, arguments: Sequence[str]) -> int:
    """Measure one thing and print a table, or JSON; without a name, training."""
    arguments = list(arguments) or _from_make(os.environ)
    if not arguments or arguments[0] in OWN:
        return _in_the_lab(verb, arguments)
    parser = verb_parser(verb)
    parser.add_argument("name", choices=["up", "devices", "runner", "telemetry", "cluster", *OWN], help=BENCHES)
    parser.add_argument("--runs", type=_positive, default=5, help="how often each figure is taken (default 5)")
    parser.add_argument("--theirs", metavar="COMMAND", help="devices, telemetry: compare with this (default: rocm-smi)")
    parser.add_argument("--row", action="append", metavar="NAME", help=ONLY)
    parser.add_argument("--json", action="store_true", help="print it as JSON")
    chosen = parser.parse_args(arguments)
    if chosen.row and chosen.name in ("up", "devices"):
        parser.error(f"--row is for {ONLY.partition(':')[0]}")
    if chosen.theirs and chosen.name not in ("devices", "telemetry"):
        parser.error("--theirs is for devices and telemetry")
    measures: dict[str, Callable[[], dict[str, Any]]] = {
        "up": lambda: _up(chosen.runs),
        "devices": lambda: _devices(chosen.runs, chosen.theirs),
        "runner": lambda: _runner(chosen.runs, chosen.row),
        "telemetry": lambda: _telemetry(chosen.runs, chosen.theirs, chosen.row),
        "cluster": lambda: _cluster(chosen.runs, chosen.row),
    }
    try:
        report = measures[chosen.name]()
    except ImportError as err:
        raise runner_missing(err) from err
    rows: list[bench.Row] = report["rows"]
    if chosen.json:
        print(json.dumps({**report, "rows": [row.as_dict() for row in rows]}, indent=1))
        return 0
    if report["simulated"]:
        print(f"SIMULATED: measured on a simulated host with {report['device']}")
    print(f"{'figure':22} {'ours':>9} {'theirs':>9} {'ratio':>6}  unit  runs  least … most")
    for row in rows:
        theirs = f"{row.theirs:9.2f}" if row.theirs is not None else f"{'':9}"
        ratio = f"{row.ratio:5.1f}x" if row.ratio is not None else f"{'':6}"
        least, most = row.spread
        print(f"{row.name:22} {row.ours:9.2f} {theirs} {ratio}  {row.unit:4}  {row.runs:4}  {least:.2f} … {most:.2f}")
    for name, why in report.get("skipped", {}).items():
        print(f"{name}: not measured, {why}", file=sys.stderr)
    return 0


def _from_make(environment: Mapping[str, str]) -> list[str]:
    """Return what `make bench BENCH="train --quick"` says, quotes honoured, so that no shell reads it."""
    try:
        return shlex.split(environment.get("BENCH", ""))
    except ValueError as err:
        raise RocmlabError("BENCH cannot be read", f"{err}", "close the quotes: BENCH='train --quick'") from err


def _in_the_lab(verb: str, arguments: Sequence[str]) -> int:
    """Measure training; on the host the lab is prepared, as for `rocmlab run`, and gets these words."""
    if not os.environ.get("ROCMLAB_RUNTIME"):
        return _from_the_host([verb, *arguments])
    if arguments:
        return int(importlib.import_module(OWN[arguments[0]]).main(verb, arguments[1:]))
    code = int(importlib.import_module(OWN["train"]).main(verb, ["--notebooks"]))
    if _count_gpus() >= 2:
        code = max(code, int(importlib.import_module(OWN["multi-gpu"]).main(verb, [])))
    return code


def _count_gpus() -> int:
    from rocmlab.devices import discover
    from rocmlab.runs.scheduling.chosen import choose_gpus

    return sum(
        gpu.backend in ("rocm", "cuda") and not gpu.simulated for gpu in choose_gpus(discover(), None, os.environ)
    )


def _from_the_host(words: Sequence[str]) -> int:
    from rocmlab.cli.up import announce, note
    from rocmlab.stack.container import ContainerLab

    if words[1:]:  # wrong arguments are reported before anything is built
        importlib.import_module(OWN[words[1]]).parser(words[0]).parse_args(words[2:])
    project = projects.plan(projects.find())
    announce(project, note)
    with projects.locked(project, note):
        project = projects.prepare(project, note, persist=False)
    code = project.lab.run(list(words))
    if isinstance(project.lab, ContainerLab) and "/" not in project.values["SHARE"]:
        note(f"what was kept lies in the {project.lab.share()}, below bench/; JupyterLab shows it")
    return code


def _positive(text: str) -> int:
    if not (text.isascii() and text.isdigit() and 0 < int(text[:9]) < 10_000):
        msg = f"{text} is no number of runs"
        raise argparse.ArgumentTypeError(msg)
    return int(text)


def _up(runs: int) -> dict[str, Any]:
    project = projects.plan(projects.find())
    bench.check_built(project)  # before anything is written
    projects.write(project)
    rows = bench.up(project, runs)
    devices = project.lab.devices()
    return {
        "bench": "up",
        "device": devices[0]["name"] if devices else None,
        "simulated": any(device["simulated"] for device in devices),
        "versions": {
            **_versions(),
            "runtime": project.choice.runtime,
            "backend": project.choice.backend,
        },
        "rows": rows,
    }


def _devices(runs: int, theirs: str | None) -> dict[str, Any]:
    from rocmlab.devices import bench as of_devices

    try:
        folder = projects.find()
    except RocmlabError:
        folder = None  # installed without a clone: there is no lab to check
    figures = of_devices.measure(runs, theirs, folder)
    return {
        "bench": "devices",
        "device": f"{figures.gpus}x {figures.device}",
        "simulated": figures.simulated,
        "versions": _versions(),
        "rows": [bench.row(name, "ms", ours, figures.theirs.get(name, ())) for name, ours in figures.ours.items()],
    }


def _runner(runs: int, names: Sequence[str] | None) -> dict[str, Any]:
    from rocmlab.devices import discover
    from rocmlab.runs.bench import rows as of_runner
    from rocmlab.runs.run import versions

    figures = of_runner.measure(runs, names or of_runner.ROWS)
    ours, theirs = figures.ours, figures.theirs
    return {
        "bench": "runner",
        "device": discover()[-1].name,
        "simulated": False,
        "versions": versions(),
        "rows": [bench.row(name, unit, ours[name], theirs.get(name, ())) for name, unit in figures.units.items()],
        "skipped": figures.skipped,
    }


def _telemetry(runs: int, theirs: str | None, names: Sequence[str] | None) -> dict[str, Any]:
    from rocmlab.telemetry import bench as of_telemetry

    figures = of_telemetry.measure(runs, theirs, names or of_telemetry.ROWS)
    return {
        "bench": "telemetry",
        "device": figures.device,
        "simulated": True,
        "versions": _versions(),
        "rows": [
            bench.row(name, figures.units[name], ours, figures.theirs.get(name, ()))
            for name, ours in figures.ours.items()
        ],
        "skipped": figures.skipped,
    }


def _cluster(runs: int, names: Sequence[str] | None) -> dict[str, Any]:
    from rocmlab.runs.bench import cluster, invented, ray_rows

    figures = cluster.measure(runs, names or ())
    fleet = f"{invented.GPUS}x {', '.join(product[0] for product in invented.PRODUCTS)}"
    nodes = f"Ray nodes with {ray_rows.GPUS} simulated GPUs each"
    kinds = [nodes if name in ray_rows.ROWS else fleet for name in figures.ours]
    return {
        "bench": "cluster",
        "device": "; ".join(dict.fromkeys(kinds)),
        "simulated": True,
        "versions": {**_versions(), **({"ray": version("ray")} if nodes in kinds else {})},
        "rows": [
            bench.row(name, figures.units[name], ours, figures.theirs.get(name, ()), is_cost=name in ray_rows.COSTS)
            for name, ours in figures.ours.items()
        ],
        "skipped": figures.skipped,
    }


def _versions() -> dict[str, str]:
    return {"rocmlab": __version__, "python": platform.python_version()}
