"""`rocmlab bench multi-gpu`."""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
from collections.abc import Sequence

from rocmlab.cli.main import verb_parser
from rocmlab.training.scaling import measures
from rocmlab.training.scaling.report import Plan, Row, measure


def main(verb: str, arguments: Sequence[str]) -> int:
    """Measure how training scales over this machine's GPUs, and print a table, or JSON."""
    chosen = parser(verb).parse_args(arguments)
    plan = Plan(
        size=chosen.size,
        blocks=chosen.runs,
        counts=tuple(chosen.counts),
        is_tuning=chosen.tune,
        frameworks=tuple(chosen.only) if chosen.only else ("ddp", "keras"),
        time_limit_seconds=chosen.limit,
    )
    with contextlib.redirect_stdout(sys.stderr):  # what the ranks print is no result
        report = measure(plan)
    rows: list[Row] = report["rows"]
    if chosen.json:
        print(json.dumps({**report, "rows": [row.as_dict() for row in rows]}, indent=1))
        return 0 if rows else 1
    if report["simulated"]:
        print(f"SIMULATED on {report['device']}: that the losses agree is shown, no speed is")
    print(f"{report['device']}, " + ", ".join(f"{name} {version}" for name, version in report["versions"].items()))
    print(f"{'result':34} {'ours':>12} {'perfect':>12} {'efficiency':>10}  unit       runs  least … most")
    for row in rows:
        print(_line(row))
    for name, why in report["skipped"].items():
        print(f"{name}: not measured, {why}", file=sys.stderr)
    return 0 if rows else 1


def parser(verb: str) -> argparse.ArgumentParser:
    """Return the parser of `rocmlab bench multi-gpu`."""
    parser = verb_parser(verb)
    parser.prog += " multi-gpu"
    parser.add_argument("--runs", type=_positive, default=5, help="timed blocks of each result (default 5)")
    parser.add_argument(
        "--counts", type=_numbers, default=[], help="numbers of GPUs, such as 1,2,4 (default: 1, 2, 4, … all)"
    )
    parser.add_argument("--size", choices=list(measures.SIZES), default="large", help="the larger network's size")
    parser.add_argument("--only", action="append", choices=["ddp", "keras"], help="only this framework, repeatable")
    parser.add_argument("--tune", action="store_true", help="also compare the settings of DDP")
    parser.add_argument("--limit", type=_positive, default=300, metavar="SECONDS", help="of each run (default 300)")
    parser.add_argument("--json", action="store_true", help="print it as JSON")
    return parser


def _line(row: Row) -> str:
    results = (
        f"{value:,.1f}" if row.efficiency or row.unit != "nats" else f"{value:.2g}" for value in (row.ours, *row.spread)
    )
    ours, least, most = results
    perfect = f"{row.theirs:,.1f}" if row.theirs is not None else ""
    efficiency = f"{row.efficiency:.3f}" if row.efficiency is not None else ""
    equal = "" if row.replicas_equal is None else ", replicas equal" if row.replicas_equal else ", REPLICAS DIFFER"
    return (
        f"{row.name:34} {ours:>12} {perfect:>12} {efficiency:>10}  {row.unit:9} {row.runs:5}  {least} … {most}{equal}"
    )


def _positive(text: str) -> int:
    if not (text.isascii() and text.isdigit() and 0 < int(text[:9]) < 100_000):
        msg = f"{text} is no number from 1 on"
        raise argparse.ArgumentTypeError(msg)
    return int(text)


def _numbers(text: str) -> list[int]:
    return [_positive(part) for part in text.split(",")]
