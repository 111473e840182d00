"""One process at a time works on a backup, and a signal ends it in an orderly way."""

from __future__ import annotations

import fcntl
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rocmlab.base.errors import RocmlabError
from rocmlab.stack.backup.model import MANIFEST


@contextmanager
def locked(folder: Path, shown: str) -> Iterator[bool]:
    """Hold an incomplete backup; yield False where another process has just completed it.

    Raises:
        RocmlabError: another process writes it.
    """
    try:
        file = open(folder / MANIFEST, "rb")  # noqa: SIM115
    except FileNotFoundError:
        yield False
        return
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise RocmlabError(
                f"another process writes {shown}", "one backup at a time is made of a lab", "wait for its end"
            ) from None
        except OSError:
            pass  # a network folder, perhaps, which has no locks
        try:
            is_there = os.path.samestat(os.fstat(file.fileno()), os.stat(folder / MANIFEST))
        except FileNotFoundError:
            is_there = False
        yield is_there


@contextmanager
def interruptible() -> Iterator[None]:
    """Let SIGTERM, which ends a container, end the work as Ctrl-C does."""

    def stop(number: int, frame: object) -> None:
        raise KeyboardInterrupt

    try:
        before = signal.signal(signal.SIGTERM, stop)
    except ValueError:  # in a thread of a program that has handlers of its own
        yield
        return
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
