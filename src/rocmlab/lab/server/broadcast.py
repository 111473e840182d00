"""One source, many viewers: each gets the newest of every event, as fast as it takes them and no faster.

A viewer keeps at most one event of each name, and all viewers share the same bytes: what is new replaces what a slow
one has not taken yet, so that neither slow nor vanished ones make memory grow.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property

from rocmlab.base.errors import RocmlabError

MAX_VIEWERS = 256


@dataclass
class Event:
    """What all viewers get, in the same bytes, and what those get who may not see kernels; made if there are any."""

    whole: bytes
    make_less: Callable[[], bytes] | None = None  # None: there is nothing about kernels in it

    @cached_property
    def less(self) -> bytes:
        """Without what is about kernels."""
        return self.make_less() if self.make_less else self.whole


class Viewer:
    """What one client has not got yet."""

    def __init__(self, sees_kernels: bool = True) -> None:
        self.is_closed = False
        self.sees_kernels = sees_kernels
        self._waiting: dict[str, bytes] = {}
        self._news = asyncio.Event()

    def put(self, name: str, data: bytes) -> None:
        """Have an event for the client; an older one of the same name that it has not taken is dropped."""
        self._waiting[name] = data
        self._news.set()

    def close(self) -> None:
        """Nothing comes any more, or nothing reads it."""
        self.is_closed = True
        self._news.set()

    async def take(self, limit_seconds: float) -> bytes:
        """Return what is new; empty after the time limit, and when the viewer is closed."""
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self._news.wait(), limit_seconds)
        self._news.clear()
        waiting, self._waiting = self._waiting, {}
        return b"" if self.is_closed else b"".join(waiting.values())


class Broadcast:
    """The viewers of one server."""

    def __init__(self, started: Callable[[], None], stopped: Callable[[], None]) -> None:
        self._started = started  # the first viewer is here
        self._stopped = stopped  # the last one has gone
        self._viewers: set[Viewer] = set()
        self._last: dict[str, Event] = {}  # what a new viewer gets immediately
        self._is_closed = False

    def __len__(self) -> int:
        return len(self._viewers)

    @contextlib.contextmanager
    def viewer(self, sees_kernels: bool = True) -> Iterator[Viewer]:
        """Have one more viewer, unless there are too many; `sees_kernels`: it may know of kernels and notebooks."""
        if self._is_closed or len(self._viewers) >= MAX_VIEWERS:
            raise RocmlabError(
                "the server is shutting down" if self._is_closed else f"{MAX_VIEWERS} pages watch the GPUs already",
                "each is a connection that the server keeps open",
                "close some of them, then reload this page",
            )
        viewer = Viewer(sees_kernels)
        for name, event in self._last.items():
            viewer.put(name, event.whole if sees_kernels else event.less)
        self._viewers.add(viewer)
        if len(self._viewers) == 1:
            self._started()
        try:
            yield viewer
        finally:
            self._viewers.discard(viewer)
            if not self._viewers:
                self._last.clear()  # it would be old when the next one comes
                self._stopped()

    def send(self, name: str, whole: bytes, make_less: Callable[[], bytes] | None = None) -> None:
        """Give an event to all viewers; `make_less` makes it for those who may not see kernels; None: the same."""
        self._last[name] = event = Event(whole, make_less)
        for viewer in self._viewers:
            viewer.put(name, whole if viewer.sees_kernels else event.less)

    def close(self) -> None:
        """End all of them, and let no other in."""
        self._is_closed = True
        for viewer in self._viewers:
            viewer.close()
