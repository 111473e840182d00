"""`rocmlab simulate`."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from rocmlab.base.errors import RocmlabError
from rocmlab.cli.main import VERBS, verb_parser
from rocmlab.simulation import KINDS, PARTITIONS, PATTERNS, PRODUCTS, PROFILES, Live

INTERVAL_SECONDS = 0.5
MAX_SECONDS = 366 * 86400.0


def main(verb: str, arguments: Sequence[str]) -> int:
    """Write a simulated host, and with --live move its values until Ctrl-C or for --seconds."""
    parser = _parser(verb)
    chosen = parser.parse_args(arguments)
    for option in ("seconds", "interval"):
        if getattr(chosen, option) is not None and not chosen.live:
            parser.error(f"--{option} is for --live: without it the values do not move")
    folder = Path(chosen.folder)
    live = Live(
        folder,
        gpus=chosen.gpus,
        profile=chosen.profile,
        partition=chosen.partition,
        partitions_are_functions=chosen.older_driver,
        products=chosen.product.split(",") if chosen.product else (),
        busy=chosen.busy or ("training" if chosen.live else "idle"),
        faults=chosen.fault,
        seed=chosen.seed,
        character_nodes=chosen.nodes,
    )
    count = len(live.host.gpus)
    print(f"{folder}: a SIMULATED host with {count} GPU{'s' * (count > 1)}")
    print(f"try: ROCMLAB_ROOT={folder} scripts/rocmlab devices", flush=True)
    if chosen.live:
        _move(live, chosen.interval or INTERVAL_SECONDS, chosen.seconds)
    return 0


def _move(live: Live, interval: float, seconds: float | None) -> None:
    began = time.monotonic()
    print("moving its values; Ctrl-C ends it", file=sys.stderr, flush=True)
    try:
        passed = 0.0
        while seconds is None or passed < seconds:
            live.step(passed)
            time.sleep(interval if seconds is None else max(0.0, min(interval, began + seconds - time.monotonic())))
            passed = time.monotonic() - began
    except KeyboardInterrupt:
        print("ended", file=sys.stderr)
    except FileNotFoundError as err:
        raise RocmlabError(
            f"{err.filename} is gone", "another process removed or rewrote the simulated host", "start again"
        ) from None


def _parser(verb: str) -> argparse.ArgumentParser:
    width = max(map(len, KINDS))
    faults = "\n".join(f"  {kind:<{width}}  {text}" for kind, (_, text) in KINDS.items())
    parser = verb_parser(verb, epilog=f"faults:\n{faults}\n\ndocs/simulate.md explains more.")
    parser.description = f"{VERBS[verb][1][0].upper()}{VERBS[verb][1][1:]}, which AMD's own tools take for real."
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument(
        "folder", type=_folder, metavar="DIR", help="new, empty, or a simulated host, which is replaced"
    )
    parser.add_argument("--gpus", type=int, metavar="N", help="1 to 64 (default: as many as the profile has)")
    parser.add_argument("--profile", default="radeon", choices=PROFILES, help="kind of host (default: radeon)")
    parser.add_argument("--partition", default="spx", choices=PARTITIONS, help="divide each MI300X (default: spx)")
    parser.add_argument("--older-driver", action="store_true", help="partitions as PCI functions: 0000:05:00.1")
    parser.add_argument("--product", metavar="NAME,…", help=f"GPUs to use alternately instead: {', '.join(PRODUCTS)}")
    parser.add_argument(
        "--busy",
        metavar="PATTERN",
        help=f"{', '.join(PATTERNS)}, a percentage, or HIP:percent,… (default: idle; training with --live)",
    )
    parser.add_argument("--live", action="store_true", help="keep running and move the values")
    parser.add_argument("--interval", type=_positive, metavar="S", help=f"between moves (default: {INTERVAL_SECONDS})")
    parser.add_argument("--seconds", type=_positive, metavar="S", help="end --live after S seconds")
    parser.add_argument(
        "--fault", action="append", default=[], metavar="KIND[:GPU[:DETAIL]]", help="break something; may be repeated"
    )
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="decides serial numbers and ids (default: 0)")
    parser.add_argument("--nodes", action="store_true", help="make real device nodes (root)")
    return parser


def _folder(text: str) -> str:
    if not text:
        raise argparse.ArgumentTypeError("an empty name is not a folder")
    return text


def _positive(text: str) -> float:
    value = float(text)
    if not 0 < value <= MAX_SECONDS:
        raise argparse.ArgumentTypeError(f"{text} is not a time in seconds above 0, up to {MAX_SECONDS:.0f}")
    return value
