"""`rocmlab bench multi-gpu`."""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
from collections.abc import Sequence

from rocmlab.benchmarking.rows import span, table
from rocmlab.benchmarking.scaling import measures
from rocmlab.benchmarking.scaling.report import Plan, Row, measure
from rocmlab.cli.bench import positive
from rocmlab.cli.parsers import parser_of


def main(command: str, arguments: Sequence[str]) -> int:
    """Measure how training scales over this machine's GPUs, and print a table, or JSON."""
    chosen = parser_of(f"{command} multi-gpu").parse_args(arguments)
    plan = Plan(
        size=chosen.size,
        blocks=chosen.runs,
        counts=tuple(chosen.counts),
        is_tuning=chosen.tune,
        frameworks=tuple(chosen.only) if chosen.only else ("ddp", "keras"),
        time_limit_seconds=chosen.limit,
    )
    with contextlib.redirect_stdout(sys.stderr):  # what the ranks print is not a result
        report = measure(plan)
    rows: list[Row] = report["rows"]
    if chosen.json:
        print(json.dumps({**report, "rows": [row.as_dict() for row in rows]}, indent=1))
        return 0 if rows else 1
    if report["simulated"]:
        print(f"SIMULATED on {report['device']}: this shows that the losses agree, and no speed")
    print(f"{report['device']}, " + ", ".join(f"{name} {version}" for name, version in report["versions"].items()))
    titles = ("result", "ours", "perfect", "efficiency", "unit", "runs", "least … most")
    print("\n".join(table(titles, [_cells(row) for row in rows])))
    for name, why in report["skipped"].items():
        print(f"{name}: not measured, {why}", file=sys.stderr)
    return 0 if rows else 1


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of `rocmlab bench multi-gpu`."""
    parser.add_argument(
        "--runs", type=positive, default=5, metavar="N", help="timed blocks of each result (default: 5)"
    )
    parser.add_argument(
        "--counts",
        type=_numbers,
        default=[],
        metavar="N,…",
        help="numbers of GPUs, such as 1,2,4 (default: 1, 2, 4, … all)",
    )
    parser.add_argument(
        "--size", choices=list(measures.SIZES), default="large", help="size of the larger network (default: large)"
    )
    parser.add_argument(
        "--only", action="append", choices=["ddp", "keras"], help="only this framework; may be repeated"
    )
    parser.add_argument("--tune", action="store_true", help="also compare the settings of DDP")
    parser.add_argument(
        "--limit", type=positive, default=300, metavar="SECONDS", help="time limit of each run (default: 300)"
    )
    parser.add_argument("--json", action="store_true", help="print the result as JSON")


def _cells(row: Row) -> tuple[object, ...]:
    efficiency = f"{row.efficiency:.3f}" if row.efficiency is not None else ""
    equal = "" if row.replicas_equal is None else ", replicas equal" if row.replicas_equal else ", REPLICAS DIFFER"
    return row.name, row.ours, row.theirs, efficiency, row.unit, row.runs, span(row.spread) + equal


def _numbers(text: str) -> list[int]:
    return [positive(part) for part in text.split(",")]
