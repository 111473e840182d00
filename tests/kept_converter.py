"""One real converter for the runs of a test session: what it imports takes as long as all else of a short run."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import leftovers
import pytest

from rocmlab.kernels import memory
from rocmlab.runs.workers import converter
from rocmlab.runs.workers.channel import Link

USUAL = converter.PROGRAM


class KeptLink(Link):
    """A process that several event loops listen to, one after the other."""

    def leave(self) -> None:
        """Stop listening in this event loop."""
        if self._writer is not None:
            self._writer.close()
        self._reader = self._writer = None

    def drop(self) -> None:
        """End the process without an event loop."""
        self.process.kill()
        self.process.wait()
        self._socket.close()
        self._words.close()


@contextmanager
def kept() -> Iterator[None]:
    """Let runs of this process hand their converter on, as long as it is sound and idle, and is not under test."""
    idle: list[KeptLink] = []

    class Keeping(converter.Converter):
        def launch(self) -> Link:
            if converter.PROGRAM != USUAL or converter.Link is not Link:
                return super().launch()
            while idle:
                found = idle.pop()
                if found.is_alive:
                    return found
                found.drop()
            before = leftovers.held()
            found = KeptLink(USUAL, self.environment)
            leftovers.shared.update(leftovers.held() - before)
            memory.make_expendable(found.process.pid)
            return found

        async def release(self, link: Link) -> None:
            if isinstance(link, KeptLink) and link.is_alive and not self.is_busy and not idle:
                link.leave()
                idle.append(link)
            else:
                await super().release(link)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("rocmlab.runs.workers.workers.Converter", Keeping)
        yield
    for each in idle:
        each.drop()
