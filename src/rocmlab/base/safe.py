"""What a name and a file must be before anything in a run folder is read or written by it.

A run folder may come from another machine, an older version or another user, so nothing that was read there is trusted:
a job's name is the beginning of a file name, and a link may lead anywhere.
"""

from __future__ import annotations

import errno
import os
import re
import stat
from pathlib import Path
from typing import BinaryIO

from rocmlab.base import private
from rocmlab.base.errors import RocmlabError

MAX_NAME_BYTES = 220  # of a job; `.attempt99.samples.jsonl` and what a draft adds fit into the 255 of a file name
MAX_LEVELS = 60  # of nested values; results, journal and report are written by code that recurses
TAKEN = ("report",)  # report.html is the run's own
PLAIN = re.compile(r"[\w=-][\w.=-]*")
ATTEMPT = re.compile(r"\.attempt\d+$", re.IGNORECASE)  # what an earlier attempt of a job is called


def is_job_name(name: object) -> bool:
    """Return whether a name can only mean files of one job inside of its run's folder."""
    if not isinstance(name, str) or not PLAIN.fullmatch(name) or ATTEMPT.search(name):
        return False
    return len(os.fsencode(name)) <= MAX_NAME_BYTES and name.casefold() not in TAKEN


def job_name(name: object) -> str:
    """Return the name of a job; every file of a job is named through this function.

    Raises:
        RocmlabError: its files could lie elsewhere, or be those of something else.
    """
    if isinstance(name, str) and is_job_name(name):
        return name
    raise RocmlabError(
        f"{shown(name)} cannot be the name of a job",
        "files are named by it: letters, digits, '.', '-', '_' and '=' in one folder",
        "the run folder was changed or damaged: restore it, or start a new run",
    )


def is_file_name(name: object) -> bool:
    """Return whether this is the name of a file in the folder itself, and not a hidden one."""
    return isinstance(name, str) and bool(PLAIN.fullmatch(name)) and len(os.fsencode(name)) <= 255


def shown(value: object, longest: int = 80) -> str:
    """Return a value that was read as an error shows it: in quotes, on one line, no control characters, not long."""
    text = ascii(value) if not isinstance(value, str) or not value.isprintable() else repr(value)
    return text if len(text) <= longest else f"{text[: longest - 1]}…"


def printable(text: object) -> str:
    """Return a text that was read without what a terminal would obey."""
    return "".join(sign if sign.isprintable() else "?" for sign in str(text))


def is_deeper(value: object, levels: int = MAX_LEVELS) -> bool:
    """Return whether a value is nested deeper than that many levels; it is looked at without recursion."""
    here = [value]
    for _ in range(levels + 1):
        here = [
            inner
            for each in here
            if isinstance(each, (dict, list))
            for inner in (each.values() if isinstance(each, dict) else each)
        ]
        if not here:
            return False
    return True


def opened(path: Path, flags: int) -> int:
    """Return a descriptor of a regular file that is in its folder itself and not behind a link.

    Raises:
        OSError: it cannot be opened, is a link, or is not a regular file.
    """
    descriptor = private.create(str(path), flags | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError(errno.EINVAL, "this is not a regular file", str(path))
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def append(path: Path) -> BinaryIO:
    """Return a file to which bytes can be added, made if it does not exist; see `opened`."""
    return os.fdopen(opened(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT), "ab")


def reading(path: Path) -> BinaryIO:
    """Return a file to read from; see `opened`."""
    return os.fdopen(opened(path, os.O_RDONLY), "rb")


def check_folder(folder: Path) -> None:
    """Refuse to continue or collect a run in a folder that is a link: its files would be written elsewhere.

    Raises:
        RocmlabError: it is one.
    """
    for path in (folder, folder / "journal.jsonl", folder / "parts"):
        check_link(path)


def check_link(path: Path) -> None:
    """Refuse to write where a link may lead elsewhere.

    Raises:
        RocmlabError: this is a link.
    """
    if path.is_symlink():
        raise RocmlabError(
            f"{shown(str(path), 300)} is a link to {shown(os.readlink(path), 300)}",
            "what a run writes stays in its own folder",
            "name the folder itself, or copy it here",
        )


def is_files(value: object) -> bool:
    """Return whether this can be the `files` of a result: names of files in the run folder."""
    return isinstance(value, dict) and all(isinstance(kind, str) and is_file_name(name) for kind, name in value.items())
