"""`rocmlab simulate`."""

from __future__ import annotations

import argparse
import os
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from rocmlab.base.errors import RocmlabError
from rocmlab.cli.main import COMMANDS, command_parser, seconds
from rocmlab.simulation import KINDS, PARTITIONS, PATTERNS, PRODUCTS, PROFILES, Live, environment

INTERVAL_SECONDS = 0.5
MIN_SECONDS, MAX_SECONDS = 0.001, 366 * 86400.0


def main(command: str, arguments: Sequence[str]) -> int:
    """Write a simulated host, and with --live move its values until Ctrl-C or for --seconds; --run starts a program."""
    parser = build_parser(command)
    at = arguments.index("--") if "--" in arguments else len(arguments)
    options, program = list(arguments[:at]), list(arguments[at + 1 :])
    chosen = parser.parse_args(options)
    if chosen.run:
        if sorted(options) != sorted(["--run", chosen.folder]) or not "".join(program[:1]):
            parser.error(
                "--run takes a simulated host and, after --, a program: rocmlab simulate --run DIR -- rocminfo"
            )
        return _become(Path(chosen.folder), program)
    if program:
        parser.error("a program after -- is for --run")
    for option in ("seconds", "interval"):
        if getattr(chosen, option) is not None and not chosen.live:
            parser.error(f"--{option} is for --live: without it the values do not change")
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


def _become(folder: Path, program: Sequence[str]) -> int:
    """Replace this process by a program that sees the GPUs of a simulated host."""
    around = environment(folder, os.environ)
    print(f"SIMULATED: {program[0]} sees the GPUs of {folder}, which compute nothing", file=sys.stderr, flush=True)
    before = signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # Python ignores it, and a program would inherit that
    try:
        os.execvpe(program[0], list(program), around)
    except OSError as err:
        signal.signal(signal.SIGPIPE, before)
        raise RocmlabError(
            f"{program[0]} cannot be started", err.strerror or str(err), "name a program after --, or its path"
        ) from None


def _move(live: Live, interval: float, duration: float | None) -> None:
    began = time.monotonic()
    print("changing its values; Ctrl-C ends it", file=sys.stderr, flush=True)
    try:
        passed = 0.0
        while duration is None or passed < duration:
            live.step(passed)
            time.sleep(interval if duration is None else max(0.0, min(interval, began + duration - time.monotonic())))
            passed = time.monotonic() - began
    except KeyboardInterrupt:
        print("ended", file=sys.stderr)
    except FileNotFoundError as err:
        raise RocmlabError(
            f"{err.filename} is gone", "another process removed or rewrote the simulated host", "start again"
        ) from None


def build_parser(command: str) -> argparse.ArgumentParser:
    """Return the parser of `rocmlab simulate`."""
    width = max(map(len, KINDS))
    faults = "\n".join(f"  {kind:<{width}}  {text}" for kind, (_, text) in KINDS.items())
    parser = command_parser(
        command,
        example="host --profile instinct --gpus 8 --live",
        epilog=f"faults:\n{faults}\n\ndocs/simulate.md explains more.",
    )
    parser.description = (
        f"{COMMANDS[command][1][0].upper()}{COMMANDS[command][1][1:]}, which AMD's own tools accept as real."
    )
    parser.add_argument(
        "folder", type=_folder, metavar="DIR", help="new or empty folder, or a simulated host, which is replaced"
    )
    parser.add_argument(
        "--gpus", type=int, metavar="N", help="number of GPUs, 1 to 64 (default: as many as the profile has)"
    )
    parser.add_argument("--profile", default="radeon", choices=PROFILES, help="kind of host (default: radeon)")
    parser.add_argument("--partition", default="spx", choices=PARTITIONS, help="divide each MI300X (default: spx)")
    parser.add_argument(
        "--older-driver", action="store_true", help="write partitions as PCI functions, such as 0000:05:00.1"
    )
    parser.add_argument("--product", metavar="NAME,…", help=f"GPUs to use alternately instead: {', '.join(PRODUCTS)}")
    parser.add_argument(
        "--busy",
        metavar="PATTERN",
        help=f"{', '.join(PATTERNS)}, a percentage, or HIP:percent,… (default: idle; training with --live)",
    )
    parser.add_argument("--live", action="store_true", help="keep running and change the values")
    time_span = seconds(MIN_SECONDS, MAX_SECONDS)
    parser.add_argument(
        "--interval", type=time_span, metavar="SECONDS", help=f"time between changes (default: {INTERVAL_SECONDS})"
    )
    parser.add_argument(
        "--seconds", type=time_span, metavar="SECONDS", help="end --live after this time (default: at Ctrl-C)"
    )
    parser.add_argument(
        "--fault", action="append", default=[], metavar="KIND[:GPU[:DETAIL]]", help="simulate a fault; may be repeated"
    )
    parser.add_argument(
        "--seed", type=int, default=0, metavar="N", help="seed of the serial numbers and ids (default: 0)"
    )
    parser.add_argument(
        "--run", action="store_true", help="start the program after -- on the simulated host DIR, for ROCm's runtime"
    )
    parser.add_argument("--nodes", action="store_true", help="make real device nodes; needs root")
    return parser


def _folder(text: str) -> str:
    if not text:
        raise argparse.ArgumentTypeError("an empty name is not a folder")
    return text
