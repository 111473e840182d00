"""A display for tests."""

from __future__ import annotations

from rocmlab.runner.jobs import Result


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
