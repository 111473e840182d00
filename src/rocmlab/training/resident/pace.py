"""How an epoch is cut into programs of about a second, so that progress is visible and an interrupt takes effect soon.

The programs take the number of steps as an argument, so nothing is compiled for another length, and the results do
not depend on where an epoch is cut. Short epochs are not cut.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Any

from rocmlab.training.resident import interrupts

Report = Callable[[int, Callable[[], dict[str, Any]]], None]  # steps done in this epoch, reads the logs so far

PROGRAM_SECONDS = 1.0  # of a program where an epoch is cut
WHOLE_SECONDS = 2.0  # up to here what is left of an epoch is one program


class Pace:
    """How many steps to run next, from how long the last ones took.

    The first program is one step: nobody knows how long it takes, and it compiles. That time is measured, too, and
    leads to one step again, whose time is that of steps alone.
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
        """Run steps in as many programs as their time asks for; an interrupt acts between two of them.

        Args:
            begin: the step to begin with.
            end: the step to stop before.
            part: runs so many steps from one on; it may return before the device is done.
            last: follows the last part at once, and returns the result.
            wait: waits for the device.
            between: is told the steps that are done, where more programs follow.
        """
        while True:
            size = self.steps(end - begin) if begin < end else 0
            with interrupts.deferred():
                began = time.perf_counter()
                if size:
                    part(begin, size)
                begin += size
                if begin >= end:  # the device goes on meanwhile: `settle` reads the clock
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
