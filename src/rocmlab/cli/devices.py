"""`rocmlab devices`."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from rocmlab.cli import guard
from rocmlab.cli.main import verb_parser
from rocmlab.devices import is_simulated, sample, survey, system_root

TYPE_CHECKING = False  # `typing` itself would cost milliseconds
if TYPE_CHECKING:
    from typing import Any

LIMIT_SECONDS = 5.0
FLAGS_EXPLAINED = {
    "--json": "print everything known, as JSON",
    "--sample": "add what each device reports now: load, memory, watts, …",
}
FLAGS = frozenset(FLAGS_EXPLAINED)
WIDTH_OF_A_FILE = 200  # where the output is no terminal: one line a device


def main(verb: str, arguments: Sequence[str]) -> int:
    """Print the devices; exit code 0 even where there is only the CPU."""
    if not FLAGS.issuperset(arguments):  # help, or an error: argparse costs a tenth of the whole answer
        parser = verb_parser(verb)
        for flag, meaning in FLAGS_EXPLAINED.items():
            parser.add_argument(flag, action="store_true", help=meaning)
        chosen = parser.parse_args(arguments)
        arguments = [flag for flag in FLAGS if getattr(chosen, flag.lstrip("-"))]
    as_json, with_sample = "--json" in arguments, "--sample" in arguments
    print(guard.within(LIMIT_SECONDS, lambda: _report(as_json=as_json, with_sample=with_sample)))
    return 0


def _report(*, as_json: bool, with_sample: bool) -> str:
    root = system_root()
    found, problems = survey(root)
    devices: list[dict[str, Any]] = []
    for device in found:
        more = {"sample": sample(device, root).as_dict()} if with_sample else {}
        devices.append({**device.as_dict(), **more})
    if as_json:
        import json
        from dataclasses import asdict

        listed = [asdict(problem) for problem in problems]
        return json.dumps({"simulated": is_simulated(root), "devices": devices, "problems": listed}, indent=1)
    from rocmlab.cli.table import table_lines

    lines = table_lines(devices, width())
    if is_simulated(root):
        lines.insert(0, f"SIMULATED: read from {_printable(str(root))}, not from this machine")
    return "\n".join([*lines, *(f"\nproblem: {problem}" for problem in problems)])


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
