"""Who may read what a run writes: the modes of its folder and files."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from rocmlab.base.errors import RocmlabError

UMASK = "NB_UMASK"  # set: the umask alone decides who may read runs
PRIVATE_FOLDER = 0o750


def folder_mode() -> int:
    """Return with which mode to make a run's folder; the umask still removes rights from it.

    Notebooks print what they like, so runs are not for every user of the machine, unless NB_UMASK allows it.
    """
    return 0o777 if os.environ.get(UMASK) else PRIVATE_FOLDER


def create(path: str, flags: int) -> int:
    """Open a file, as the `opener` of `open`; where others may not enter its folder, one that is made is as private.

    So a new file in a run's folder (0750) is 0640, less the umask, whichever process makes it.
    """
    folder = os.stat(os.path.dirname(path) or os.curdir).st_mode
    return os.open(path, flags, 0o666 if folder & 0o007 else 0o666 & folder)


def make_folder(folder: Path, why: str, otherwise: str = "") -> Path:
    """Make a folder that its owner alone can open, and return it; an error if it is another user's, or open to others.

    Args:
        folder: its path.
        why: what another user could do with it, for the error.
        otherwise: the fix where it is another user's, and cannot be removed from /tmp.
    """
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o077:
        fix = otherwise if otherwise and found.st_uid != os.getuid() else f"rm -r {folder}"
        raise RocmlabError(f"{folder} is not a private folder of this user", why, fix)
    return folder
