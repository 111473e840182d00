"""Checking a backup before anything of it is used: its checksums, and that it can write nowhere but where it should."""

from __future__ import annotations

import posixpath
import re
import stat
import tarfile
from collections.abc import Mapping
from pathlib import Path

from rocmlab.backup import model, parts
from rocmlab.backup.model import FILE, FOLDER, LINK, MANIFEST, SUMS, Entry, Manifest
from rocmlab.base.errors import RocmlabError

LINE = re.compile(r"([0-9a-f]{64})  (files-\d{4,}\.tar|manifest\.jsonl)")
LAB = ("/home/jovyan/share", "/home/jovyan/work")  # where share and notebooks are inside a container
KINDS = {tarfile.REGTYPE: FILE, tarfile.AREGTYPE: FILE, tarfile.DIRTYPE: FOLDER, tarfile.SYMTYPE: LINK}
MAX_MODE = 0o3777  # a set-user-ID bit is never restored


def verify(folder: Path, shown: str) -> Manifest:
    """Return the manifest of a backup whose every byte is as it was written; an error names the file that is not.

    `shown` is the same folder, as the user knows it.
    """
    sums = _sums(folder, shown)
    if _digest(folder, MANIFEST, shown) != sums.pop(MANIFEST, ""):
        raise model.damaged(f"{shown}/{MANIFEST}", "its SHA-256 is not that of when it was written")
    manifest = model.read(folder, shown=shown)
    if sums != manifest.parts:
        raise model.damaged(f"{shown}/{SUMS}", "it does not list the parts that the manifest has")
    for name, digest in sums.items():
        entries = [entry for entry in manifest.entries.values() if entry.part == name]
        if _digest(folder, name, shown) != digest:
            wrong = parts.wrong_members(folder / name, entries)
            raise model.damaged(f"{shown}/{name}", "its SHA-256 is not that of when it was written", *wrong)
    return manifest


def _sums(folder: Path, shown: str) -> dict[str, str]:
    try:
        lines = (folder / SUMS).read_text(encoding="ascii").splitlines()
    except (OSError, ValueError) as err:
        raise model.damaged(f"{shown}/{SUMS}", str(err)) from err
    found = [LINE.fullmatch(line) for line in lines]
    if not all(found):
        raise model.damaged(f"{shown}/{SUMS}", "a line is not a SHA-256 and the name of a part")
    return {match[2]: match[1] for match in found if match}


def _digest(folder: Path, name: str, shown: str) -> str:
    try:
        return parts.digest(folder / name)
    except OSError as err:
        raise model.damaged(f"{shown}/{name}", err.strerror or str(err)) from err


def check(folder: Path, manifest: Manifest, shown: str) -> None:
    """Raise RocmlabError unless everything in a backup, whoever made it, stays below the folders that are restored."""
    for entry in manifest.entries.values():
        if why := _fault(entry, manifest):
            raise _rejected(shown, entry.path, why)
    by_part: dict[str, dict[int, Entry]] = {name: {} for name in manifest.parts}
    for entry in manifest.entries.values():
        by_part[entry.part][entry.offset] = entry
    for name, expected in by_part.items():
        _check_part(folder / name, f"{shown}/{name}", expected)


def _fault(entry: Entry, manifest: Manifest) -> str:
    """Return why an entry must not be restored, empty if it may."""
    names = entry.path.split("/")
    if names[0] not in ("share", "notebooks", "settings") or any(name in ("", ".", "..") for name in names):
        return "its path does not stay in share, notebooks or settings"
    if "\0" in entry.path or entry.part not in manifest.parts or entry.size < 0:
        return "its manifest entry is not valid"
    if names[0] == "settings" and (entry.path not in model.SETTINGS or entry.type != FILE):
        return "it is not a settings file"
    if entry.type not in (FILE, FOLDER, LINK):
        return f"it is a {entry.type!r}"
    if entry.mode & ~MAX_MODE or (entry.type == FILE and entry.mode & stat.S_ISGID):
        return f"its mode {entry.mode:o} would run as another user"
    return "" if len(names) > 1 or entry.type == FOLDER else "a root is not a folder"


def _rejected(shown: str, path: str, why: str) -> RocmlabError:
    return RocmlabError(
        f"{shown} is rejected: {path!r} cannot be restored",
        f"{why}; rocmlab does not write such backups",
        "use a backup that you made yourself; nothing was restored from this one",
    )


def _check_part(path: Path, shown: str, expected: Mapping[int, Entry]) -> None:
    """Make sure that a tar file matches the manifest, and has no member of another kind."""
    left = dict(expected)
    try:
        with tarfile.open(path, "r:") as archive:
            for member in archive:
                kind = KINDS.get(member.type)
                if kind is None:
                    raise _rejected(shown, member.name, "it is neither a file, a folder nor a symbolic link")
                entry = left.pop(member.offset, None)
                if entry is None:
                    continue  # a file that changed, or was removed, before the backup was complete
                size = member.size if kind == FILE else 0
                found = (member.name, kind, size, member.linkname if kind == LINK else "")
                if found != (entry.path, entry.type, entry.size, entry.target):
                    raise _rejected(shown, member.name, "the tar file and the manifest differ")
    except (tarfile.TarError, OSError, ValueError) as err:
        raise model.damaged(shown, str(err)) from err
    if left:
        raise _rejected(shown, next(iter(left.values())).path, "it is in the manifest and not in the tar file")


def escapes(entry: Entry, roots: Mapping[str, str]) -> bool:
    """Return whether a link leads out of the restored folders; `..` after a name does: that may be a link itself."""
    target = entry.target
    if target.startswith("/"):
        allowed = (*LAB, *roots.values())
        return ".." in target.split("/") or not any(target == root or target.startswith(f"{root}/") for root in allowed)
    names = [name for name in target.split("/") if name not in ("", ".")]
    up = next((number for number, name in enumerate(names) if name != ".."), len(names))
    if ".." in names[up:]:
        return True
    return up > posixpath.dirname(entry.path).count("/")
