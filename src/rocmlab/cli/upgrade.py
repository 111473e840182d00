"""`rocmlab upgrade` and `rocmlab rollback`.

The command itself runs the version that is there, and calls the new version's own code for building and starting. All
that it needs is imported before the checkout moves: what was imported later would be the other version's.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

from rocmlab import doctor
from rocmlab.base.errors import RocmlabError
from rocmlab.cli import stopping, up
from rocmlab.cli.main import command_parser
from rocmlab.cli.up import say
from rocmlab.stack import busy, envfile, environments, health, looks, process, source, versions
from rocmlab.stack import project as projects
from rocmlab.stack.container import ContainerLab
from rocmlab.stack.native import NativeLab
from rocmlab.stack.project import Project
from rocmlab.stack.versions import Version

__all__ = ["busy", "main"]  # `busy` is imported here so that it is this version's

SWITCHED = "upgrade-switched"  # in the state folder while the new version is being started
KEPT = "nothing was switched: the lab keeps running with its current version"


def main(command: str, arguments: Sequence[str]) -> int:
    """Upgrade or roll back; exit code 1 where the other version does not work and this one runs again."""
    chosen = build_parser(command).parse_args(arguments)
    consent = stopping.consent(chosen)
    if command == "rollback":
        return _rollback(consent)
    return _switch(consent) if chosen.switch else _upgrade(consent, stopping.given(chosen))


def build_parser(command: str) -> argparse.ArgumentParser:
    """Return the parser of `rocmlab upgrade` or `rocmlab rollback`."""
    parser = command_parser(command)
    stopping.add_options(parser)
    if command == "upgrade":
        parser.add_argument("--switch", action="store_true", help="build and start what is checked out")
    return parser


# -- upgrade ---------------------------------------------------------------------------------------------------------


def _upgrade(consent: stopping.Consent, given: Sequence[str]) -> int:
    project = projects.reopen(projects.find())
    folder = project.settings.project
    present, target = source.head(folder), ""
    before = _running_version(project)
    if present:
        target, why = source.fetched(folder)
        if why:
            say(f"using what is checked out: {why}")
        if target != present:
            source.check_clean(folder)
    _show_changes(folder, before, target)
    if target and target == before.commit == present and projects.plan(folder).lab.is_startable():
        say("this is the newest version already, and it is built")
        return 0
    stop = stopping.Stop("make upgrade", "restarts", ends_runs=True, note=KEPT)
    if isinstance(project.lab, NativeLab) or not consent.waits:  # a native lab runs the code that is checked out
        stopping.check(project.lab, stop, consent, say)
    was_running = project.lab.is_running()
    attempt = Attempt(project, present, before.commit)
    try:
        with projects.settings_kept_on_failure(project), attempt.undone_on_failure():
            attempt.run(target if target != present else "", ["upgrade", "--switch", *given])
    except (RocmlabError, OSError, KeyboardInterrupt) as err:
        attempt.start_again(was_running)
        raise RocmlabError(
            f"the upgrade did not succeed, and {attempt.outcome('the previous version')}",
            str(err) or "it was interrupted",
            "the messages above explain it"
            + ("" if attempt.problems else "; nothing was lost, and `make upgrade` may be repeated"),
            exit_code=1,
        ) from err
    _after(project, before)
    return 0


def _running_version(project: Project) -> Version:
    """Return the version that the lab runs, as far as it is known: recorded, or that before the last `git pull`."""
    current, _ = versions.read(project.settings)
    if current is not None:
        return current
    folder, commit = project.settings.project, ""
    if isinstance(project.lab, ContainerLab):
        label = "org.opencontainers.image.revision"
        commit = project.lab.image_label(project.lab.image, label).removesuffix(source.DIRTY)
    elif not project.lab.is_startable():
        commit = source.before_pull(folder)
    found_here = versions.here(project, commit or source.head(folder))
    return Version("", found_here.commit, found_here.runtime, found_here.image, found_here.environment)


def _show_changes(folder: Path, before: Version, target: str) -> None:
    say(f"now       {before.shown(folder)}")
    if target and target != before.commit:
        name, date = source.described(folder, target)
        say(f"new       commit {name} of {date}")
        for line in source.changes(folder, before.commit, target) if before.commit else ():
            say(f"  {line}")


@dataclass
class Attempt:
    """One try of another version, and what has to be put back where it fails."""

    project: Project
    commit: str  # that is checked out, and to which the checkout returns where this command has moved it
    version: str  # the commit of the running version; another one after a `git pull`
    saved: list[source.Saved] = field(default_factory=list)
    has_moved: bool = False  # the checkout, or it may have
    problems: list[str] = field(default_factory=list)  # what could not be restored

    def __post_init__(self) -> None:
        """Remember what is there now."""
        settings, lab = self.project.settings, self.project.lab
        self.folder = settings.project
        self.marker = settings.state / SWITCHED
        self.marker.unlink(missing_ok=True)
        self.images = ("", "")
        self.remembered = [versions.path_of(settings)]
        if isinstance(lab, ContainerLab):
            self.images = (lab.image_id(lab.image), lab.image_id(lab.previous_image))
            self.remembered.append(lab.healthy)
        self.texts = {path: envfile.read(path) if path.exists() else None for path in self.remembered}
        link = self.folder / environments.LINK
        self.environment = link.resolve() if link.exists() else None
        self.was_link = link.is_symlink()

    def run(self, target: str, arguments: Sequence[str]) -> None:
        """Check the target out, if there is one, and have its own code do the rest.

        Raises:
            RocmlabError: the checkout cannot be moved, or the other version's command failed.
        """
        if target:
            if isinstance(self.project.lab, NativeLab):
                self.project.lab.installer.end()  # it would go on with files of both versions
            self.has_moved = True
            self.saved = source.move(self.folder, target)
            _name(self.saved)
        if code := _rocmlab(self.folder, arguments):
            raise RocmlabError("the new version was not started", f"its own command ended with exit code {code}")

    @contextmanager
    def undone_on_failure(self) -> Iterator[None]:
        """Put everything back as it was if the block fails, but for the lab itself, see `start_again`."""
        try:
            yield
        except BaseException:
            with _uninterrupted():
                self._put_back()
            raise

    def outcome(self, what: str) -> str:
        """Say whether a version is in place again; what is not has been named."""
        if self.problems:
            return f"not all of {what} could be put back"
        return f"{what} is restored"

    def _put_back(self) -> None:
        """Undo every part by itself: one that fails is named, and keeps no other one from being put back."""
        lab = self.project.lab
        if self.marker.exists():
            self._try("the lab could not be stopped", lambda: lab.stop(lambda _: None))
        self._try("the checkout stays where it is", self._move_back)
        self._try("the checkout is not as it was", self._check_files)
        for path, text in self.texts.items():
            self._try(f"{path.name} stays as it is", lambda path=path, text=text: _write_back(path, text))  # type: ignore[misc]
        if isinstance(lab, ContainerLab):
            self._try("the images keep their current names", lambda: lab.name_images(*self.images))
        elif self.environment is not None:
            self._try(".venv stays as it is", self._link_back)
            self._try("unused environments are kept", self._remove_unused)

    def _try(self, what: str, step: Callable[[], None]) -> None:
        try:
            step()
        except (RocmlabError, OSError) as err:
            self.problems.append(what)
            say(f"{what}: {err}")

    def _move_back(self) -> None:
        """Move the checkout back if this command has moved it; another user's move is not undone."""
        if not self.has_moved or not self.commit or source.head(self.folder) == self.commit:
            return
        _name(source.move(self.folder, self.commit))  # what was changed since is named as well
        source.put_back(self.saved)

    def _check_files(self) -> None:
        """Raise RocmlabError where a move has stopped in the middle, and its files could not be put back."""
        if self.has_moved and self.commit and source.head(self.folder) == self.commit:
            source.check_clean(self.folder)

    def _remove_unused(self) -> None:
        _, previous = versions.read(self.project.settings)
        environments.remove_unused(self.folder, {previous.environment} if previous else set())

    def _link_back(self) -> None:
        link = self.folder / environments.LINK
        assert self.environment is not None
        if not link.is_symlink() or (self.was_link and link.resolve() == self.environment):
            return  # it was never switched
        if self.was_link:
            environments.switch(self.folder, self.environment)
            return
        if (moved := environments.moved(self.folder)) is not None:  # the real `.venv` that the link has replaced
            environments.switch(self.folder, moved)

    def start_again(self, was_running: bool) -> None:
        """Start the lab of the previous version, if it was stopped; not where the old one still runs."""
        if not self.marker.exists():
            return
        self.marker.unlink(missing_ok=True)
        if not was_running:
            return
        say("starting the previous version again")
        present = source.head(self.folder)
        if self.version and present != self.version:
            say(f"the checkout is at {present[: source.LETTERS]}; that version's is {self.version[: source.LETTERS]}")
        if self._has_source_of_before():
            if _rocmlab(self.folder, ["up"]):
                self.problems.append("the lab could not be started again")
                say("the lab could not be started again: see the error above; make up")
            return
        # What is kept; `up` would build what is checked out, and replace it.
        try:
            projects.plan(self.folder).lab.start(say, force=True)  # with the current GPUs
        except (RocmlabError, OSError) as err:
            self.problems.append("the lab")
            say(f"the lab could not be started again: {err}")

    def _has_source_of_before(self) -> bool:
        lab = self.project.lab
        if isinstance(lab, ContainerLab):
            return lab.is_prepared()
        return not self.version or source.head(self.folder) == self.version


@contextmanager
def _uninterrupted() -> Iterator[None]:
    """Ignore Ctrl-C, also in what is started: it was handled already."""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before or signal.SIG_DFL)


def _name(saved: Sequence[source.Saved]) -> None:
    for each in saved:
        say(f"your changed {each.path.name} is kept as {each.copy.name}")


def _write_back(path: Path, text: str | None) -> None:
    if text is None:
        path.unlink(missing_ok=True)
    else:
        envfile.write(path, text)


def _rocmlab(folder: Path, arguments: Sequence[str]) -> int:
    """Run a command of the version that is checked out, and return its exit code."""
    kept = {name: value for name, value in os.environ.items() if name not in ("MAKEFLAGS", "MAKELEVEL", "MFLAGS")}
    environment = {**kept, "PYTHONPATH": str(folder / "src")}
    # It answers Ctrl-C itself and puts back what it has begun, however long that takes.
    with looks.changing():
        return process.attach([sys.executable, "-m", "rocmlab", *arguments], env=environment, cwd=folder)


def _after(project: Project, before: Version) -> None:
    """Say what runs now, and make sure that the previous version is known."""
    settings = project.settings
    (settings.state / SWITCHED).unlink(missing_ok=True)
    current, previous = versions.read(settings)
    if current is not None and previous is None and before != current:
        moved = environments.moved(settings.project)
        if moved is not None and before.environment == str(settings.project / environments.LINK):
            before = replace(before, environment=str(moved))
        versions.write(settings, current, before)
        previous = before
    environments.remove_unused(settings.project, {previous.environment} if previous else set())
    if current is not None:
        say(f"\nversion   {current.shown(settings.project)}")
    if previous is not None:
        there = projects.existing(settings.project) or project
        hint = "" if versions.obstacle(there, previous) else "  (make rollback)"
        say(f"previous  {previous.shown(settings.project)}{hint}")


def _switch(consent: stopping.Consent) -> int:
    """Build what is checked out next to the lab that runs, start it in its place, and check it."""
    project, renewed = projects.plan_again(projects.find())
    up.announce(project, say)
    doctor.refuse(doctor.blocking(project))
    lab = project.lab
    if isinstance(lab, NativeLab):
        lab.venv.is_beside = True
    with projects.locked(project, say):
        project = projects.prepare(project, say)
    before = projects.before(project)
    if before is not None and (isinstance(lab, NativeLab) or up.would_stop(project, "up")):
        stop = stopping.Stop("make upgrade", "restarts", ends_runs=True, note=KEPT)
        stopping.check(before.lab, stop, consent, say)
    (project.settings.state / SWITCHED).touch()
    if isinstance(lab, NativeLab):
        _switch_environment(lab, project, before)
    code = up.start(project, "up", consent, renewed)
    if code == 0:
        health.check(project.lab)
        say("the new version works: its server, its panel and its kernels answer")
    return code


def _switch_environment(lab: NativeLab, project: Project, before: Project | None) -> None:
    if before is not None or lab.venv.building is not None:
        (before or project).lab.stop(say)  # also with the same environment: it continues with the code that it has read
    current, previous = versions.read(project.settings)
    real = lab.venv.switch()
    if real is not None and current is not None:  # a `.venv` that was a folder has another path now
        versions.write(project.settings, replace(current, environment=str(real)), previous)


# -- rollback --------------------------------------------------------------------------------------------------------


def _rollback(consent: stopping.Consent) -> int:
    """Run the previous version again; the present one becomes the previous one."""
    project = projects.reopen(projects.find())
    folder = project.settings.project
    current, previous = versions.read(project.settings)
    if current is None or previous is None:
        raise RocmlabError("no previous version found", "no upgrade has been made here", "make status shows both")
    if previous.commit and source.head(folder) != previous.commit:
        source.check_clean(folder)
    if obstacle := versions.obstacle(project, previous):
        raise obstacle
    stop = stopping.Stop("make rollback", "restarts", ends_runs=True, note=KEPT)
    stopping.check(project.lab, stop, consent, say)
    say(f"going back to {previous.shown(folder)}")
    present = source.head(folder)
    attempt = Attempt(project, present, present)
    was_running = project.lab.is_running()
    try:
        with projects.settings_kept_on_failure(project), attempt.undone_on_failure():
            attempt.marker.touch()
            project.lab.stop(say)
            if isinstance(project.lab, ContainerLab) and previous.image:
                project.lab.exchange_images()
            elif previous.environment:
                _use_environment(folder, Path(previous.environment))
            attempt.run(previous.commit if previous.commit != present else "", ["up"])
    except (RocmlabError, OSError, KeyboardInterrupt) as err:
        attempt.start_again(was_running)
        why = str(err) or "it was interrupted"
        fix = "the messages above explain it; make logs"
        outcome = attempt.outcome("the current one")
        raise RocmlabError(f"the previous version does not start, and {outcome}", why, fix, exit_code=1) from err
    attempt.marker.unlink(missing_ok=True)
    versions.write(project.settings, previous, current)
    say(f"\nversion   {previous.shown(folder)}\nprevious  {current.shown(folder)}  (make rollback)")
    return 0


def _use_environment(folder: Path, environment: Path) -> None:
    """Have `.venv` lead to an environment, unless it does."""
    if environment.resolve() != (folder / environments.LINK).resolve():
        environments.switch(folder, environment)
