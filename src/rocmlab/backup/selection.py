"""Which files belong into a backup, and which are omitted and why."""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rocmlab.backup.model import FILE, FOLDER, LINK, MANIFEST, PREFIX, SETTINGS, Task, is_draft, named
from rocmlab.packages import overlays

LOCKS = "share/leases"
CACHES = ("share/cache", "share/home/.cache")
PACKAGES = f"share/{overlays.CACHE}"
OWN = {  # in the project folder, which may be the notebooks folder
    ".venv": "`make up` installs it again",
    ".venv-test": "`make test` installs it again",
    ".rocmlab": "rocmlab's own state, which `make up` makes again",
    ".git": "`git clone` fetches it again; commits that are nowhere else are not saved",
}
Identity = tuple[int, int]
KINDS = {stat.S_IFSOCK: "a socket", stat.S_IFIFO: "a pipe", stat.S_IFCHR: "a device", stat.S_IFBLK: "a device"}


@dataclass(frozen=True)
class Found:
    """One file, folder or link of the lab."""

    path: str  # in the backup
    source: str
    type: str
    status: os.stat_result

    @property
    def size(self) -> int:
        """The bytes of a file, 0 for others."""
        return self.status.st_size if self.type == FILE else 0


@dataclass
class Selection:
    """What belongs into a backup."""

    found: list[Found] = field(default_factory=list)
    omitted: list[dict[str, Any]] = field(default_factory=list)
    unreadable: list[str] = field(default_factory=list)

    def omit(self, path: str, why: str, files: int = 1, size_bytes: int = 0) -> None:
        """Note that something is omitted."""
        self.omitted.append({"path": path, "why": why, "files": files, "bytes": size_bytes})

    def fail(self, path: str, err: OSError) -> None:
        """Note that something could not be read, which makes the backup incomplete."""
        self.unreadable.append(f"{named(path)}: {err.strerror or err}")
        self.omit(path, f"could not be read: {err.strerror or err}")


def select(task: Task) -> Selection:
    """Look at everything that belongs into a backup; nothing is read but names and sizes."""
    selection = Selection()
    roots = _roots(task, selection)
    skipped = _skipped(task)
    for name, folder in roots.items():
        others = {_identity(other): f"it is saved as {which}" for which, other in roots.items() if which != name}
        before = len(selection.found), len(selection.unreadable)
        _walk(task, selection, name, folder, {**skipped, **others})
        if before == (len(selection.found), len(selection.unreadable)):
            selection.fail(name, OSError(errno.ENOENT, f"{folder} was removed meanwhile"))
    for path in SETTINGS if task.settings else ():
        source = os.path.join(task.settings, path.partition("/")[2])
        try:
            selection.found.append(Found(path, os.path.realpath(source), FILE, os.stat(source)))
        except FileNotFoundError:
            continue
        except OSError as err:
            selection.fail(path, err)
    return selection


def _roots(task: Task, selection: Selection) -> dict[str, str]:
    """Return the folders to save, by their path in the backup: each is there, and none appears twice."""
    roots: dict[str, str] = {}
    seen: dict[Identity, str] = {}
    for name, folder in task.roots.items():
        try:
            status = os.stat(folder)
            if not stat.S_ISDIR(status.st_mode):
                raise NotADirectoryError(errno.ENOTDIR, f"{folder} is not a folder")
        except OSError as err:
            selection.fail(name, err)
            continue
        first = seen.setdefault((status.st_dev, status.st_ino), name)
        if first == name:
            roots[name] = os.path.realpath(folder)
        else:
            selection.omit(name, f"it is the same folder as {first}, which is saved", 0)
    return roots


def _skipped(task: Task) -> dict[Identity | None, str]:
    """Return why some folders are not saved wherever they are found, except as roots."""
    skipped = {_identity(os.path.join(task.settings, name)): why for name, why in OWN.items() if task.settings}
    return {**skipped, **{_identity(str(path)): "a backup in TO" for path in backups(Path(task.backup))}}


def _identity(path: str) -> Identity | None:
    try:
        found = os.lstat(path)
    except OSError:
        return None
    return found.st_dev, found.st_ino


def _walk(task: Task, selection: Selection, root: str, folder: str, skipped: Mapping[Identity | None, str]) -> None:
    """Take a root, and what is in it in the order of names; a folder comes before what it holds."""
    waiting = [(root, folder)]
    while waiting:
        path, source = waiting.pop()
        try:
            status = os.lstat(source)
        except FileNotFoundError:
            continue  # removed since its folder was listed
        except OSError as err:
            selection.fail(path, err)
            continue
        kind = stat.S_IFMT(status.st_mode)
        why = "" if path == root else skipped.get((status.st_dev, status.st_ino), "")
        if why := why or KINDS.get(kind) or _why_not(path, kind, task):
            selection.omit(path, why, *(_measure(source) if kind == stat.S_IFDIR else (1, status.st_size)))
        elif kind != stat.S_IFDIR:
            selection.found.append(Found(path, source, LINK if kind == stat.S_IFLNK else FILE, status))
        else:
            selection.found.append(Found(path, source, FOLDER, status))
            try:
                names = sorted(os.listdir(source), reverse=True)
            except FileNotFoundError:
                continue
            except OSError as err:
                selection.fail(path, err)
                continue
            waiting += [(f"{path}/{name}", os.path.join(source, name)) for name in names]


def _why_not(path: str, kind: int, task: Task) -> str:
    """Return why a path does not belong into a backup; empty: it does, as a user's own file in share/cache."""
    parent, _, name = path.rpartition("/")
    if parent == LOCKS and kind == stat.S_IFREG and name.endswith((".lock", ".json")):
        return "a lock of this machine"
    if kind == stat.S_IFREG and is_draft(name):
        return "a draft of an interrupted restore"
    if path == PACKAGES:
        return "packages of your own, whose list is saved: `rocmlab packages sync` installs them again"
    return "a cache" if parent in CACHES and kind == stat.S_IFDIR and not task.is_all else ""


def _measure(folder: str) -> tuple[int, int]:
    """Return the number and the bytes of the files in a folder."""
    count = size = 0
    for where, _, names in os.walk(folder):
        for name in names:
            try:
                size += os.lstat(os.path.join(where, name)).st_size
                count += 1
            except OSError:
                continue  # removed meanwhile
    return count, size


def backups(folder: Path) -> Iterator[Path]:
    """Yield the backups in a folder, complete or not, newest first."""
    for path in sorted(folder.glob(f"{PREFIX}*"), reverse=True):
        with contextlib.suppress(OSError):  # of another user
            if (path / MANIFEST).is_file():
                yield path
