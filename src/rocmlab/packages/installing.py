"""Adding, removing and synchronising the packages of a kernel, without hiding the lab's frameworks.

uv or pip install into a copy of the overlay, what came is examined, and only then kernels use the copy. So whatever
fails or is interrupted, the packages before stay as they are.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from pathlib import Path

from rocmlab.base import formatting
from rocmlab.base.errors import RocmlabError
from rocmlab.packages import base_packages, building, companions, declared, inventory, overlays, protection, requested
from rocmlab.packages.base_packages import Base
from rocmlab.packages.building import Say
from rocmlab.packages.overlays import Place
from rocmlab.packages.requested import Requirement

PROGRAMS = (
    Path(sys.prefix, "lib/rocmlab/install.py"),  # in an image
    Path(__file__).parents[3] / "docker/build/install.py",  # in a native lab
)
UV = "ROCMLAB_UV"
NO_CONSTRAINTS = "/etc/rocmlab-constraints.txt"  # of an image: every package of TensorFlow's interpreter
BOUNDS = "rocmlab-bounds.txt"  # in an overlay that is being made: versions that must not change
KERNEL = "ipykernel"
CHECK_SECONDS = 120
FAILURE = re.compile(r"^(ERROR|error)\b|No solution found")
NOISE = re.compile(r"To fix this|\d\. |ERROR: ResolutionImpossible|pip installs, not uv")
NOT_INHERITED = (
    *("PIP_PYTHON", "PIP_TARGET", "PIP_PREFIX", "PIP_ROOT", "PIP_USER", "_PIP_RUNNING_IN_SUBPROCESS"),
    *("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV"),
)


@dataclass
class Outcome:
    """What an installation changed."""

    prefix: Path | None  # the overlay in use now; None: none
    changed: dict[str, str] = field(default_factory=dict)  # versions that are new in the overlay
    hides: dict[str, tuple[str, str]] = field(default_factory=dict)  # the lab's version and the user's
    breaks: list[str] = field(default_factory=list)  # what does not go together now, a sentence each
    failed: dict[str, str] = field(default_factory=dict)  # requirements that cannot be installed, and why
    waiting: tuple[str, ...] = ()  # requirements that `sync` has not installed for this image yet


def hidden(own: Mapping[str, str], labs: Mapping[str, str]) -> dict[str, tuple[str, str]]:
    """Return of which packages an overlay has another version: the lab's and the overlay's."""
    return {name: (labs[name], version) for name, version in own.items() if labs.get(name, version) != version}


def add(place: Place, wanted: Sequence[Requirement], say: Say, options: Sequence[str] = ()) -> Outcome:
    """Install packages, and note them in the list.

    Args:
        place: of the kernel.
        wanted: what to install.
        say: gets a line of progress.
        options: of pip, for this installation alone, such as `--upgrade`.

    Raises:
        RocmlabError: nothing was changed, and why.
    """
    with building.locked(place, say) as lock:
        listed = requested.read(place.share, place.kernel)
        current, base = place.current(), base_packages.read(place.python)
        _check_synchronised(place, current, listed)
        with _Work(place, base, lock) as work:
            work.begin(current)
            failed = set(inventory.failed(current)) - {each.text for each in wanted}
            outcome = work.install(wanted, options, listed=[each for each in listed if each.text not in failed])
            kept = requested.with_added(listed, map(requested.without_secrets, work.named(wanted)))
            building.switch(place, work.scratch, kept, failed)
    return outcome


def remove(place: Place, names: Sequence[str], say: Say) -> Outcome:
    """Remove packages from the list, by name or as they are listed, and with them what nothing else in it needs.

    Raises:
        RocmlabError: nothing was changed, and why.
    """
    with building.locked(place, say) as lock:
        listed = requested.read(place.share, place.kernel)
        current, base = place.current(), base_packages.read(place.python)
        has = base_packages.installed(overlays.site_of(current)) if current else {}
        gone = []
        for name in names:
            found = [each for each in listed if each.text == name or each.name == requested.normal(name)]
            if not found:
                raise _not_listed(requested.normal(name), has, base)
            if file := next((each.file for each in found if each.declared_in), ""):
                raise _not_removed(found[0].name, f"{file} declares it", "remove it there, then: rocmlab packages sync")
            gone += found
        kept = tuple(each for each in listed if each not in gone)
        if not kept or current is None:
            requested.write(place.share, place.kernel, kept)
            building.leave(place)
            building.remove_unused(place)
            return Outcome(None, waiting=tuple(each.text for each in kept))
        with _Work(place, base, lock) as work:
            work.begin()
            failed = inventory.failed(current)
            outcome = work.install([each for each in kept if each.text not in failed], keep=has, is_cached=True)
            building.switch(place, work.scratch, kept, failed)
    return outcome


def sync(place: Place, say: Say, wanted: Sequence[Requirement] = ()) -> Outcome:
    """Install the list for the present interpreter; what cannot be installed is reported, and stays in the list.

    Args:
        place: of the kernel.
        say: gets a line of progress.
        wanted: what is declared for this kernel; the list has this afterwards, and no earlier declaration.

    Raises:
        RocmlabError: nothing was changed, and why.
    """
    with building.locked(place, say) as lock:
        before = requested.read(place.share, place.kernel)
        listed = declared.merged(before, wanted)
        if not listed:
            if before:
                requested.write(place.share, place.kernel, ())
            building.leave(place)
            return Outcome(None)
        with _Work(place, base_packages.read(place.python), lock) as work:
            work.begin()
            try:
                outcome = work.install(listed, is_cached=True)
            except RocmlabError:
                if len(listed) == 1:
                    raise
                outcome = Outcome(None)
            if not outcome.prefix:
                work.begin()  # the first attempt may have left something
                outcome = _one_by_one(work, listed, say)
                _check_not_less(place.current(), listed, outcome.failed)
            kept = [requested.without_secrets(each) for each in work.named(listed)]
            building.switch(place, work.scratch, kept, map(requested.without_password, outcome.failed))
    return outcome


def exactly(place: Place, versions: Mapping[str, str], say: Say) -> Path:
    """Return an overlay with these versions and nothing else, which is made if it is not there yet.

    Raises:
        RocmlabError: some cannot be installed; each is named.
    """
    with building.locked(place, say) as lock:
        if (current := place.current()) and base_packages.installed(overlays.site_of(current)) == versions:
            return current
        say(f"installing {len(versions)} recorded versions for the kernel {place.kernel.partition('@')[0]}")
        with _Work(place, base_packages.read(place.python), lock) as work:
            work.begin()
            index = companions.index_of(place.python)
            kinds = {name: name in protection.COMPANIONS and index is not None for name in versions}
            groups = [
                [*((companions.ALONE, "--index-url", index) if is_companion and index else ()), *names]
                for is_companion in (False, True)
                if (names := [f"{name}=={versions[name]}" for name, kind in kinds.items() if kind == is_companion])
            ]
            failed = [line for words in groups for line in _install_exactly(work, words)]
            has = base_packages.installed(overlays.site_of(work.scratch))
            if not failed:
                failed = [
                    f"{name}: {has.get(name)} came instead" for name in versions if versions[name] != has.get(name)
                ]
            if failed:
                raise RocmlabError(
                    f"{formatting.plural(len(failed), 'recorded version')} cannot be installed",
                    "\n".join(failed),
                    "name an index that has them: --index-url in pip.conf (PIP_CONFIG); nothing was changed",
                    exit_code=1,
                )
            building.switch(place, work.scratch, None)
            return work.scratch


def _install_exactly(work: _Work, words: Sequence[str]) -> list[str]:
    """Install versions without what they require; return why each that cannot be installed is not, a line each."""
    try:
        work.run(["--no-deps", *words], is_cached=True)
        return []
    except RocmlabError as err:
        pins = [each for each in words if "==" in each]
        if len(pins) == 1:
            return [f"{pins[0]}: {err.problem.why.splitlines()[0]}"]
    options = [each for each in words if each not in pins]
    return [line for pin in pins for line in _install_exactly(work, [*options, pin])]


def _one_by_one(work: _Work, listed: Iterable[Requirement], say: Say) -> Outcome:
    """Install what can be installed of a list."""
    outcome, done = Outcome(work.scratch), list[Requirement]()
    for each in listed:
        before = work.scratch
        try:
            work.begin(before)
            found = work.install([each], listed=done, is_cached=True)
        except RocmlabError as err:
            shutil.rmtree(work.scratch, ignore_errors=True)
            work.scratch = before
            outcome.failed[each.text] = err.problem.why or err.problem.what
            say(f"{each.text} is not installed: {outcome.failed[each.text].splitlines()[0]}")
            continue
        shutil.rmtree(before, ignore_errors=True)
        done.append(each)
        changed, hides = {**outcome.changed, **found.changed}, {**outcome.hides, **found.hides}
        outcome = Outcome(work.scratch, changed, hides, found.breaks, outcome.failed)
    return outcome


class _Work:
    """Overlays that are being made; each is removed unless it comes into use."""

    scratch: Path  # the last one

    def __init__(self, place: Place, base: Base, lock: int) -> None:
        self.place = place
        self.base = base
        self.lock = lock  # which what installs has as well: a uv whose parent was killed still writes
        self._made: list[Path] = []

    def __enter__(self) -> _Work:
        return self

    def __exit__(self, *_: object) -> None:
        current = self.place.current()
        for each in self._made:
            if current is None or current.name != each.name:
                shutil.rmtree(each, ignore_errors=True)

    def begin(self, source: Path | None = None) -> None:
        """Make an overlay with the packages of another one; None: without packages."""
        self.scratch = building.new(self.place)
        self._made.append(self.scratch)
        if source:
            building.copy(self.place, source, self.scratch, self.base)
        else:
            building.make(self.place, self.scratch, self.base)

    @property
    def site(self) -> Path:
        """Where its packages are."""
        return overlays.site_of(self.scratch)

    def install(
        self,
        wanted: Sequence[Requirement],
        options: Sequence[str] = (),
        *,
        listed: Sequence[Requirement] = (),
        keep: Mapping[str, str] | None = None,
        is_cached: bool = False,
    ) -> Outcome:
        """Install, and examine what came.

        Args:
            wanted: what to install; neighbours with the same options are one installation, for options of pip are for
                everything in it.
            options: of pip, for all of it.
            listed: what else the user wants, in versions that must go with it.
            keep: versions that must not change.
            is_cached: whether what the cache has is enough; what it lacks comes from the index.
        """
        before = base_packages.installed(self.site)
        base_packages.write_stubs(self.base, self.site, before)
        conflicts = self._conflicts()
        for own, group in groupby(wanted, lambda each: each.options):
            together = tuple(group)
            names = {each.name for each in together}
            bounds = [each.bound for each in (*listed, *wanted) if each.name not in names]
            if keep is not None:
                bounds = [f"{name}=={version}" for name, version in keep.items()]
            pins = self.scratch / BOUNDS
            pins.write_text("\n".join(bounds) + "\n", encoding="utf-8")
            named = (word for each in together for word in each.arguments)
            self.run([*options, *own, "--constraint", str(pins), *named], is_cached=is_cached)
        after = base_packages.installed(self.site)
        self._examine(_changed(before, after), {each.name for each in wanted})
        after = base_packages.installed(self.site)  # a companion may be of another build now
        breaks = sorted(self._conflicts() - conflicts)
        base_packages.remove_stubs(self.site)
        changed = _changed(before, after)
        self._check_start(changed, breaks)
        return Outcome(self.scratch, changed, hidden(changed, self.base.versions), breaks)

    def named(self, wanted: Iterable[Requirement]) -> list[Requirement]:
        """Return requirements with the names of what was installed from their paths and addresses."""
        names = base_packages.by_origin(self.site)
        return [replace(each, package=names.get(each.origin, each.package)) for each in wanted]

    def _examine(self, changed: dict[str, str], names: set[str]) -> None:
        lab = self.base.versions
        if found := protection.replaced(changed, lab):
            shown = ", ".join(f"{name} {changed[name]}" for name in found)
            raise _rejected(f"{shown} would hide the lab's own, which is built for its GPUs")
        if found := protection.second(changed, names, lab):
            raise _rejected(
                f"{', '.join(found)} would be installed because one of them needs it; this kernel has none, and the "
                "index has builds for other hardware",
                "use the kernel that has it (packages --kernel torch|tensorflow), or name it yourself",
            )
        wrong = companions.settle(changed, self.base, self.scratch, self.run)
        if wrong:
            raise _rejected("\n".join(wrong), companions.FIX)

    def _check_start(self, changed: Mapping[str, str], breaks: Iterable[str]) -> None:
        """Reject versions with which no kernel would start: from there no user could correct it."""
        if KERNEL not in self.base.versions:
            return
        declared = next((line for line in breaks if line.startswith(f"{KERNEL} ")), "")
        if why := declared or companions.error_of(self.scratch, f"import {KERNEL}.kernelapp"):
            names = hidden(changed, self.base.versions) or changed
            shown = ", ".join(f"{name} {changed[name]}" for name in sorted(names))
            raise _rejected(f"the kernel would not start with {shown}: {why}")

    def run(self, arguments: Sequence[str], *, is_cached: bool = False) -> None:
        """Run `pip install` with these arguments, by uv where it can.

        Raises:
            RocmlabError: it failed; its output is the reason.
        """
        program = next((each for each in PROGRAMS if each.exists()), None)
        python = str(self.scratch / "bin/python")
        command = [python, str(program)] if program else [python, "-m", "pip", "install"]
        arguments = [each for each in arguments if program or each != companions.ALONE]
        pins = str(self.scratch / building.CONSTRAINTS)
        command += ["--disable-pip-version-check", "--no-input", "--no-compile", "--constraint", pins, *arguments]
        environment = variables(self.place)
        attempts = [{"ROCMLAB_OFFLINE": "1"}, {}] if is_cached and program else [{}]
        for more in attempts:
            done = subprocess.run(
                command,
                env={**environment, **more},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                errors="replace",
                check=False,
                pass_fds=(self.lock,),
            )
            if not done.returncode:
                return
        ended = f"pip was ended by signal {-done.returncode}\n" if done.returncode < 0 else ""
        raise RocmlabError(
            "the packages cannot be installed",
            ended + reason(done.stdout),
            "fix this, or choose other versions; nothing was changed",
            exit_code=1,
        )

    def _conflicts(self) -> set[str]:
        """Return which packages do not go with each other, the lab's included, a sentence each."""
        python = str(self.scratch / "bin/python")
        uv = Path(os.environ.get(UV) or "/opt/uv", "bin/uv")
        command = [python, "-m", "pip", "check"]
        if os.access(uv, os.X_OK):
            command = [str(uv), "pip", "check", "--no-config", "--python", python]
        environment = variables(self.place)
        done = subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=CHECK_SECONDS, check=False
        )
        lines = (done.stdout + done.stderr).replace("`", "").splitlines()
        return {line.removeprefix("The package ").rstrip(".") for line in lines if " require" in line}


def variables(place: Place) -> dict[str, str]:
    """Return the environment of uv and pip: the user's settings, without what would install elsewhere."""
    found = {name: text for name, text in os.environ.items() if name not in NOT_INHERITED}
    if found.get("PIP_CONSTRAINT") == NO_CONSTRAINTS:  # our own pins take its place, and allow newer packages
        del found["PIP_CONSTRAINT"]
    return {**found, "PIP_CACHE_DIR": str(place.share / overlays.CACHE / "wheels")}


def reason(output: str) -> str:
    """Return what of uv's and pip's output says why it failed."""
    lines = [line.rstrip() for line in output.splitlines() if line.strip() and not NOISE.match(line)]
    first = next((number for number, line in enumerate(lines) if FAILURE.search(line)), max(0, len(lines) - 8))
    return "\n".join(lines[first : first + 8])


def _changed(before: dict[str, str], after: dict[str, str]) -> dict[str, str]:
    return {name: version for name, version in after.items() if before.get(name) != version}


def _check_not_less(current: Path | None, listed: Sequence[Requirement], failed: Mapping[str, str]) -> None:
    """Reject an overlay that lacks what the one in use has, or that has nothing."""
    works = {*building.record_of(current).get("requirements", ())} - {*inventory.failed(current)} if current else set()
    if (lost := [each for each in failed if each in works]) or len(failed) == len(listed):
        raise RocmlabError(
            f"{', '.join(lost or failed)} cannot be installed",
            "\n".join(f"{text}: {why}" for text, why in failed.items() if not lost or text in lost),
            "fix this, then repeat the command; until then the packages that are installed stay in use",
            exit_code=1,
        )


def _check_synchronised(place: Place, current: Path | None, listed: Sequence[Requirement]) -> None:
    """Reject an addition to an overlay that was made from another list: the result would pass for all of the list."""
    if not inventory.is_made_of(current, listed):
        has = ", ".join(building.record_of(current).get("requirements", ())) if current else ""
        raise RocmlabError(
            f"the packages of the kernel {place.kernel} are not installed for this image yet",
            f"the list has {', '.join(each.text for each in listed) or 'nothing'}, the image {has or 'nothing'}",
            f"rocmlab packages sync --kernel {place.kernel}",
        )


def _rejected(why: str, fix: str = "choose other versions; nothing was changed") -> RocmlabError:
    return RocmlabError("the packages were not installed", why, fix, exit_code=1)


def _not_listed(name: str, has: dict[str, str], base: Base) -> RocmlabError:
    if name in has:
        why, fix = "another package of the list needs it", "remove that one: rocmlab packages list"
    elif name in base.versions:
        why, fix = "it belongs to the lab, and stays", "rocmlab packages list shows what is yours"
    else:
        why, fix = "it is not in the list", "rocmlab packages list"
    return _not_removed(name, why, fix)


def _not_removed(name: str, why: str, fix: str) -> RocmlabError:
    return RocmlabError(f"{name} cannot be removed", why, fix, exit_code=1)
