"""Reads that may never return, each in a thread of its own: a card whose driver hangs must not stop the run.

Such a thread cannot be ended. It is abandoned, and what it reads is not requested again until it returns.
"""

from __future__ import annotations

import concurrent.futures
import logging
import threading
from collections.abc import Callable, Hashable
from typing import Any, TypeVar

log = logging.getLogger("rocmlab")

ANSWER_SECONDS = 1.0  # a driver takes milliseconds; one that wakes a card takes a few hundred

T = TypeVar("T")


def start(work: Callable[[], T]) -> concurrent.futures.Future[T]:
    """Start work in a thread that, unlike one of a pool, does not keep Python alive when it hangs."""
    future = concurrent.futures.Future[T]()

    def run() -> None:
        if not future.set_running_or_notify_cancel():  # from here on it cannot be cancelled
            return
        try:
            result = work()
        except BaseException as err:
            future.set_exception(err)
        else:
            future.set_result(result)

    threading.Thread(target=run, name="rocmlab-background", daemon=True).start()
    return future


class BackgroundReader:
    """Reads from drivers, and continues without an answer."""

    def __init__(self, seconds: float = ANSWER_SECONDS) -> None:
        self.seconds = seconds
        self._open: dict[Hashable, concurrent.futures.Future[Any]] = {}
        self._hanging: set[Hashable] = set()
        self._lock = threading.Lock()

    def now(self, key: Hashable, read: Callable[[], T]) -> T | None:
        """Return what a function reads, None if that takes too long or an earlier read of that key still hangs.

        Raises:
            Exception: what the function raises.
        """
        future = self._ask(key, read)
        answer: T | None = None
        try:
            answer = None if future is None else future.result(self.seconds)
        except concurrent.futures.TimeoutError:
            self._give_up(key)
        return answer

    def _ask(self, key: Hashable, read: Callable[[], Any]) -> concurrent.futures.Future[Any] | None:
        with self._lock:
            if key in self._hanging:
                return None
            if key in self._open:
                return self._open[key]
            future = self._open[key] = start(lambda: self._read(key, read))
        return future

    def _read(self, key: Hashable, read: Callable[[], T]) -> T:
        try:
            return read()
        finally:
            with self._lock:
                del self._open[key]
                self._hanging.discard(key)

    def _give_up(self, key: Hashable) -> None:
        with self._lock:
            if key not in self._open or key in self._hanging:
                return
            self._hanging.add(key)
        log.warning("could not read %s: no answer within %g s; continuing without it", key, self.seconds)


DRIVERS = BackgroundReader()
