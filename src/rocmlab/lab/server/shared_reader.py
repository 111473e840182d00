"""Work that may hang, such as the answer of a driver or a share: in a thread that is abandoned if it does.

The threads of `asyncio.to_thread` are waited for when Python ends, so that one hung card would keep the server alive.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
from collections.abc import Callable
from typing import Generic, TypeVar

from rocmlab.base import background
from rocmlab.base.errors import RocmlabError

T = TypeVar("T")


class SharedReader(Generic[T]):
    """One kind of work, of which at most one is under way: a second caller waits for the first one's result."""

    def __init__(self, what: str, limit_seconds: float) -> None:
        self.what = what  # in the plural, as an error names it
        self.limit_seconds = limit_seconds
        self._under_way: asyncio.Future[T] | None = None

    async def do(self, work: Callable[[], T]) -> T:
        """Return or raise the result of the work, or of that which is under way; an error after the time limit."""
        if self._under_way is None or self._under_way.done():
            self._under_way = _started(work)
        return await self._result(self._under_way, self.limit_seconds)

    async def do_own(self, work: Callable[[], T]) -> T:
        """Return the result of this work, which is done after that which is under way; the limit is for both."""
        loop = asyncio.get_running_loop()
        end = loop.time() + self.limit_seconds
        while self._under_way is not None and not self._under_way.done():
            if not (await asyncio.wait([self._under_way], timeout=end - loop.time()))[0]:
                break
        if self._under_way is None or self._under_way.done():
            self._under_way = _started(work)
            return await self._result(self._under_way, end - loop.time())
        raise self._refusal()

    async def _result(self, future: asyncio.Future[T], limit_seconds: float) -> T:
        done, _ = await asyncio.wait([future], timeout=limit_seconds)
        if not done:
            raise self._refusal()
        return future.result()

    def _refusal(self) -> RocmlabError:
        return RocmlabError(
            f"{self.what} could not be read within {self.limit_seconds:g} seconds",
            "a driver or the share does not answer",
            "on the host: make doctor",
        )


def _started(work: Callable[[], T]) -> asyncio.Future[T]:
    loop = asyncio.get_running_loop()
    future: asyncio.Future[T] = loop.create_future()
    future.add_done_callback(lambda done: done.cancelled() or done.exception())  # the request may be over

    def copy(source: concurrent.futures.Future[T]) -> None:
        if future.done():
            return
        if error := source.exception():
            future.set_exception(error)
        else:
            future.set_result(source.result())

    def pass_on(source: concurrent.futures.Future[T]) -> None:
        with contextlib.suppress(RuntimeError):  # the server has ended
            loop.call_soon_threadsafe(copy, source)

    background.start(work).add_done_callback(pass_on)
    return future
