"""Reading a lab's files: that one cannot be read is not an error of the backup's disk."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import BinaryIO

from rocmlab.backup import parts


class Unreadable(Exception):
    """A source cannot be read; its cause is the OSError."""


@contextmanager
def opened(source: str) -> Iterator[BinaryIO]:
    """Open a source, which is not a link; raise Unreadable."""
    try:
        descriptor = os.open(source, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as err:
        raise Unreadable from err
    with os.fdopen(descriptor, "rb") as file:
        yield file


def pieces(file: BinaryIO, size: int) -> Iterator[bytes]:
    """Yield at most `size` bytes of a source; raise Unreadable."""
    found = parts.pieces(file, size)
    while True:
        try:
            piece = next(found, b"")
        except OSError as err:
            raise Unreadable from err
        if not piece:
            return
        yield piece
