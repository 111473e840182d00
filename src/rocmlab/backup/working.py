"""The work on a backup: by one process at a time, and with progress."""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from rocmlab.backup.model import MANIFEST
from rocmlab.base.errors import RocmlabError
from rocmlab.base.formatting import amount
from rocmlab.stack.lab import Say

PROGRESS_SECONDS = 5.0


class Progress:
    """Prints every few seconds how much is done."""

    def __init__(self, say: Say, total_bytes: int, count: int) -> None:
        self.say, self.total_bytes, self.count = say, total_bytes, count
        self.done_bytes = self.done = 0
        self._said = time.monotonic()

    def add(self, size_bytes: int) -> None:
        """Count one entry."""
        self.done_bytes, self.done = self.done_bytes + size_bytes, self.done + 1
        if time.monotonic() - self._said >= PROGRESS_SECONDS:
            self._said = time.monotonic()
            amounts = f"{amount(self.done_bytes)} of {amount(self.total_bytes)}"
            self.say(f"  {amounts}, {self.done:,} of {self.count:,} entries")


def say_some(say: Say, lines: Sequence[str], maximum: int, more: str = "") -> None:
    """Print lines about single files, at most `maximum`."""
    for line in lines[:maximum]:
        say(line)
    if len(lines) > maximum:
        say(f"  and {len(lines) - maximum} more{more}")


@contextmanager
def locked(folder: Path, shown: str) -> Iterator[bool]:
    """Hold an incomplete backup; yield False if another process has just completed it; an error if one writes."""
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
