"""What tests look at: a display that remembers, processes, and conditions that become true."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from rocmlab.runs.jobs import Result


class Watcher:
    """A display that remembers the order of things."""

    def __init__(self) -> None:
        self.seen: list[tuple[str, str]] = []

    def started(self, job, place) -> None:
        """Remember a start."""
        self.seen.append(("started", job.name))

    def event(self, job, event) -> None:
        """Remember a cell."""
        self.seen.append((event["event"], job.name))

    def finished(self, result: Result) -> None:
        """Remember an end."""
        self.seen.append(("finished", result.name))

    def mute(self) -> None:
        """Nothing is shown anyway."""


def eventually(is_true: Callable[[], bool], seconds: float) -> bool:
    """Return whether something becomes true in time."""
    end = time.monotonic() + seconds
    while not is_true():
        if time.monotonic() > end:
            return False
        time.sleep(0.01)
    return True


def is_alive(pid: int) -> bool:
    """Return whether a process runs; one that no one has reaped does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in ("Z", "X")
    except OSError:
        return False
