"""SIGINT and SIGTERM end a notebook in order; the second one immediately."""

from __future__ import annotations

import contextlib
import signal
import socket
import threading
from collections.abc import Iterator

SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Signals:
    """Which signal has come."""

    def __init__(self) -> None:
        self.number = 0  # of the signal that requests to stop; 0 if none did
        self.is_repeated = False  # whether it has come again, and is not to wait any longer
        self.wake: socket.socket | None = None  # becomes readable when one comes; None while no one listens

    @contextlib.contextmanager
    def heard(self) -> Iterator[None]:
        """Hear them, and afterwards let them do what they did before."""
        if threading.current_thread() is not threading.main_thread():
            yield  # the code in the main thread decides
            return
        before = {number: signal.getsignal(number) for number in SIGNALS}
        read_end, write_end = socket.socketpair()
        for end in (read_end, write_end):
            end.setblocking(False)
        old = signal.set_wakeup_fd(write_end.fileno(), warn_on_full_buffer=False)
        self.wake = read_end
        for number in SIGNALS:
            signal.signal(number, self._hear)
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
            signal.set_wakeup_fd(old)
            self.wake = None
            read_end.close()
            write_end.close()

    def _hear(self, number: int, _frame: object) -> None:
        self.is_repeated = bool(self.number)
        self.number = number
