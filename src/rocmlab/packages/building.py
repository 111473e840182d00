"""Making overlays: each is complete before a kernel can use it, and none is changed afterwards."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime, timezone
from pathlib import Path
from shlex import quote
from typing import Any

from rocmlab.base import files, virtual_environments
from rocmlab.base.errors import RocmlabError
from rocmlab.packages import overlays, protection, requested
from rocmlab.packages.base_packages import Base
from rocmlab.packages.overlays import Place
from rocmlab.packages.requested import Requirement

Say = Callable[[str], None]
LOCK = "lock"
BASE_PATHS = "rocmlab-base.pth"
CONSTRAINTS = "rocmlab-constraints.txt"
CREATE_SECONDS = 300


@contextmanager
def locked(place: Place, say: Say) -> Iterator[int]:
    """Be the only one that changes a kernel's overlays; provide the lock's descriptor.

    Raises:
        RocmlabError: the share cannot be written, is full, or a program did not end in time.
    """
    path = place.folder / LOCK
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o660)
    except OSError as err:
        raise RocmlabError(
            f"packages cannot be installed below {place.folder}",
            err.strerror or str(err),
            "make the share writable for the lab's user: make doctor",
        ) from err
    try:
        files.lock(descriptor, lambda: say(f"waiting for another installation for the kernel {place.kernel}"))
        remove_unused(place)  # what was killed has left it, and a full disk needs the space
        yield descriptor
    except (OSError, subprocess.SubprocessError) as err:
        raise RocmlabError(
            f"the packages of the kernel {place.kernel} were not changed",
            _why(err),
            "fix this (the share's free space: df -h), then repeat the command",
            exit_code=1,
        ) from err
    finally:
        os.close(descriptor)


def _why(err: Exception) -> str:
    """Return an error's reason in one line; copying a folder collects one for each file."""
    if isinstance(err, shutil.Error) and isinstance(err.args[0], list):
        return str(err.args[0][0][-1])
    return str(err)


def new(place: Place) -> Path:
    """Return a folder for an overlay that is not there yet."""
    return place.own / datetime.now(timezone.utc).strftime(overlays.NAME)


def make(place: Place, prefix: Path, base: Base) -> None:
    """Make an overlay without packages, which no kernel uses yet."""
    prefix.parent.mkdir(parents=True, exist_ok=True)
    command = [place.python, "-m", "venv", "--without-pip", str(prefix)]
    done = subprocess.run(command, cwd="/", capture_output=True, text=True, timeout=CREATE_SECONDS, check=False)
    if done.returncode:
        why = (done.stderr or done.stdout).strip()[-300:]
        raise RocmlabError(f"{place.python} cannot make a virtual environment", why, "make up      # repairs the lab")
    _finish(place, prefix, base)


def copy(place: Place, current: Path, prefix: Path, base: Base) -> None:
    """Make an overlay with the packages of another one, which no kernel uses yet."""
    virtual_environments.copy(current, prefix)
    for name in (overlays.IN_USE, overlays.RECORD):
        (prefix / name).unlink(missing_ok=True)
    _finish(place, prefix, base)


def _finish(place: Place, prefix: Path, base: Base) -> None:
    """Write what makes an environment an overlay."""
    lines = [f"import site; site.addsitedir({each!r})" for each in base.sites]
    paths = overlays.site_of(prefix) / BASE_PATHS
    paths.unlink(missing_ok=True)  # of a copy it is the other overlay's own file
    paths.write_text("\n".join(lines) + "\n", encoding="utf-8")
    pins = prefix / CONSTRAINTS
    pins.write_text("\n".join(protection.pins(base.versions)) + "\n", encoding="utf-8")
    (prefix / "pip.conf").write_text(f"[install]\nconstraint = {pins}\n", encoding="utf-8")
    variables = {overlays.SHARE: place.share, overlays.KERNEL: place.kernel, overlays.PYTHON: place.python}
    if hook := overlays.hook_of(sys.executable):
        variables["PIP_PYTHON"] = hook
    words = " ".join(f"{name}={quote(str(value))}" for name, value in variables.items())
    for name in ("pip", "pip3"):
        script = prefix / "bin" / name
        script.unlink(missing_ok=True)  # a copy may be a link to that of another overlay
        script.write_text(f'#!/bin/sh\nexec env {words} {quote(str(prefix / "bin/python"))} -m pip "$@"\n')
        script.chmod(0o755)


def record_of(prefix: Path) -> dict[str, Any]:
    """Return what an overlay was made from; empty where that cannot be read."""
    try:
        found = json.loads((prefix / overlays.RECORD).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def switch(place: Place, prefix: Path, listed: Sequence[Requirement] | None, failed: Iterable[str] = ()) -> None:
    """Replace a kernel's list, and have kernels that start from now on use the overlay that was made for it.

    All that needs space comes first. Where this is killed between the two, the list is the new one: `sync` is reported.

    Args:
        place: of the kernel.
        prefix: the overlay.
        listed: the list; None: the place has none.
        failed: what of it cannot be installed for this image.
    """
    texts = [each.text for each in listed or ()]
    record = {"kernel": place.kernel, "python": place.python, "requirements": texts}
    record["failed"] = [each for each in failed if each in texts]
    files.write_text(prefix / overlays.RECORD, files.to_json(record) + "\n")
    draft = files.draft_path(place.own / overlays.CURRENT)
    draft.symlink_to(prefix.name)
    try:
        if listed is not None:
            requested.write(place.share, place.kernel, listed)
        os.replace(draft, place.own / overlays.CURRENT)
    except OSError:
        draft.unlink(missing_ok=True)
        raise
    remove_unused(place)


def leave(place: Place) -> None:
    """Have kernels that start from now on use the lab's interpreter."""
    (place.own / overlays.CURRENT).unlink(missing_ok=True)


def remove_unused(place: Place) -> None:
    """Remove what an interrupted installation left, and earlier overlays from which no kernel runs.

    The one before the current stays: a kernel may just be starting from it.
    """
    for own in (each for each in place.folder.iterdir() if each.is_dir() and not each.is_symlink()):
        for draft in own.glob(f".{overlays.CURRENT}.*"):
            draft.unlink()
        current = os.readlink(own / overlays.CURRENT) if (own / overlays.CURRENT).is_symlink() else ""
        found = (each for each in own.iterdir() if overlays.is_name(each.name) and not each.is_symlink())
        prefixes = sorted(found)
        complete = [each for each in prefixes if each.name != current and (each / overlays.RECORD).exists()]
        kept = {current, *(each.name for each in complete[-1:])}
        for prefix in prefixes:
            if prefix.name not in kept and not is_used(prefix):
                shutil.rmtree(prefix, ignore_errors=True)


def is_used(prefix: Path) -> bool:
    """Return whether a kernel runs from an overlay, or that is unknown."""
    try:
        with (prefix / overlays.IN_USE).open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False  # no kernel ever did
    except OSError:
        return True
    return False
