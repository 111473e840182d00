"""SQLite databases that are in use, such as IPython's history: a consistent copy instead of the bytes of an instant."""

from __future__ import annotations

import os
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path
from urllib.parse import quote

MAGIC = b"SQLite format 3\0"
SIBLINGS = ("-wal", "-journal", "-shm")
ATTEMPTS = 5
TIMEOUT_SECONDS = 5.0


def is_in_use(source: str) -> bool:
    """Return whether a file is a SQLite database with writes that are not in the file itself."""
    try:
        with open(source, "rb") as file:
            if file.read(len(MAGIC)) != MAGIC:
                return False
        return any(os.path.exists(source + end) and os.path.getsize(source + end) for end in SIBLINGS[:2])
    except OSError:
        return False


def copy(source: str, scratch: Path) -> bool:
    """Write a consistent copy of a database to `scratch`; return whether that was possible."""
    return _by_sqlite(f"file:{quote(source)}?mode=ro", scratch) or _by_files(source, scratch)


def _by_sqlite(address: str, scratch: Path) -> bool:
    remove(scratch)
    scratch.touch(mode=0o600)
    try:
        with (
            closing(sqlite3.connect(address, uri=True, timeout=TIMEOUT_SECONDS)) as database,
            closing(sqlite3.connect(scratch)) as made,
        ):
            database.backup(made)
            made.execute("PRAGMA journal_mode=DELETE")
    except sqlite3.Error:
        return False
    return True


def _by_files(source: str, scratch: Path) -> bool:
    """Copy a database of a read-only mount, where SQLite cannot open it, with its log while neither changes."""
    for _ in range(ATTEMPTS):
        remove(scratch)
        before = _state(source)
        scratch.touch(mode=0o600)
        try:
            shutil.copyfile(source, scratch)
            for end in SIBLINGS[:2]:
                if os.path.exists(source + end):
                    shutil.copyfile(source + end, f"{scratch}{end}")
        except FileNotFoundError:
            continue  # a log that was just applied
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
