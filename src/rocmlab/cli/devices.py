"""`rocmlab devices`."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence

from rocmlab.base.errors import RocmlabError
from rocmlab.cli import guard
from rocmlab.cli.main import command_parser
from rocmlab.devices import Device, is_simulated, sample, survey, system_root

TYPE_CHECKING = False  # `typing` itself would cost milliseconds
if TYPE_CHECKING:
    import argparse
    from pathlib import Path
    from typing import Any

    Row = dict[str, Any]

LIMIT_SECONDS = 5.0
FLAGS_EXPLAINED = {
    "--json": "print everything known, as JSON",
    "--sample": "add what each device reports now: load, memory, watts, …",
}
FLAGS = frozenset(FLAGS_EXPLAINED)
WIDTH_OF_A_FILE = 200  # where the output is not a terminal: one line a device


def main(command: str, arguments: Sequence[str]) -> int:
    """Print the devices; exit code 0 even where there is only the CPU, 2 if one of them hangs."""
    if not FLAGS.issuperset(arguments):  # help, or an error: argparse costs a tenth of the whole answer
        chosen = build_parser(command).parse_args(arguments)
        arguments = [flag for flag in FLAGS if getattr(chosen, flag.lstrip("-"))]
    use_remembered_root()
    as_json, with_sample = "--json" in arguments, "--sample" in arguments
    root = system_root()
    devices, problems = guard.within(LIMIT_SECONDS, lambda: _found(root))
    hung = _add_samples(devices, root) if with_sample else []
    print((_as_json if as_json else _as_text)(root, devices, [*problems, *hung]))
    return 2 if hung else 0


def build_parser(command: str) -> argparse.ArgumentParser:
    """Return the parser of `rocmlab devices`."""
    parser = command_parser(command)
    for flag, meaning in FLAGS_EXPLAINED.items():
        parser.add_argument(flag, action="store_true", help=meaning)
    return parser


def use_remembered_root() -> None:
    """Look at the simulated host that `make up ROCMLAB_ROOT=…` remembers, where this folder is a project.

    The environment goes first, an empty value of it (this machine) too. Settings are loaded, which costs as much as the
    whole answer, only where `.env` mentions it.
    """
    if "ROCMLAB_ROOT" in os.environ or "ROCMLAB_RUNTIME" in os.environ or not os.path.exists("compose.yaml"):
        return
    try:
        with open(".env", "rb") as file:
            is_remembered = b"ROCMLAB_ROOT" in file.read()
    except OSError:
        return
    if is_remembered:
        from pathlib import Path

        from rocmlab.stack import project_folder, settings

        project_folder.check(Path.cwd())
        if root := settings.load(Path.cwd(), {}).get("ROCMLAB_ROOT"):
            os.environ["ROCMLAB_ROOT"] = root


def _found(root: Path) -> tuple[list[Row], list[Row]]:
    found, problems = survey(root)
    return [device.as_dict() for device in found], [problem.as_dict() for problem in problems]


def _add_samples(devices: Sequence[Row], root: Path) -> list[Row]:
    """Read all devices at the same time, so that one that hangs costs only its own sample; return what hangs."""

    def reading(device: Device) -> Callable[[], Row]:
        return lambda: sample(device, root).as_dict()

    answers = guard.each_within(LIMIT_SECONDS, [reading(Device(**row)) for row in devices])
    problems = []
    for row, read in zip(devices, answers, strict=True):
        row["sample"] = read if isinstance(read, dict) else None
        if isinstance(read, RocmlabError):
            problems.append(read.problem.as_dict())
        elif isinstance(read, OSError):
            raise read
    return [problem for turn, problem in enumerate(problems) if problem not in problems[:turn]]


def _as_json(root: Path, devices: Sequence[Row], problems: Sequence[Row]) -> str:
    import json

    return json.dumps({"simulated": is_simulated(root), "devices": devices, "problems": problems}, indent=1)


def _as_text(root: Path, devices: Sequence[Row], problems: Sequence[Row]) -> str:
    from rocmlab.cli.table import problem_lines, table_lines

    columns = width()
    lines = table_lines(devices, columns)
    if is_simulated(root):
        lines.insert(0, f"SIMULATED: read from {_printable(str(root))}, not from this machine")
    for problem in problems:
        lines += ["", *problem_lines(problem, columns)]
    return "\n".join(lines)


def width() -> int:
    """Return how wide the output may be: `COLUMNS`, else the terminal, else wide enough for one line a device."""
    columns = os.environ.get("COLUMNS", "")
    if columns.isascii() and columns.isdigit() and int(columns[:6]):
        return int(columns[:6])
    try:
        return os.get_terminal_size(sys.stdout.fileno()).columns or WIDTH_OF_A_FILE
    except (OSError, ValueError):
        return WIDTH_OF_A_FILE


def _printable(text: str) -> str:
    return "".join(letter if letter.isascii() and letter.isprintable() else "?" for letter in text)
