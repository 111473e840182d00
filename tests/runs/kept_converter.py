"""One real converter for the runs of a test session: what it imports takes as long as all else of a short run."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from rocmlab.runs.workers import workers
from rocmlab.runs.workers.channel import Link
from rocmlab.runs.workers.workers import CONVERTER, Workers

START, END = Workers._start_converter, Workers._end_converter


def drop(link: Link) -> None:
    """End a process that no event loop listens to."""
    link.process.kill()
    link.process.wait()
    link._socket.close()
    link._words.close()


@contextmanager
def kept() -> Iterator[None]:
    """Let runs of this process hand their converter on, as long as it is sound and idle, and is not under test."""
    idle: list[Link] = []

    def start(self: Workers) -> Link:
        is_usual = workers.CONVERTER == CONVERTER and workers.Link is Link
        if self._converter is None and is_usual and idle:
            found = idle.pop()
            if found.is_alive:
                self._converter = found
            else:
                drop(found)
        return START(self)

    async def end(self: Workers) -> None:
        found = self._converter
        is_usual = type(found) is Link and workers.CONVERTER == CONVERTER
        if found is None or not is_usual or not found.is_alive or self._conversion.locked() or idle:
            await END(self)
            return
        self._converter = None
        if found._writer is not None:  # of this run's event loop
            found._writer.close()
        found._reader = found._writer = None
        idle.append(found)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Workers, "_start_converter", start)
        patch.setattr(Workers, "_end_converter", end)
        yield
    for each in idle:
        drop(each)
