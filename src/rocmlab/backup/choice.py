"""Which backup a path means, and whose it is: in a shared folder, another user can put one that looks like this lab's.

What is restored runs: JupyterLab's settings, for example, are programs. So only a backup that no one but this user can
have written is taken from a folder of backups; any other one must be named.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Collection
from pathlib import Path
from shlex import quote

from rocmlab.backup import model
from rocmlab.backup.model import MANIFEST, PARTIAL, SUMS, named
from rocmlab.backup.selection import backups
from rocmlab.backup.working import say_some
from rocmlab.base import identity
from rocmlab.base.errors import RocmlabError
from rocmlab.stack import sockets
from rocmlab.stack.lab import Say
from rocmlab.stack.project_folder import ROOT, keeps_modes

MAX_LISTED = 10  # lines about backups that are skipped


def find(given: Path, project: str, say: Say) -> Path:
    """Return the complete backup that a path means: itself, or the newest one in it that is this user's.

    One of this project comes before those of other clones. What is skipped, and whose it is, is said.

    Args:
        given: a backup, or a folder of backups.
        project: this clone's folder.
        say: is called with each line.

    Raises:
        RocmlabError: there is none.
    """
    if os.path.isfile(given / SUMS):
        stranger = _stranger(given)
        if not stranger:
            if why := doubt(given, identity.own_uids()):
                say(f"WARNING: {named(str(given))} may be another user's work: {why}")
            _say_clone(given, project, say)
            return given
        say(f"skipped {named(str(given))}: {SUMS} in it belongs to {stranger}, and not to the owner of the folder")
    found = list(backups(given)) if given.is_dir() else []
    complete = [path for path in found if os.path.isfile(path / SUMS) and not path.name.endswith(PARTIAL)]
    chosen = _newest(complete, project, say)
    if chosen is not None:
        return chosen
    if complete:
        raise RocmlabError(
            f"{named(str(given))} has no backup that is yours alone",
            f"{named(complete[0].name)} may be another user's work, and programs in it would run as you",
            f"ls -l {quote(named(str(given)))}    # then name one that you trust: make restore FROM=/path/to/that/one",
        )
    if found or (given / MANIFEST).is_file():
        raise RocmlabError(
            f"{named(str(given))} has no complete backup",
            f"{named((found[0] if found else given).name)} was interrupted before its end",
            f"complete it: make backup TO={quote(named(str(given if found else given.parent)))}",
        )
    raise RocmlabError(
        f"{named(str(given))} is not a backup", f"{SUMS} is missing in it", "make restore FROM=/path/to/folder"
    )


def _newest(complete: list[Path], project: str, say: Say) -> Path | None:
    """Return the first of these backups that is this user's, preferably of this project; None if none is."""
    skipped: list[str] = []
    others: list[Path] = []  # this user's, of other clones
    chosen = None
    for path in complete:
        if why := doubt(path, identity.own_uids()):
            skipped.append(f"skipped {named(str(path))}: {why}")
        elif model.header(path).get("project") == project:
            chosen = path
            break
        else:
            others.append(path)
    if chosen is not None:
        skipped += [f"skipped {named(str(path))}: it is another clone's; name it to restore it" for path in others]
    say_some(say, skipped, MAX_LISTED)
    if chosen is None and others:
        chosen = others[0]
        _say_clone(chosen, project, say)
    if chosen is not None and not keeps_modes(chosen.stat().st_dev):
        say(f"WARNING: the disk of {named(str(chosen))} keeps no owners: whoever can write it can have put this there")
    return chosen


def _say_clone(folder: Path, project: str, say: Say) -> None:
    of = model.header(folder).get("project")
    if of != project:
        say(f"{named(str(folder))} is not a backup of this clone, but of the one in {named(str(of))}")


def _stranger(folder: Path) -> str:
    """Return who wrote a backup's checksums, empty if the owner of its folder: in a shared folder, anyone can add them.

    The checksums decide about all other files.
    """
    uid = (folder / SUMS).lstat().st_uid
    return "" if uid == folder.stat().st_uid else sockets.user(uid)


def doubt(folder: Path, owners: Collection[int]) -> str:
    """Return why anyone but these owners can have written a backup, empty if no one can.

    A disk that keeps no modes shows every file with one mode and one owner, often root: there, neither is a reason.
    """
    try:
        status = folder.lstat()
        if not stat.S_ISDIR(status.st_mode):
            return "it is a link"
        has_modes = keeps_modes(status.st_dev)
        for path in (folder, *sorted(folder.iterdir())):
            status = path.stat()
            which = "it" if path == folder else f"{named(path.name)} in it"
            if status.st_uid not in owners and (has_modes or status.st_uid != ROOT):
                return f"{which} belongs to {sockets.user(status.st_uid)}"
            if has_modes and status.st_mode & 0o022:
                return f"others can write to {which} (mode {status.st_mode & 0o7777:04o})"
    except OSError as err:
        return f"it cannot be read: {err.strerror or err}"
    return ""
