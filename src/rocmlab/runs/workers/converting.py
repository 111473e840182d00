"""Executed notebooks as HTML, in a process next to the jobs: `python -m rocmlab.runs.workers.converting DESCRIPTOR`.

The conversion's libraries take a second to import, which a run pays once; and a notebook that is converted holds up
neither a slot nor a GPU. Notebooks that run go first: this process is nice to them.
"""

from __future__ import annotations

import contextlib
import os
import sys
from pathlib import Path

from rocmlab.runs.workers.commands import Commands, block_slow_import

NICENESS = 10


def main(arguments: list[str]) -> int:
    """Convert what the runner at the other end of a socket wants converted."""
    commands = Commands(int(arguments[0]), lambda: None)
    with contextlib.suppress(OSError):
        os.nice(NICENESS)
    block_slow_import()
    import nbformat
    from nbconvert.exporters import HTMLExporter

    from rocmlab.runs.workers import html

    _ = nbformat, HTMLExporter  # before there is something to convert
    while (taken := commands.take()) is not None:
        command, _ = taken
        try:
            html.write(Path(command["notebook"]), Path(command["target"]))
            message = None
        except Exception as err:
            message = f"{type(err).__name__}: {err}"[:500]
        commands.report("converted", message=message)
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
