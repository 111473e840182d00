"""Writing so that a reader never sees half a file."""

from __future__ import annotations

import errno
import fcntl
import json
import math
import os
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

from rocmlab.base import private

DRAFT_BYTES = 4  # of chance, in the name of a draft


def write_text(path: Path, text: str, mode: int | None = None) -> None:
    """Replace a file by `text`, see `replacing`."""
    write_pieces(path, [text], mode)


def write_pieces(path: Path, pieces: Iterable[str], mode: int | None = None) -> None:
    """Replace a file by these pieces of text, without joining them in memory; see `replacing`."""
    with replacing(path, mode) as file:
        # A lone surrogate, which a notebook may print, becomes \ud800: in JSON that is its proper form.
        file.writelines(piece.encode("utf-8", "backslashreplace") for piece in pieces)


@contextmanager
def replacing(path: Path, mode: int | None = None, *, is_durable: bool = False) -> Iterator[BinaryIO]:
    """Provide a file that replaces `path` at the end, so that a reader sees the old content or the new.

    An error changes nothing.

    Args:
        path: of the file; a link there is replaced, not followed.
        mode: of the file, whatever the umask; None: as private as its folder, see `private.create`.
        is_durable: also after a power cut `path` is the old file or the new one; without it, it may be an empty one.
    """
    draft = draft_path(path)

    def opener(name: str, flags: int) -> int:
        return private.create(name, flags) if mode is None else os.open(name, flags, 0o600)

    try:
        with open(draft, "xb", opener=opener) as file:
            yield file
            if mode is not None:
                os.fchmod(file.fileno(), mode)
            if is_durable:
                file.flush()
                os.fsync(file.fileno())
        os.replace(draft, path)
        if is_durable:
            sync_folder(path.parent)
    except BaseException:
        draft.unlink(missing_ok=True)
        raise


def sync_folder(folder: Path) -> None:
    """Wait until the disk has the names of the files in a folder, where its file system can be asked for that."""
    _sync(folder, os.O_DIRECTORY)


def sync_file(path: Path) -> None:
    """Wait until the disk has a file and its name, whoever has written it; a link is not followed."""
    _sync(path, os.O_NOFOLLOW | os.O_NONBLOCK)
    sync_folder(path.parent)


def _sync(path: Path, flags: int) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | flags)
    try:
        os.fsync(descriptor)
    except OSError as err:
        if err.errno != errno.EINVAL:
            raise
    finally:
        os.close(descriptor)


def lock_state(path: Path) -> bool | None:
    """Return whether another process has a file's lock; None: unknown, for there is no file, or it can have no lock."""
    try:
        with path.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return None
    return False


def is_locked(path: Path) -> bool:
    """Return whether another process is known to have a file's lock."""
    return lock_state(path) is True


def lock(descriptor: int, waits: Callable[[], object]) -> None:
    """Take a file's lock; where another process has it, call `waits` and wait until that process has released it."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        waits()
        fcntl.flock(descriptor, fcntl.LOCK_EX)


def draft_path(path: Path) -> Path:
    """Return where to write what is to replace a file."""
    return path.with_name(f".{path.name}.{os.urandom(DRAFT_BYTES).hex()}")


def draft_of(name: str) -> re.Pattern[str]:
    """Return what the name of a draft, left by a killed process, looks like; the name is a regular expression."""
    return re.compile(rf"\.{name}\.[0-9a-f]{{{2 * DRAFT_BYTES}}}", re.DOTALL)


def to_json(value: object, indent: int | None = 1) -> str:
    """Return strict JSON; NaN and infinity, which it cannot represent, become null: unknown."""
    return json.dumps(_finite(value), indent=indent, ensure_ascii=False, allow_nan=False, default=str)


def _finite(value: Any) -> Any:  # noqa: ANN401  any JSON value
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return value
