"""Removing old runs: finished ones of rocmlab's own, in which nothing was saved since.

This runs on the host for a native lab, and in a container of the lab's image where the share is a volume.
"""

from __future__ import annotations

import errno
import fcntl
import os
import re
import shutil
import stat
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Any

from rocmlab.base.errors import RocmlabError
from rocmlab.stack import runs_under_way

NAME = re.compile(r"\d{8}T\d{6}Z-[^/]+")
AGE = re.compile(r"(\d+)\s*([dhw])")
SECONDS = {"h": 3600.0, "d": 86400.0, "w": 7 * 86400.0}
SLACK_SECONDS = 60.0  # between the journal's last line and the last file of a run
ASIDE = ".rocmlab-removed"  # in the folder of runs: what is being removed, and nothing else
ENDED = ("ok", "failed")  # an interrupted run can be continued


@dataclass(frozen=True)
class OldRun:
    """One run folder that is old enough."""

    name: str
    finished: str  # UTC, ISO 8601
    size: int  # bytes
    files: int
    kept_because: str = ""  # empty: it can be removed, or was


def age_seconds(text: str) -> float:
    """Return an age (30d, 12h, 4w) in seconds; raise RocmlabError if it is not one."""
    match = AGE.fullmatch(text.strip())
    if match is None:
        raise RocmlabError(
            f"RUNS={text} is not an age", "it is a number of days, weeks or hours: 30d, 4w, 12h", "make clean RUNS=30d"
        )
    return int(match[1]) * SECONDS[match[2]]


def find(runs: Path, older_than_seconds: float, now: float | None = None) -> list[OldRun]:
    """Return the finished runs in a folder that are older than that, oldest first; nothing is changed.

    Not listed: what is not a run folder of rocmlab, is under way, was interrupted, or waits for its exported parts.
    A run in which a file changed after its end is listed with the reason why it stays.
    """
    now = time.time() if now is None else now
    found = []
    for path in sorted(runs.iterdir()) if runs.is_dir() and not runs.is_symlink() else ():
        end = _finished(path)
        if end is None or now - _unix(end) <= older_than_seconds:
            continue
        with _held(path) as is_held:  # else it is under way again
            found += [_measured(path, end)] if is_held else []
    return found


def remove(runs: Path, names: Sequence[str], older_than_seconds: float) -> list[OldRun]:
    """Remove these runs, each only if `find` still lists it as removable; return them, with why one is not removed."""
    removable = {run.name: run for run in find(runs, older_than_seconds) if not run.kept_because}
    removed = []
    with suppress(OSError):
        for left in os.scandir(_aside(runs)):  # of a removal that was killed
            shutil.rmtree(left, ignore_errors=True)
    for name in names:
        run = removable.get(name)
        if run is None:
            continue
        with _held(runs / name) as is_held:
            if is_held:
                removed.append(replace(run, kept_because=_remove(runs / name)))
    with suppress(OSError):  # something is left in it, or there was nothing to remove
        os.rmdir(runs / ASIDE)
    return removed


def _remove(folder: Path) -> str:
    """Remove a run; return why that failed, empty if it did not: half a run is never left where runs are listed."""
    aside = folder.parent / ASIDE / folder.name
    try:
        _make_writable(folder)
        _aside(folder.parent)
        folder.rename(aside)
    except OSError as err:
        return f"it cannot be removed: {err.strerror}"
    try:
        shutil.rmtree(aside)
    except OSError as err:
        return f"it cannot be removed completely: {err.strerror}; the rest is in {ASIDE} next to the runs"
    return ""


def _aside(runs: Path) -> Path:
    """Return the folder for what is being removed, and make it; raise OSError where it is a link."""
    aside = runs / ASIDE
    aside.mkdir(mode=0o700, exist_ok=True)
    if aside.is_symlink():
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(aside))
    return aside


def _make_writable(folder: Path) -> None:
    """Let this user empty a run's folders, some of which a job may have made read-only; root needs no mode for that.

    Raises:
        PermissionError: one belongs to another user.
    """
    if os.geteuid() == 0:
        return
    folder.chmod(0o700)
    for where, names, _ in os.walk(folder):  # which lists a folder only after it was made readable
        for path in (Path(where, name) for name in names):
            status = path.lstat()
            if not stat.S_ISDIR(status.st_mode):
                continue
            if status.st_uid == os.geteuid():
                path.chmod(0o700)
            elif not os.access(path, os.W_OK | os.X_OK):
                raise PermissionError(errno.EACCES, f"{path.relative_to(folder)} belongs to another user")


def _finished(folder: Path) -> str | None:
    """Return when a run folder's run ended; None if it did not, or if this is not a run folder of rocmlab's."""
    try:
        status = folder.lstat()
        journal = (folder / "journal.jsonl").lstat()
    except OSError:
        return None
    if not NAME.fullmatch(folder.name) or not stat.S_ISDIR(status.st_mode) or not stat.S_ISREG(journal.st_mode):
        return None
    last: dict[str, Any] = {}
    try:
        for event in runs_under_way.events(folder / "journal.jsonl"):
            if str(event.get("event", "")).startswith("run "):
                last = event
    except OSError:
        return None
    if last.get("event") != "run finished" or last.get("status") not in ENDED or not isinstance(last.get("time"), str):
        return None
    try:
        _unix(last["time"])
    except ValueError:
        return None
    return str(last["time"])


def _unix(text: str) -> float:
    return datetime.fromisoformat(text.replace("Z", "+00:00")).timestamp()


@contextmanager
def _held(folder: Path) -> Iterator[bool]:
    """Take the lock on a run's journal, which its runner has, and which `--resume` would take."""
    try:
        try:  # for writing, as NFS wants it for such a lock
            descriptor = os.open(folder / "journal.jsonl", os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
        except OSError:  # the file, or what it is mounted from, is for reading alone
            descriptor = os.open(folder / "journal.jsonl", os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        yield False
        return
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        yield False
    else:
        yield True
    finally:
        os.close(descriptor)


def _measured(folder: Path, end: str) -> OldRun:
    """Return a run's size, and why it stays: the time of a folder reveals added files with an old time."""
    size = files = 0
    is_newer = folder.lstat().st_mtime > _unix(end) + SLACK_SECONDS
    changed = "a file was added or removed after the run's end" if is_newer else ""
    for where, folders, names in os.walk(folder):
        for name in (*names, *folders):
            path = os.path.join(where, name)
            try:
                status = os.lstat(path)
            except OSError as err:
                changed = f"{os.path.relpath(path, folder)}: {err.strerror}"
                continue
            size += status.st_size
            files += name in names
            if status.st_mtime > _unix(end) + SLACK_SECONDS:
                changed = f"{os.path.relpath(path, folder)} was changed after the run's end"
    return OldRun(folder.name, end, size, files, changed)
