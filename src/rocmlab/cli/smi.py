"""`rocmlab smi`."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Sequence

from rocmlab.base.errors import RocmlabError
from rocmlab.cli.devices import use_remembered_root, width
from rocmlab.cli.main import command_parser, seconds
from rocmlab.cli.smi_reader import ViewReader
from rocmlab.devices import system_root

TYPE_CHECKING = False  # `typing` itself would cost milliseconds
if TYPE_CHECKING:
    import argparse

    from rocmlab.devices import Device
    from rocmlab.telemetry.smi import View
    from rocmlab.telemetry.smi_text import Line

MIN_SECONDS, MAX_SECONDS = 0.1, 86400.0
COLOURS = ("auto", "always", "never")


def main(command: str, arguments: Sequence[str]) -> int:
    """Print or watch what the devices do; exit code 0 even where there is only the CPU, 2 if one of them hangs."""
    options = _Options()
    if arguments:  # argparse costs a tenth of the whole answer
        build_parser(command).parse_args(arguments, namespace=options)
    use_remembered_root()
    reader = ViewReader(system_root(), options.chosen, queries_lab=options.json)
    try:
        reader.ask()
        if options.watch is None:
            return _once(reader, options)
        if not (options.json or options.csv) and _is_screen():
            from rocmlab.cli import smi_watch

            return smi_watch.watch(
                reader, options.watch, options.lines, coloured=options.is_coloured(), plain=is_plain()
            )
        return _repeat(reader, options)
    finally:
        reader.close()


class _Options:
    """What was requested."""

    json = False
    csv = False
    color = "auto"
    watch: float | None = None  # seconds between two looks
    devices = ""

    def chosen(self, found: list[Device]) -> list[Device]:
        """Return the devices of `--devices`, in the order in which they were found; all of them without it.

        Raises:
            RocmlabError: one of them is not there.
        """
        from rocmlab.telemetry.model import device_id

        wanted = [word.strip().lower() for word in self.devices.split(",") if word.strip()]
        if not wanted:
            return found
        names = {id(device): _names(device, device_id(device)) for device in found}
        missing = [word for word in wanted if not any(word in each for each in names.values())]
        if missing:
            there = ", ".join(f"{'-' if each.index is None else each.index} ({device_id(each)})" for each in found)
            raise RocmlabError(
                f"--devices {self.devices}: device {missing[0]} not found",
                f"devices are named by HIP index or PCI address; here: {there}",
                "rocmlab devices lists them",
            )
        return [device for device in found if names[id(device)].intersection(wanted)]

    def lines(self, view: View, columns: int, rows: int | None = None) -> list[Line]:
        """Return the screen, not yet painted."""
        from rocmlab.telemetry import smi

        return smi.screen(view, columns, rows)

    def text(self, view: View) -> str:
        """Return what is printed of one look."""
        if self.json:
            import json

            return json.dumps(view.as_dict(), indent=1 if self.watch is None else None)
        if self.csv:
            from rocmlab.telemetry import smi_csv

            return "\n".join(smi_csv.lines(view))
        from rocmlab.telemetry import smi_text

        return "\n".join(smi_text.paint(self.lines(view, width()), coloured=self.is_coloured(), plain=is_plain()))

    def is_coloured(self) -> bool:
        """Return whether to colour the screen."""
        if self.color != "auto":
            return self.color == "always"
        return _is_screen() and not os.environ.get("NO_COLOR")


def _names(device: Device, name: str) -> set[str]:
    """Return what `--devices` may call a device: its index, its address, its id; the CPU `cpu`."""
    index = None if device.backend == "cpu" or device.index is None else str(device.index)
    return {each.lower() for each in (index, device.pci_address, name) if each}


def _is_screen() -> bool:
    return sys.stdout.isatty() and os.environ.get("TERM") != "dumb"


def is_plain() -> bool:
    """Return whether the output takes ASCII only."""
    return "utf" not in (sys.stdout.encoding or "").lower()


def _once(reader: ViewReader, options: _Options) -> int:
    view = reader.wait()
    if options.csv:
        from rocmlab.telemetry import smi_csv

        print(smi_csv.header())
    print(options.text(view))
    return 2 if view.hung else 0


def _repeat(reader: ViewReader, options: _Options) -> int:
    """Print a block for each look; Ctrl-C ends it."""
    try:
        if options.csv:
            from rocmlab.telemetry import smi_csv

            print(smi_csv.header())
        separator = "" if options.json or options.csv else "\n"
        due = time.monotonic()
        while True:
            print(options.text(reader.wait()), end=f"\n{separator}", flush=True)
            due = max(due + (options.watch or 0.0), time.monotonic())
            time.sleep(max(0.0, due - time.monotonic()))
    except KeyboardInterrupt:
        return 0


def build_parser(command: str) -> argparse.ArgumentParser:
    """Return the parser of `rocmlab smi`."""
    parser = command_parser(command, example="--watch 2 --devices 0,2", epilog="docs/smi.md explains what is shown.")
    parser.add_argument(
        "--watch",
        nargs="?",
        type=seconds(MIN_SECONDS, MAX_SECONDS),
        const=1.0,
        metavar="SECONDS",
        help="repeat every second, or every SECONDS",
    )
    form = parser.add_mutually_exclusive_group()
    form.add_argument(
        "--json", action="store_true", help="print everything known, as JSON; with --watch one line per reading"
    )
    form.add_argument("--csv", action="store_true", help="print a line for each device, below a header")
    parser.add_argument("--devices", metavar="LIST", help="only these: HIP indices or PCI addresses, such as 0,2")
    parser.add_argument(
        "--color", choices=COLOURS, help="colour the screen (default: auto, on a terminal unless NO_COLOR is set)"
    )
    return parser
