"""Ends of a command by signals: in an orderly way, as Ctrl-C ends it."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager

SIGNALS = (signal.SIGTERM, signal.SIGHUP)  # a container or a service ends; a terminal is closed


@contextmanager
def interruptible() -> Iterator[None]:
    """Let SIGTERM and SIGHUP raise KeyboardInterrupt once; a later one does not interrupt what puts things in order.

    One that is ignored stays so, as SIGHUP under nohup. Outside the main thread nothing changes.
    """
    if threading.current_thread() is not threading.main_thread():
        yield  # of a program that has handlers of its own
        return
    is_ended = False

    def end(number: int, frame: object) -> None:
        nonlocal is_ended
        if not is_ended:
            is_ended = True
            raise KeyboardInterrupt

    before = {number: signal.getsignal(number) for number in SIGNALS}
    for number, handler in before.items():
        if handler not in (signal.SIG_IGN, None):
            signal.signal(number, end)
    try:
        yield
    finally:
        for number, handler in before.items():
            if handler is not None:
                signal.signal(number, handler)
