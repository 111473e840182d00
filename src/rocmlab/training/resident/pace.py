"""How an epoch is cut into programs of about a second, so that progress is visible and an interrupt takes effect soon.

The programs take the number of steps as an argument, so nothing is compiled for another length, and the results do
not depend on where an epoch is cut. Short epochs are not cut.

Ctrl-C acts between steps, never inside one: a program that has begun ends first, and its result reaches the model.
"""

from __future__ import annotations

import contextlib
import math
import signal
import threading
import time
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

Report = Callable[[int, Callable[[], dict[str, Any]]], None]  # steps done in this epoch, reads the logs so far

PROGRAM_SECONDS = 1.0  # of a program where an epoch is cut
WHOLE_SECONDS = 2.0  # up to here what is left of an epoch is one program


class Held:
    """A SIGINT that waits; `act` lets it do what it would have done."""

    def __init__(self, handler: Callable[[int, FrameType | None], Any] | None) -> None:
        self._handler = handler
        self._frame: FrameType | None = None
        self._is_waiting = False

    def receive(self, _number: int, frame: FrameType | None) -> None:
        """Note the signal."""
        self._is_waiting, self._frame = True, frame

    def act(self) -> None:
        """Call the handler that was in place if a signal waits: Python's and Jupyter's raises KeyboardInterrupt."""
        if self._is_waiting and self._handler is not None:
            self._is_waiting = False
            self._handler(signal.SIGINT, self._frame)


@contextlib.contextmanager
def deferred() -> Iterator[Held]:
    """Let SIGINT wait until the block has ended, or until it calls `act`, between two of its steps.

    A program on the device takes the model's state over and returns the new one. A KeyboardInterrupt between its end
    and the assignment would lose both, one inside a step of Python's would leave half of the weights updated.
    Threads other than the main one receive no signals; a handler that is not Python's stays as it is.
    """
    earlier = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or not callable(earlier):
        yield Held(None)
        return
    held = Held(earlier)
    signal.signal(signal.SIGINT, held.receive)
    try:
        yield held
    finally:
        signal.signal(signal.SIGINT, earlier)
        held.act()


class Pace:
    """How many steps to run next, from how long the last ones took.

    The first program is one step: its time is unknown, and it compiles. That time is measured also and leads to one
    step again, whose time is that of steps alone.
    """

    def __init__(self) -> None:
        self._step_seconds: float | None = None
        self._open: tuple[int, float] | None = None
        self._passes = 0

    def steps(self, left: int) -> int:
        """Return how many of the steps that are left the next program runs, at least one."""
        if self._step_seconds is None:
            return 1
        seconds = left * self._step_seconds
        if seconds <= WHOLE_SECONDS:
            return left
        return math.ceil(left / math.ceil(seconds / PROGRAM_SECONDS))

    def note(self, steps: int, seconds: float) -> None:
        """Remember how long some steps took."""
        self._step_seconds = seconds / max(1, steps)

    def run(
        self,
        begin: int,
        end: int,
        part: Callable[[int, int], None],
        last: Callable[[], Any],
        wait: Callable[[], None],
        between: Callable[[int], None],
    ) -> Any:  # noqa: ANN401  what `last` returns
        """Run the steps from `begin` to `end` in programs as long as their time allows; an interrupt acts between them.

        `part(begin, count)` runs steps and may return before the device is done; `last` follows the last part
        immediately and returns the result; `wait` waits for the device; `between` receives the steps that are done.
        """
        while True:
            size = self.steps(end - begin) if begin < end else 0
            with deferred():
                began = time.perf_counter()
                if size:
                    part(begin, size)
                begin += size
                if begin >= end:  # the device continues meanwhile: `settle` reads the clock
                    self._open = (size, began)
                    return last()
                wait()
                self.note(size, time.perf_counter() - began)
            between(begin)

    def settle(self) -> None:
        """Note the time of a pass's last program, now that the device is done; that of the first pass compiled."""
        if self._open is not None and self._open[0] and self._passes:
            self.note(self._open[0], time.perf_counter() - self._open[1])
        self._open, self._passes = None, self._passes + 1


class Counter:
    """Counts the steps of a pass that Python runs one by one or in graphs; at its pace it waits for the device.

    `report` receives the steps that are done, and whether metrics of some of them can be read.
    """

    def __init__(self, pace: Pace, steps: int, wait: Callable[[], None], report: Callable[[int, bool], None]) -> None:
        self._pace, self._steps, self._wait, self._report = pace, steps, wait, report
        self._held = Held(None)
        self._base = self._done = self._seen = 0
        self._has_logs = False
        self._look(time.perf_counter())

    def begin_block(self) -> None:
        """Count the steps of a block from here on."""
        self._base = self._done

    def step(self) -> None:
        """Count a step after which more steps of the same group follow: their metrics are not accounted for yet."""
        self._count(self._done + 1)

    def reach(self, steps: int) -> None:
        """Note that this many steps of the block are done, and their metrics also."""
        self._has_logs = True
        self._count(self._base + steps)

    def _count(self, done: int) -> None:
        self._done = done
        self._held.act()
        if self._steps > done >= self._next:
            self._wait()
            now = time.perf_counter()
            self._pace.note(done - self._seen, now - self._began)
            self._held.act()
            self._report(done, self._has_logs)
            self._look(time.perf_counter())

    def _look(self, now: float) -> None:
        self._seen, self._began = self._done, now
        self._next = self._done + self._pace.steps(max(1, self._steps - self._done))

    @contextlib.contextmanager
    def counting(self) -> Iterator[None]:
        """Count the steps inside the block; an interrupt acts between two of them."""
        with deferred() as self._held, _current(self):
            yield


_here = threading.local()


def step() -> None:
    """Count a step of the pass that runs in this thread, if one is counted."""
    if counter := getattr(_here, "counter", None):
        counter.step()


def reach(steps: int) -> None:
    """Note that this many steps of a block are done, if a pass is counted in this thread."""
    if counter := getattr(_here, "counter", None):
        counter.reach(steps)


def uncounted() -> contextlib.AbstractContextManager[None]:
    """Count no steps inside the block: a graph records them and runs none."""
    return _current(None)


@contextlib.contextmanager
def _current(counter: Counter | None) -> Iterator[None]:
    before = getattr(_here, "counter", None)
    _here.counter = counter
    try:
        yield
    finally:
        _here.counter = before
