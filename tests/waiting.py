"""Waiting for a descriptor, whatever its number: `select.select` knows only those below 1,024."""

from __future__ import annotations

import selectors
from typing import IO


def readable(source: int | IO[str] | IO[bytes], seconds: float) -> bool:
    """Return whether there is something to read, after that time at most."""
    with selectors.DefaultSelector() as selector:
        selector.register(source, selectors.EVENT_READ)
        return bool(selector.select(seconds))
