"""Which files belong into a backup, and which are omitted and why."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rocmlab.stack.backup.model import FILE, FOLDER, LINK, MANIFEST, PREFIX, SETTINGS, Task

LOCKS = "share/leases"
CACHES = ("share/cache", "share/home/.cache")
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
        self.unreadable.append(f"{path}: {err.strerror or err}")
        self.omit(path, f"could not be read: {err.strerror or err}")


def select(task: Task) -> Selection:
    """Look at everything that belongs into a backup; nothing is read but names and sizes."""
    selection = Selection()
    skipped = {_identity(task.backup)}
    roots = {name: os.path.realpath(folder) for name, folder in task.roots.items()}
    if task.settings:  # NOTEBOOKS_DIR may be the project itself
        skipped |= {
            _identity(os.path.join(task.settings, name)) for name in (".venv", ".venv-test", ".rocmlab", ".git")
        }
    for name, folder in roots.items():
        others = {_identity(other) for which, other in roots.items() if which != name}
        _walk(task, selection, name, folder, (skipped | others) - {None})
    for path in SETTINGS if task.settings else ():
        _settings(selection, path, os.path.join(task.settings, path.partition("/")[2]))
    return selection


def _identity(path: str) -> tuple[int, int] | None:
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_dev, found.st_ino


def _settings(selection: Selection, path: str, source: str) -> None:
    try:
        status = os.stat(source)
    except FileNotFoundError:
        return
    except OSError as err:
        selection.fail(path, err)
        return
    selection.found.append(Found(path, os.path.realpath(source), FILE, status))


def _walk(task: Task, selection: Selection, path: str, source: str, skipped: set[tuple[int, int] | None]) -> None:
    """Take a folder and what is in it, in the order of names; a folder comes before what it holds."""
    waiting = [(path, source)]
    while waiting:
        path, source = waiting.pop()
        try:
            status = os.lstat(source)
        except FileNotFoundError:
            continue  # removed since its folder was listed
        except OSError as err:
            selection.fail(path, err)
            continue
        if (status.st_dev, status.st_ino) in skipped:
            continue
        kind = stat.S_IFMT(status.st_mode)
        if why := KINDS.get(kind) or _why_not(path, kind, task):
            selection.omit(path, why, *(_measure(source) if kind == stat.S_IFDIR else (1, status.st_size)))
        elif kind != stat.S_IFDIR:
            selection.found.append(Found(path, source, LINK if kind == stat.S_IFLNK else FILE, status))
        else:
            selection.found.append(Found(path, source, FOLDER, status))
            waiting += _listed(selection, path, source)


def _why_not(path: str, kind: int, task: Task) -> str:
    """Return why a file or folder does not belong into a backup, empty if it does.

    What a user put directly into `share/cache` or `share/leases` does.
    """
    parent, _, name = path.rpartition("/")
    if parent == LOCKS and kind == stat.S_IFREG and name.endswith((".lock", ".json")):
        return "a lock of this machine"
    return "a cache" if parent in CACHES and kind == stat.S_IFDIR and not task.is_all else ""


def _listed(selection: Selection, path: str, source: str) -> list[tuple[str, str]]:
    try:
        names = sorted(os.listdir(source), reverse=True)
    except FileNotFoundError:
        return []
    except OSError as err:
        selection.fail(path, err)
        return []
    return [(f"{path}/{name}", os.path.join(source, name)) for name in names]


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
        if (path / MANIFEST).is_file():
            yield path
