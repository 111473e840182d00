"""`rocmlab upgrade` and `rocmlab rollback`.

The command itself runs the version that is there, and calls the new version's own code for building and starting. All
that it needs is imported before the checkout moves: what was imported later would be the other version's.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from rocmlab import doctor
from rocmlab.cli import stopping, up
from rocmlab.cli.main import verb_parser
from rocmlab.cli.up import say
from rocmlab.errors import RocmlabError
from rocmlab.stack import busy, envfile, environments, health, source, versions
from rocmlab.stack import project as projects
from rocmlab.stack.container import ContainerLab
from rocmlab.stack.native import NativeLab
from rocmlab.stack.project import Project
from rocmlab.stack.versions import Version

__all__ = ["busy", "main"]  # `busy` is imported here so that it is this version's

SWITCHED = "upgrade-switched"  # in the state folder while the new version is being started
KEPT = "nothing was switched: the lab runs on with the version that it has"


class SwitchFailed(RocmlabError):
    """The other version could not be built or does not work."""


def main(verb: str, arguments: Sequence[str]) -> int:
    """Upgrade or roll back; exit code 1 where the other version does not work and this one runs again."""
    parser = verb_parser(verb)
    stopping.add_options(parser)
    if verb == "upgrade":
        parser.add_argument("--switch", action="store_true", help="build and start what is checked out")
    chosen = parser.parse_args(arguments)
    consent = stopping.consent(chosen)
    if verb == "rollback":
        return _rollback(consent)
    return _switch(consent) if chosen.switch else _upgrade(consent, stopping.given(chosen))


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
    if target and target == before.commit == present and projects.plan(folder).lab.is_prepared():
        say("this is the newest version already, and it is built")
        return 0
    stop = stopping.Stop("make upgrade", "restarts", ends_runs=True, note=KEPT)
    if isinstance(project.lab, NativeLab) or not consent.waits:  # a native lab runs the code that is checked out
        stopping.check(project.lab, stop, consent, say)
    was_running = project.lab.is_running()
    attempt = Attempt(project, before.commit or present)
    try:
        with projects.settings_kept_on_failure(project):
            attempt.run(target if target != present else "", ["upgrade", "--switch", *given])
    except (SwitchFailed, KeyboardInterrupt) as err:
        attempt.start_again(was_running)
        raise RocmlabError(
            "the upgrade did not succeed, and the version before is in place again",
            str(err) or "it was interrupted",
            "the messages above say why; nothing was lost, and `make upgrade` may be repeated",
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
        label = '{{index .Config.Labels "org.opencontainers.image.revision"}}'
        code, found = project.lab.engine("image", "inspect", "--format", label, project.lab.image)
        commit = found.strip() if code == 0 else ""
    elif not project.lab.is_prepared():
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
    commit: str  # of the running version, to which the checkout returns
    saved: list[source.Saved] = field(default_factory=list)

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

    def run(self, target: str, words: Sequence[str]) -> None:
        """Check the target out, if there is one, and have its own code do the rest.

        Raises:
            SwitchFailed: it failed; everything is as it was, but for the lab itself, see `start_again`.
        """
        try:
            if target:
                self.saved = source.move(self.folder, target)
                for each in self.saved:
                    say(f"your changed {each.path.name} is kept as {each.copy.name}")
            if code := _rocmlab(self.folder, words):
                raise SwitchFailed("the new version was not started", f"its own command ended with exit code {code}")
        except BaseException:
            self._put_back()
            raise

    def _put_back(self) -> None:
        lab = self.project.lab
        if self.marker.exists():
            lab.stop(lambda _: None)
        if self.commit and source.head(self.folder) != self.commit:
            self._move_back()
        for path, text in self.texts.items():
            if text is None:
                path.unlink(missing_ok=True)
            else:
                envfile.write(path, text)
        if isinstance(lab, ContainerLab):
            lab.name_images(*self.images)
        elif self.environment is not None:
            self._link_back()
            _, previous = versions.read(self.project.settings)
            environments.remove_unused(self.folder, {previous.environment} if previous else set())

    def _move_back(self) -> None:
        try:
            source.move(self.folder, self.commit)
        except RocmlabError as err:
            say(f"the checkout stays where it is: {err}")
            return
        source.put_back(self.saved)

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
        """Start the lab of the version before, if it was stopped; not where the old one still runs."""
        if not self.marker.exists():
            return
        self.marker.unlink(missing_ok=True)
        if was_running:
            say("starting the version before again")
            lab = self.project.lab
            if isinstance(lab, ContainerLab) and source.head(self.folder) != self.commit:
                lab.start(say)  # the image that is kept; `up` would build the source that could not be moved back
            elif _rocmlab(self.folder, ["up"]):
                say("the lab could not be started again: see the error above; make up")


def _rocmlab(folder: Path, words: Sequence[str]) -> int:
    """Run a command of the version that is checked out, and return its exit code."""
    kept = {name: value for name, value in os.environ.items() if name not in ("MAKEFLAGS", "MAKELEVEL", "MFLAGS")}
    environment = {**kept, "PYTHONPATH": str(folder / "src")}
    sys.stdout.flush()
    command = [sys.executable, "-m", "rocmlab", *words]
    return subprocess.run(command, cwd=folder, env=environment, check=False).returncode


def _after(project: Project, before: Version) -> None:
    """Say what runs now, and make sure that the version before is known."""
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
        say(f"previous  {previous.shown(settings.project)}  (make rollback)")


def _switch(consent: stopping.Consent) -> int:
    """Build what is checked out next to the lab that runs, start it in its place, and check it."""
    project, renewed = projects.plan_anew(projects.find())
    up.announce(project, say)
    doctor.refuse(doctor.blocking(project))
    lab = project.lab
    if isinstance(lab, NativeLab):
        lab.venv.is_beside = True
    with projects.locked(project, say):
        project = projects.prepare(project, say)
    before = projects.before(project)
    if before is not None and up.would_stop(project, "up"):
        stop = stopping.Stop("make upgrade", "restarts", ends_runs=True, note=KEPT)
        stopping.check(before.lab, stop, consent, say)
    (project.settings.state / SWITCHED).touch()
    if isinstance(lab, NativeLab):
        _switch_environment(lab, project, before)
    code = up.start(project, consent, renewed)
    if code == 0:
        health.check(project.lab)
        say("the new version works: its server, its panel and its kernels answer")
    return code


def _switch_environment(lab: NativeLab, project: Project, before: Project | None) -> None:
    if lab.venv.building is not None:
        (before or project).lab.stop(say)
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
        raise RocmlabError("there is no previous version", "no upgrade has been made here", "make status shows both")
    if previous.commit and source.head(folder) != previous.commit:
        source.check_clean(folder)
    if isinstance(project.lab, ContainerLab) and project.lab.image_id(project.lab.previous_image) != previous.image:
        raise RocmlabError(
            "the image of the previous version is not here",
            f"{project.lab.previous_image} was removed, or is another runtime's or backend's",
            f"git checkout {previous.commit[: source.LETTERS] or 'the version'}, then make up, which builds it",
        )
    if not previous.commit:
        raise RocmlabError(
            "the source of the previous version is not known",
            "its folder was not a git clone, and an image or environment of another source would be built again",
            "unpack the previous version's source over this folder, then make up",
        )
    stop = stopping.Stop("make rollback", "restarts", ends_runs=True, note=KEPT)
    stopping.check(project.lab, stop, consent, say)
    say(f"going back to {previous.shown(folder)}")
    attempt = Attempt(project, source.head(folder))
    was_running = project.lab.is_running()
    project.lab.stop(say)
    attempt.marker.touch()
    try:
        with projects.settings_kept_on_failure(project):
            if isinstance(project.lab, ContainerLab) and previous.image:
                project.lab.exchange_images()
            elif previous.environment:
                _use_environment(folder, Path(previous.environment))
            attempt.run(previous.commit if previous.commit != source.head(folder) else "", ["up"])
    except (RocmlabError, KeyboardInterrupt) as err:
        attempt.start_again(was_running)
        why = str(err) or "it was interrupted"
        fix = "the messages above say why; make logs"
        raise RocmlabError(
            "the previous version does not start, and the present one is in place again", why, fix, exit_code=1
        ) from err
    attempt.marker.unlink(missing_ok=True)
    versions.write(project.settings, previous, current)
    say(f"\nversion   {previous.shown(folder)}\nprevious  {current.shown(folder)}  (make rollback)")
    return 0


def _use_environment(folder: Path, environment: Path) -> None:
    """Have `.venv` lead to an environment, unless it does; where it is gone, the version makes its own."""
    if environment.is_dir() and environment.resolve() != (folder / environments.LINK).resolve():
        environments.switch(folder, environment)
