"""`rocmlab bench NAME`."""

from __future__ import annotations

import json
import platform
from collections.abc import Sequence

from rocmlab import __version__
from rocmlab.cli.main import verb_parser
from rocmlab.stack import bench
from rocmlab.stack import project as projects
from rocmlab.stack.project import Project


def main(verb: str, arguments: Sequence[str]) -> int:
    """Measure one thing and print a table, or JSON."""
    parser = verb_parser(verb)
    parser.add_argument("name", choices=["up"], help="up: starting, starting again, rebuilding, sizes, imports")
    parser.add_argument("--runs", type=int, default=5, help="how often each figure is taken (default 5)")
    parser.add_argument("--json", action="store_true", help="print it as JSON")
    chosen = parser.parse_args(arguments)
    project = projects.plan(projects.find())
    projects.write(project)
    rows = bench.up(project, chosen.runs)
    if chosen.json:
        print(json.dumps(_report(project, chosen.name, rows), indent=1))
        return 0
    print(f"{'figure':22} {'ours':>9} {'theirs':>9} {'ratio':>6}  unit  runs  least … most")
    for row in rows:
        theirs = f"{row.theirs:9.2f}" if row.theirs is not None else f"{'':9}"
        ratio = f"{row.ratio:5.1f}x" if row.ratio is not None else f"{'':6}"
        least, most = row.spread
        print(f"{row.name:22} {row.ours:9.2f} {theirs} {ratio}  {row.unit:4}  {row.runs:4}  {least:.2f} … {most:.2f}")
    return 0


def _report(project: Project, name: str, rows: list[bench.Row]) -> dict[str, object]:
    devices = project.lab.devices()
    return {
        "bench": name,
        "device": devices[0]["name"] if devices else None,
        "simulated": any(device["simulated"] for device in devices),
        "versions": {
            "rocmlab": __version__,
            "python": platform.python_version(),
            "runtime": project.choice.runtime,
            "backend": project.choice.backend,
        },
        "rows": [row.as_dict() for row in rows],
    }
