"""`rocmlab up` and `rocmlab build`."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence

from rocmlab import __version__, doctor
from rocmlab.cli.main import verb_parser
from rocmlab.cli.table import device_lines
from rocmlab.stack import project as projects
from rocmlab.stack.lab import Say
from rocmlab.stack.project import Project


def main(verb: str, arguments: Sequence[str]) -> int:
    """Choose, write `.env`, build or install, start, and say where the lab is."""
    verb_parser(verb).parse_args(arguments)
    project = projects.plan(projects.find())
    announce(project, say)
    if verb == "up":
        doctor.refuse(doctor.blocking(project))
    choice = project.choice
    with projects.locked(project, say), projects.settings_kept_on_failure(project):
        project = projects.prepare(project, say, always=verb == "build")
        if project.choice != choice:
            announce(project, say)
        if verb == "build":
            return 0
        projects.stop_other(project, say)
        started = time.monotonic()
        was_running = project.lab.is_running()
        is_new = project.lab.start(say)
    devices = project.lab.devices()
    projects.check_gpus_inside(project, devices)
    seconds = time.monotonic() - started
    how = "is running" if not is_new else "was restarted with the new settings" if was_running else "is ready"
    say(f"JupyterLab {how} ({seconds:.1f} s)")
    print(f"\n  {project.url}\n")
    for number, line in enumerate(device_lines(devices)):
        print(f"  {'devices' if number == 0 else '':9} {line}")
    print(f"  {'share':9} {project.lab.share()}")
    print(f"  {'notebooks':9} {project.settings.get('NOTEBOOKS_DIR')}")
    print("\n  make run-notebooks   run them all headless\n  make down            stop; the share stays")
    return 0


def announce(project: Project, say: Say) -> None:
    """Say in one line what was chosen and why."""
    choice = project.choice
    say(f"rocmlab {__version__}: backend {choice.backend}, runtime {choice.runtime} ({choice.why})")
    for remark in projects.remarks(project):
        say(remark)


def say(line: str) -> None:
    """Print one line of progress, where progress is the result."""
    print(line, flush=True)


def note(line: str) -> None:
    """Print one line of progress where the result is something else, which a script may read from standard output."""
    print(line, file=sys.stderr, flush=True)
