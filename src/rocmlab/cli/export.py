"""`rocmlab export`: a run for a site's own scheduler, and what its jobs call there."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from rocmlab.base import installation
from rocmlab.batch import options
from rocmlab.cli.main import command_parser, runner_missing


def main(name: str, arguments: Sequence[str]) -> int:
    """Export a run, run one job of one, or collect it."""
    kind = arguments[0] if arguments else ""
    if kind not in options.KINDS:
        build_parser(name).parse_args(arguments[:1])  # prints the help, or raises
    # Wrong arguments are reported before anything is built, and `--help` needs nothing installed.
    args = options.read(kind, arguments[1:])
    # A job runs where the scheduler has put it, with the interpreter that the script names: no lab is needed.
    if os.environ.get("ROCMLAB_RUNTIME") or kind in ("job", "collect"):
        return _here(arguments)
    from rocmlab.cli import run_ahead
    from rocmlab.cli.up import announce, note
    from rocmlab.stack import project as projects

    if (code := run_ahead.check(args)) is not None:
        return code
    project = projects.plan(projects.find(), stays=True)
    announce(project, note)
    with projects.locked(project, note):
        project = projects.prepare(project, note, persist=False)
    return project.lab.run([name, *arguments])


def build_parser(command: str) -> argparse.ArgumentParser:
    """Return the parser of `rocmlab export`, with a subcommand for each kind."""
    parser = command_parser(
        command, epilog=f"`rocmlab {command} KIND --help` describes one. docs/sites.md explains more."
    )
    options.add_kinds(parser)
    return parser


def _here(arguments: Sequence[str]) -> int:
    if arguments[0] == "job":  # queued, it may begin while the frameworks are still being installed
        installation.wait(Path(sys.prefix), lambda line: print(line, file=sys.stderr, flush=True))
    try:
        import papermill  # noqa: F401  what the runner needs
    except ImportError as err:
        raise runner_missing(err) from err
    from rocmlab.batch.command import main as export

    return export(arguments)
