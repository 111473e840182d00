"""Ctrl-C between steps, never inside one: a program that has begun ends first, and its result reaches the model."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any


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
