"""`rocmlab up` and `rocmlab build`."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence

from rocmlab import __version__
from rocmlab.cli import packages, stopping
from rocmlab.cli.main import command_parser
from rocmlab.cli.table import device_lines
from rocmlab.stack import packaged, remote, tls, tokens, versions
from rocmlab.stack import project as projects
from rocmlab.stack.lab import Lab, Say
from rocmlab.stack.native import NativeLab
from rocmlab.stack.project import Project
from rocmlab.stack.setting_table import SETTINGS

UNCHANGED = "nothing was changed: the lab keeps running with its current settings; the new ones are not applied"


def main(command: str, arguments: Sequence[str]) -> int:
    """Choose, write `.env`, build or install, start, and print where the lab is."""
    consent = stopping.consent(build_parser(command).parse_args(arguments))
    project, renewed = _plan(command)
    announce(project, say)
    if command == "up":
        from rocmlab import doctor  # which a build does not need, and whose import takes a tenth of a second

        doctor.refuse(doctor.blocking(project))
    while True:
        with projects.locked(project, say):
            project.lab.look_ahead()
            stop = would_stop(project, command)
        if stop:
            stopping.check(*stop, consent, say)
        try:
            return start(project, command, consent, renewed, is_stopped=stop is not None)
        except stopping.LabIsBusy:
            if not consent.waits:
                raise
            project, renewed = _plan(command)  # something began to compute while the new version was built


def build_parser(command: str) -> argparse.ArgumentParser:
    """Return the parser of `rocmlab up` or `rocmlab build`."""
    width = max(len(each.name) for each in SETTINGS)
    listed = "\n".join(f"  {each.name:<{width}}  {each.meaning} (default: {each.usual})" for each in SETTINGS)
    parser = command_parser(
        command,
        epilog=f"settings, given as NAME=value after `make {command}`, in the environment or in .env:\n{listed}\n\n"
        "docs/settings.md explains how they are remembered.",
    )
    stopping.add_options(parser)
    packaged.add_option(parser)
    return parser


def _plan(command: str) -> tuple[Project, list[str]]:
    """Decide, and return a line for each token that `up` replaces, because another process held the lab's port."""
    if command == "up":
        return projects.plan_again(projects.find())
    return projects.plan(projects.find(), builds=True), []


def would_stop(project: Project, command: str) -> tuple[Lab, stopping.Stop] | None:
    """Return the running lab that this command would stop or restart, and how; None: it stops nothing."""
    if command == "up" and (stop := would_stop_other(project)):
        return stop
    before = projects.before(project)
    changes = changes_environment(project)
    if (command == "up" or changes) and projects.restarts(project):
        return (before or project).lab, stopping.Stop(f"make {command}", "restarts", ends_runs=changes, note=UNCHANGED)
    if changes:  # no server runs, but headless runs may
        does, note = "changes the environment of", "nothing was changed"
        return (before or project).lab, stopping.Stop(f"make {command}", does, ends_runs=True, note=note)
    return None


def changes_environment(project: Project) -> bool:
    """Return whether a native environment that is there would be changed, under all that runs in it."""
    lab = project.lab
    return isinstance(lab, NativeLab) and lab.is_built() and not lab.is_startable()


def would_stop_other(project: Project) -> tuple[Lab, stopping.Stop] | None:
    """Return the running lab of another runtime that this project's lab would replace; None: there is none."""
    before = projects.before(project)
    if before is None or before.choice.runtime == project.choice.runtime:
        return None
    does = f"stops (RUNTIME changes from {before.choice.runtime} to {project.choice.runtime})"
    ends_runs = before.choice.runtime == "docker"  # Compose removes the containers of single runs as well
    return before.lab, stopping.Stop("make up", does, ends_runs=ends_runs, note=UNCHANGED)


def start(
    project: Project, command: str, consent: stopping.Consent, renewed: list[str], *, is_stopped: bool = False
) -> int:
    """Build what is missing, and start; what has begun to run meanwhile is not stopped.

    `renewed` has a line for each new token; with `is_stopped` a running lab is stopped by this.

    Raises:
        RocmlabError: see `projects.prepare` and `Lab.start`.
        LabIsBusy: something runs now that would end; settings are as they were.
    """
    choice = project.choice
    with projects.locked(project, say), projects.settings_kept_on_failure(project):
        _check_network(project, command)
        project = projects.prepare(project, say, always=command == "build", only_lab=command == "up")
        if project.choice != choice:
            announce(project, say)
        if command == "build":
            return 0
        if (is_stopped or project.choice != choice) and (stop := would_stop(project, command)) and not consent.force:
            stopping.check(*stop, consent, lambda _: None, may_wait=False)
        projects.stop_other(project, say)
        started = time.monotonic()
        was_running = project.lab.is_running()
        is_new = project.lab.start(say, force=consent.force)
        tokens.forget(project.settings, project.values)
    for line in renewed:
        say(line)
    devices = project.lab.devices()
    projects.check_gpus_inside(project, devices)
    versions.record(project)
    seconds = time.monotonic() - started
    how = "is running" if not is_new else "was restarted with the new settings" if was_running else "is ready"
    say(f"JupyterLab {how} ({seconds:.1f} s)")
    if not is_new and project.live_changes:
        say(f"applied now, without a restart: {' '.join(project.live_changes)}")
    print(f"\n  {project.url}\n")
    for number, line in enumerate(device_lines(devices)):
        print(f"  {'devices' if number == 0 else '':9} {line}")
    print(f"  {'share':9} {project.lab.share()}")
    print(f"  {'notebooks':9} {project.settings.get('NOTEBOOKS_DIR')}")
    _print_remote(project)
    if unfinished := project.lab.unfinished():
        print(f"  {'kernels':9} {unfinished}")
    for line in packages.notes(project.lab):
        print(f"  {'packages':9} {line}")
    print("\n  make run-notebooks   run them all headless\n  make down            stop; the share is kept")
    return 0


def _check_network(project: Project, command: str) -> None:
    """Raise RocmlabError if the lab could not listen for other machines."""
    if command == "up":
        before = project.previous if projects.before(project) else {}
        tls.check_free(project.settings, before, as_root=project.choice.runtime != "native")


def _print_remote(project: Project) -> None:
    for number, line in enumerate(project.remote_lines()):
        print(f"  {'' if number else 'network':9} {line}")
    if not tls.address(project.settings) and (here := remote.of_this_host()):
        print(f"  {'remote':9} {here.command(project.lab.port)}   (on your own computer; then open the URL there)")


def announce(project: Project, say: Say) -> None:
    """Say in one line what was chosen and why."""
    choice = project.choice
    say(f"rocmlab {__version__}: backend {choice.backend}, runtime {choice.runtime} ({choice.why})")
    for line in projects.notes(project):
        say(line)


def say(line: str) -> None:
    """Print one line of progress, where progress is the result."""
    print(line, flush=True)


def note(line: str) -> None:
    """Print one line of progress where the result is something else, which a script may read from standard output."""
    sys.stdout.flush()  # where both are one file or pipe, what was printed first is first
    print(line, file=sys.stderr, flush=True)
