"""The run as a user sees it: a live view on a terminal, plain lines elsewhere."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING

from rocmlab.base import formatting
from rocmlab.runs.jobs import Job, Result
from rocmlab.runs.scheduling.place import Place
from rocmlab.runs.scheduling.usage import Meters
from rocmlab.runs.screen.live import Live as Live
from rocmlab.runs.screen.view import Running, View
from rocmlab.runs.workers.supervisor import Event

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

PLAIN_EVERY_SECONDS = 10.0  # a job that says nothing is still there
PLAIN_TICK_SECONDS = 1.0  # how often is looked whether a line is due
PLAIN_MANY = 30  # jobs, of which a log tells the ends alone
PLAIN_PAUSE_SECONDS = 1.0  # between two lines of one job, so that a hundred small cells do not flood a log


class Plain(View):
    """One line for each start, cell and end; also one every ten seconds, so that a log shows that the run is alive.

    Of many jobs only the ends are reported, and what takes long.
    """

    def __enter__(self) -> Plain:
        self._leased: set[str] = set()  # jobs that have their GPUs

        self._over = threading.Event()
        self._clock = threading.Thread(target=self._remind, name="progress", daemon=True)
        self._clock.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._clock.join()
        self._say(self.never_line())

    @property
    def is_brief(self) -> bool:
        """Whether there are so many jobs that only their ends are printed."""
        return self.total > PLAIN_MANY

    def started(self, job: Job, place: Place) -> None:
        """Report that a job starts; one that needs a lease is reported when it has it."""
        super().started(job, place)
        if not place.gpus or job.name in self._leased:
            self._say_started(self.running[job.name])

    def event(self, job: Job, event: Event) -> None:
        """Print that a job has its GPUs, which cell starts, what it waits for, and that it is retried."""
        running = self.running.get(job.name)
        was_waiting = running is not None and running.is_waiting
        super().event(job, event)
        kind = event["event"]
        if kind == "leased":
            self._leased.add(job.name)
        if kind == "retried":
            self._leased.discard(job.name)
            self._say(self.retried_line(job, event))
        elif running is None:
            return
        elif kind == "waiting" and not was_waiting:
            self._say(f"{job.name}  {running.title}")
        elif kind == "leased":
            self._say_started(running, is_worth_it=was_waiting)
        elif kind == "stopping":
            self._say(f"{job.name}  {running.title}")
        elif kind == "cell" and not self.is_brief and time.monotonic() - running.printed_at >= PLAIN_PAUSE_SECONDS:
            self._say_cell(running)

    def finished(self, result: Result) -> None:
        """Say how a job ended."""
        super().finished(result)
        self._leased.discard(result.name)
        line = self.ended_line(result)
        self._say(f"{self.done}/{self.total} {line.plain}" if line and self.is_brief else line)

    def _remind(self) -> None:
        while not self._over.wait(PLAIN_TICK_SECONDS):
            for running in list(self.running.values()):
                silent_seconds = time.monotonic() - max(running.printed_at, running.begin)
                is_new = running.number != running.printed_number and not self.is_brief
                if not running.is_waiting and (is_new or silent_seconds >= PLAIN_EVERY_SECONDS):
                    self._say_cell(running)

    def _say_started(self, running: Running, *, is_worth_it: bool = False) -> None:
        if is_worth_it or not self.is_brief:
            self._say(f"{running.name}  started on {running.device}")

    def _say_cell(self, running: Running) -> None:
        is_known = running.printed_at > 0 and running.printed_number == running.number
        running.printed_at, running.printed_number = time.monotonic(), running.number
        if not is_known:
            running.cell_begin = running.printed_at
        where = "  ".join(filter(None, (running.name, running.cell, running.title)))
        self._say(
            f"{where}  (running for {formatting.clock(running.printed_at - running.cell_begin)})" if is_known else where
        )

    def _say(self, line: Text | str | None) -> None:
        if line is None:
            return
        elapsed = formatting.clock(time.monotonic() - self.begin)
        self.console.print(f"{elapsed:>7}  {line}", markup=False, highlight=False, soft_wrap=True)


def display(
    console: Console,
    total: int,
    *,
    slots: int = 1,
    expected: Mapping[str, float | None] | None = None,
    meters: Meters | None = None,
) -> Live | Plain:
    """Return the view that fits the console, a context manager that is also a `Display`.

    `expected` are the seconds that each of the jobs may take, by name; None where that is not known.
    """
    kind = Live if console.is_terminal and not console.is_dumb_terminal else Plain
    return kind(console, total, slots, expected, meters)
