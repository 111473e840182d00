"""What a backup consists of, and what it is made from."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from dataclasses import MISSING, asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from rocmlab.base import safe
from rocmlab.base.errors import RocmlabError

FORMAT = 1
MANIFEST = "manifest.jsonl"
SUMS = "SHA256SUMS"
PARTIAL = ".partial"  # how the name of an incomplete backup ends
PREFIX = "rocmlab-"
SETTINGS = ("settings/.env", "settings/.rocmlab/written.json")
FILE, FOLDER, LINK = "file", "folder", "link"
MAX_SHOWN = 300  # characters of a name that is shown with escapes
DRAFT = ".rocmlab-restore-"  # how the name of a file begins while it is restored; then hexadecimal digits


def is_draft(name: str) -> bool:
    """Return whether a file's name is that of a draft of a restore."""
    return re.fullmatch(re.escape(DRAFT) + r"[0-9a-f]+", name) is not None


def named(path: str) -> str:
    """Return a path as a line shows it: in quotes, with escapes, if a terminal would obey it or cannot show it."""
    return path if path.isprintable() else safe.shown(path, MAX_SHOWN)


@dataclass(frozen=True)
class Task:
    """What to back up or to restore; it travels into a container as JSON."""

    kind: str  # create or restore
    backup: str  # create: the folder that holds backups; restore: one backup
    shown: str  # the same folder, as the user knows it
    roots: Mapping[str, str]  # share, notebooks: the folder of each; empty where there should be one and is none
    project: str = ""  # the project folder as the user knows it
    settings: str = ""  # the project folder as this process sees it; empty: without settings
    owner: tuple[int, int] | None = None  # uid and gid of what is written; None: this process's
    is_all: bool = False  # caches and data sets too
    data_sets: Mapping[str, tuple[int, str]] = field(default_factory=dict)  # path: size in bytes and SHA-256

    def to_json(self) -> str:
        """Return it as JSON."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Task:
        """Return a task from JSON; raise RocmlabError if it is not one."""
        try:
            found = json.loads(text)
            if found["kind"] not in ("create", "restore"):
                raise ValueError(found["kind"])
            owner = found.pop("owner")
            sets = {path: (int(size), str(digest)) for path, (size, digest) in found.pop("data_sets").items()}
            return cls(**found, owner=(int(owner[0]), int(owner[1])) if owner else None, data_sets=sets)
        except (ValueError, KeyError, TypeError, AttributeError) as err:
            raise RocmlabError("--job is not a backup task", str(err), "make backup TO=/path/to/folder") from err


@dataclass(frozen=True)
class Entry:
    """One file, folder or symbolic link of a backup."""

    path: str  # share/runs/…: the name of the root first
    type: str  # file, folder or link
    mode: int = 0
    mtime_ns: int = 0
    part: str = ""  # the tar file that has it
    offset: int = 0  # of its header there, in bytes
    size: int = 0  # in bytes; 0 for folders and links
    sha256: str = ""  # of a file's content
    target: str = ""  # of a link
    was_changing: bool = False  # it was written to while it was read, each time
    ctime_ns: int = 0  # at the source, by which a later attempt recognises an unchanged file
    inode: int = 0  # at the source

    def is_still(self, found: os.stat_result) -> bool:
        """Return whether the source has not changed since this entry was made."""
        seen = (found.st_size if self.type == FILE else 0, found.st_mtime_ns, found.st_ctime_ns, found.st_ino)
        return seen == (self.size, self.mtime_ns, self.ctime_ns, self.inode) and not self.was_changing


@dataclass
class Manifest:
    """The header of a backup."""

    header: dict[str, Any]
    entries: dict[str, Entry] = field(default_factory=dict)  # by path; the latest line of a path counts
    parts: dict[str, str] = field(default_factory=dict)  # the SHA-256 of each part, by name
    omitted: list[dict[str, Any]] = field(default_factory=list)  # path, why, files, bytes
    length: int = 0  # in bytes, without what a crash left incomplete


def read(folder: Path, *, shown: str = "") -> Manifest:
    """Read a backup's manifest, without what a crash left incomplete at its end; an error if it is damaged.

    An entry counts from the line of its part on: a crash may have cut that off, and then the part is removed.
    """
    path, shown = folder / MANIFEST, shown or str(folder)
    try:
        data = path.read_bytes()
        first, *lines = data[: data.rfind(b"\n") + 1].splitlines(keepends=True)
        manifest = Manifest(dict(json.loads(first)), length=len(first))
        waiting: list[Entry] = []
        length = len(first)
        for line in lines:
            _take(manifest, json.loads(line), waiting)
            length += len(line)
            manifest.length = manifest.length if waiting else length
    except (OSError, ValueError, LookupError, TypeError, AttributeError) as err:
        raise damaged(f"{shown}/{MANIFEST}", f"{type(err).__name__}: {err}") from err
    if manifest.header.get("format") != FORMAT:
        raise RocmlabError(
            f"{shown} has the backup format {manifest.header.get('format')!r}",
            f"this rocmlab reads format {FORMAT}",
            "use the rocmlab that made the backup, or extract it with tar (docs/backup.md)",
        )
    return manifest


def header(folder: Path) -> dict[str, Any]:
    """Read the first line of a backup's manifest alone; an error if it is damaged."""
    try:
        with (folder / MANIFEST).open("rb") as file:
            return dict(json.loads(file.readline()))
    except (OSError, ValueError, TypeError) as err:
        raise damaged(f"{named(str(folder))}/{MANIFEST}", f"{type(err).__name__}: {err}") from err


def _take(manifest: Manifest, line: dict[str, Any], waiting: list[Entry]) -> None:
    """Take one line; `waiting` has the entries whose part has had no line yet."""
    if "entry" in line:
        entry = Entry(**line["entry"])
        _check_types(entry)
        waiting.append(entry)
    elif "part" in line:
        manifest.parts[str(line["part"])] = str(line["sha256"])
        manifest.entries.update({entry.path: entry for entry in waiting})
        waiting.clear()
    elif "removed" in line:
        manifest.entries.pop(str(line["removed"]), None)
    elif "omitted" in line:
        manifest.omitted.append(dict(line["omitted"]))


def _check_types(entry: Entry) -> None:
    """Make sure that an entry has values of the right kind, whoever wrote it."""
    for each in fields(entry):
        expected = str if each.default is MISSING else type(each.default)
        if type(getattr(entry, each.name)) is not expected:
            msg = f"{each.name} of an entry is not of type {expected.__name__}"
            raise TypeError(msg)
    if not 0 <= entry.offset < 2**62 or not 0 <= entry.size < 2**62:
        msg = "a number of an entry is out of range"
        raise ValueError(msg)


def damaged(what: str, why: str, *files: str) -> RocmlabError:
    """Return the error of a damaged backup."""
    more = f" and {len(files) - 5} more" if len(files) > 5 else ""
    listed = f"; affected: {', '.join(map(named, files[:5]))}{more}"
    return RocmlabError(
        f"the backup is damaged: {what}",
        why + (listed if files else ""),
        "use another backup; nothing was restored from this one. What is undamaged can be extracted with tar "
        "(docs/backup.md)",
        exit_code=1,
    )
