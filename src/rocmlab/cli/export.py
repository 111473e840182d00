"""`rocmlab export`: a run for a site's own scheduler, and what its jobs call there."""

from __future__ import annotations

import os
from collections.abc import Sequence

from rocmlab.base.errors import RocmlabError
from rocmlab.batch import options
from rocmlab.cli.main import runner_missing

KINDS = {
    "slurm": "write an array script for Slurm",
    "k8s": "write an Indexed Job for Kubernetes",
    "job": "run one job of an exported run (what the scheduler calls)",
    "collect": "make the report of an exported run",
}


def main(verb: str, arguments: Sequence[str]) -> int:
    """Export a run, run one job of one, or collect it."""
    kind = arguments[0] if arguments else ""
    if kind in ("", "-h", "--help"):
        listed = "\n".join(f"  {name:<8} {text}" for name, text in KINDS.items())
        print(
            f"usage: rocmlab {verb} KIND …\n\n{listed}\n\n`rocmlab {verb} KIND --help` explains one; see docs/sites.md."
        )
        return 0 if kind else 2
    if kind not in KINDS:
        raise RocmlabError(f"rocmlab {verb} {kind}", "this kind does not exist", f"one of: {', '.join(KINDS)}")
    # Wrong arguments are reported before anything is built, and `--help` needs nothing installed.
    asked = options.READERS[kind](arguments[1:])
    # A job runs where the scheduler has put it, with the interpreter that the script names: no lab is needed.
    if os.environ.get("ROCMLAB_RUNTIME") or kind in ("job", "collect"):
        return _here(arguments)
    from rocmlab.cli import run_ahead
    from rocmlab.cli.up import announce, note
    from rocmlab.stack import project as projects

    if (code := run_ahead.check(asked)) is not None:
        return code
    project = projects.plan(projects.find(), stays=True)
    announce(project, note)
    with projects.locked(project, note):
        project = projects.prepare(project, note, persist=False)
    return project.lab.run([verb, *arguments])


def _here(arguments: Sequence[str]) -> int:
    try:
        import papermill  # noqa: F401  what the runner needs
    except ImportError as err:
        raise runner_missing(err) from err
    from rocmlab.batch.command import main as export

    return export(arguments)
