"""A system file that is read every second: it stays open, and what it has held before is not parsed again."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from rocmlab.devices import roots

TYPE_CHECKING = False  # `typing` itself would cost milliseconds at each start
if TYPE_CHECKING:
    from typing import Any

SHORT_BYTES = 256  # usual limit of a reading; most files hold a number
PAGE_BYTES = 4096  # most that the kernel puts into one file of sysfs
MEMORY = 256  # contents whose meaning is remembered: temperatures and clocks come again
CLOSED = -1
MAX_FAILURES = 3  # in a row, after which a file rests
REST_SECONDS = 10.0  # before it is retried: some never answer, as on cards without a fan


class KeptFile:
    """One file, what it held when it was last read, and what that means.

    After a reading that fails it is opened again by the next one. It does not notice that it has been replaced: its
    owner does that, once for all files of a device.
    """

    __slots__ = ("_decode", "_failures", "_known", "_rests_until", "content", "handle", "limit", "meaning", "name")

    def __init__(self, path: Path, decode: Callable[[bytes], Any]) -> None:
        self.handle = CLOSED
        self.name = os.fspath(path)
        self.limit = PAGE_BYTES
        self.content: bytes | None = None  # None: it could not be read
        self.meaning: Any = None  # None of no content
        self._decode = decode
        self._known: dict[bytes, Any] = {}
        self._failures = 0  # in a row
        self._rests_until = 0.0

    def read(self, is_announced: bool = False) -> Any:  # noqa: ANN401
        """Return what it means now."""
        content = self.fetch(is_announced)
        if content != self.content:
            self.take(content)
        return self.meaning

    def fetch(self, is_announced: bool = False) -> bytes | None:
        """Return what it holds now, opening it where it is not open; None if it cannot be read."""
        try:
            if is_announced:
                roots.announce(self.name)
            if self.handle < 0:
                return self._fetch_first()
            return os.pread(self.handle, self.limit, 0)
        except (OSError, ValueError):
            self.close()
            return None

    def fetch_again(self) -> bytes | None:
        """Return what `fetch` does, after a reading that failed; a file that always fails is left alone for a while."""
        if self.handle >= 0:
            self._failures = 0  # the last one had opened it
        elif self._failures >= MAX_FAILURES and time.monotonic() < self._rests_until:
            return None
        content = self.fetch()
        if content is not None:
            self._failures = 0
            return content
        self._failures += 1
        if self._failures >= MAX_FAILURES:
            self._rests_until = time.monotonic() + REST_SECONDS
        return None

    def _fetch_first(self) -> bytes:
        handle = roots.open_file(self.name)
        if handle < _most_descriptors():
            self.handle = handle
            return os.pread(handle, self.limit, 0)
        try:  # others need descriptors too: it is opened for each reading
            return os.pread(handle, self.limit, 0)
        finally:
            os.close(handle)

    def take(self, content: bytes | None) -> bytes | None:
        """Remember what was fetched, or the whole of it where it was cut off, and find out what it means."""
        if content is not None and len(content) >= self.limit and self.limit < roots.LIMIT_BYTES:
            self.limit = roots.LIMIT_BYTES
            content = self.fetch()
        elif content is not None and len(content) < SHORT_BYTES // 2:
            self.limit = min(self.limit, SHORT_BYTES)
        self.content = content
        if content is None:
            self.meaning = None
        elif content in self._known:
            self.meaning = self._known[content]
        else:
            if len(self._known) >= MEMORY:
                self._known.clear()
            self.meaning = self._known[content] = self._decode(content)
        return content

    def close(self) -> None:
        """Give the descriptor back."""
        if self.handle >= 0:
            handle, self.handle = self.handle, CLOSED
            os.close(handle)

    def __del__(self, close: Callable[[int], None] = os.close) -> None:  # `os` may be gone when the interpreter ends
        if self.handle >= 0:
            close(self.handle)


def read_all(files: Sequence[KeptFile], is_announced: bool) -> list[bytes | None]:
    """Return what the files hold now, None for those that cannot be read."""
    if is_announced:
        return [file.fetch(is_announced) for file in files]
    contents: list[bytes | None] = []
    add, pread = contents.append, os.pread
    for file in files:
        try:
            add(pread(file.handle, file.limit, 0))
        except OSError:  # or it is not open
            add(file.fetch_again())
    return contents


def _most_descriptors() -> int:
    """Return the first descriptor that is not kept open: half of what the process may have is left to others."""
    try:
        import resource

        return resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 2
    except (ImportError, OSError):
        return 128
