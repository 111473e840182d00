"""Closing what a server has begun: an error of one part leaves no other one open."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterable


async def close_all(closings: Iterable[Callable[[], Awaitable[None] | None]], log: logging.Logger) -> None:
    """Call and await one after the other; an error is logged, and the next one is called."""
    for closing in closings:
        try:
            waiting = closing()
            if waiting is not None:
                await waiting
        except Exception:
            log.exception("a part of the server could not be closed; the others are")
