"""Output for people, which is not worth a run: when its reader has gone, the run continues without one."""

from __future__ import annotations

import contextlib
import errno
import logging
import os
from typing import IO, TYPE_CHECKING, Any, cast

if TYPE_CHECKING:
    from rich.console import Console

log = logging.getLogger("rocmlab")

GONE = (errno.EPIPE, errno.EIO)  # the end of a pipe that `tee` or `less` had, a terminal that was closed


class Lossy:
    """A stream that drops what cannot be written, and from then on everything."""

    def __init__(self, stream: IO[str]) -> None:
        self._stream = stream

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401  whatever the stream has
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        """Write a text, or drop it."""
        try:
            self._stream.write(text)
        except OSError as err:
            self._drop_all(err)
        return len(text)

    def flush(self) -> None:
        """Write what waits to be written, or drop it."""
        try:
            self._stream.flush()
        except OSError as err:
            self._drop_all(err)

    def _drop_all(self, err: OSError) -> None:
        """Lead the descriptor nowhere: what waits in Python's buffer would fail again, at the latest at exit."""
        with contextlib.suppress(OSError), open(os.devnull, "wb") as nowhere:
            os.dup2(nowhere.fileno(), self._stream.fileno(), inheritable=True)
        if err.errno not in GONE:
            log.warning("%s takes no more output: %s", getattr(self._stream, "name", "a stream"), err.strerror)


def make_lossy(console: Console) -> Console:
    """Have a console drop what cannot be written, where rich would end the program; return it."""
    if not isinstance(console.file, Lossy):
        console.file = cast("IO[str]", Lossy(console.file))
    return console
