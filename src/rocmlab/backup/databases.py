"""SQLite databases that are in use, such as IPython's history: a consistent copy instead of the bytes of an instant."""

from __future__ import annotations

import os
import sqlite3
import time
from contextlib import closing
from pathlib import Path
from urllib.parse import quote

from rocmlab.backup import reading

MAGIC = b"SQLite format 3\0"
SIBLINGS = ("-wal", "-journal", "-shm")
ATTEMPTS = 5
TIMEOUT_SECONDS = 5.0  # to wait while another program keeps a database locked
LOOK_SECONDS = 0.02  # between two looks whether it still is
STEP_PAGES = 1000  # copied without answering a signal
BUSY = (5, 6)  # SQLITE_BUSY and SQLITE_LOCKED, which `sqlite3` names from Python 3.11 on


class _Locked(Exception):
    """Another program has kept a database locked for all the time."""


def is_in_use(source: str) -> bool:
    """Return whether a file is a SQLite database with writes that are not in the file itself."""
    try:
        with open(source, "rb") as file:
            if file.read(len(MAGIC)) != MAGIC:
                return False
        return any(os.path.exists(source + end) and os.path.getsize(source + end) for end in SIBLINGS[:2])
    except OSError:
        return False


def copy(source: str, scratch: Path) -> tuple[bool, bool]:
    """Write a consistent copy of a database to `scratch`.

    Returns:
        Whether that was possible; and whether another program kept it locked: what that one writes is not in the copy.
    """
    try:
        if _by_sqlite(f"file:{quote(os.fsencode(source))}?mode=ro", scratch):
            return True, False
    except _Locked:
        return _by_files(source, scratch), True
    return _by_files(source, scratch), False


def _by_sqlite(address: str, scratch: Path) -> bool:
    remove(scratch)
    scratch.touch(mode=0o600)
    try:
        with (
            closing(sqlite3.connect(address, uri=True, timeout=0)) as database,
            closing(sqlite3.connect(scratch)) as made,
        ):
            _begin(database)
            database.backup(made, pages=STEP_PAGES, progress=_step)
            made.execute("PRAGMA journal_mode=DELETE")
    except sqlite3.Error:
        return False
    return True


def _begin(database: sqlite3.Connection) -> None:
    """Begin to read, so that every step copies the same version; raise _Locked if that is not possible in time."""
    deadline = time.monotonic() + TIMEOUT_SECONDS
    database.execute("BEGIN")
    while True:
        try:
            database.execute("SELECT count(*) FROM sqlite_master").fetchone()
            return
        except sqlite3.OperationalError as err:
            if "locked" not in str(err):
                raise
            if time.monotonic() > deadline:
                raise _Locked from err
        time.sleep(LOOK_SECONDS)  # here and not in SQLite, which would answer no signal


def _step(status: int, left: int, total: int) -> None:
    """Run between two steps, where Python answers signals; `Connection.backup` itself would wait for ever."""
    if status in BUSY:
        raise _Locked


def _by_files(source: str, scratch: Path) -> bool:
    """Copy a database of a read-only mount, where SQLite cannot open it, with its log while neither changes.

    Return False where that is not possible, as with a log that cannot be read.
    """
    for _ in range(ATTEMPTS):
        remove(scratch)
        before = _state(source)
        scratch.touch(mode=0o600)
        try:
            for end in ("", *SIBLINGS[:2]):
                if not end or os.path.exists(source + end):
                    _copy_file(source + end, f"{scratch}{end}")
        except reading.Unreadable as err:
            if isinstance(err.__cause__, FileNotFoundError):
                continue  # a log that was just applied
            return False
        if before == _state(source):
            break
    else:
        return False
    try:
        with closing(sqlite3.connect(scratch)) as made:
            made.execute("PRAGMA journal_mode=DELETE")
    except sqlite3.Error:
        return False
    return True


def _copy_file(source: str, target: str) -> None:
    with reading.opened(source) as file, open(target, "wb") as made:
        made.writelines(reading.pieces(file, os.fstat(file.fileno()).st_size))


def _state(source: str) -> list[tuple[int, int] | None]:
    found: list[tuple[int, int] | None] = []
    for path in (source, *(source + end for end in SIBLINGS[:2])):
        try:
            status = os.stat(path)
            found.append((status.st_mtime_ns, status.st_size))
        except OSError:
            found.append(None)
    return found


def remove(scratch: Path) -> None:
    """Remove a copy and what SQLite left next to it."""
    for path in (str(scratch), *(f"{scratch}{end}" for end in SIBLINGS)):
        Path(path).unlink(missing_ok=True)
