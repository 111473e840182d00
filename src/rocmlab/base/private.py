"""Who may read what a run writes: the modes of its folder and files."""

from __future__ import annotations

import os

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
