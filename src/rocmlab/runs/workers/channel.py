"""A child process and the socket to it, as the runner sees them: commands go out, events come in, as JSON lines.

Descriptors travel with a command (SCM_RIGHTS). Whichever side ends, the other reads the end of the socket.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from typing import Any

Event = dict[str, Any]

MAX_LINE_BYTES = 1_000_000
LAST_WORDS_BYTES = 4_000
# As `python -m` does it, but nothing is imported from the folder in which the runner was started: a `queue.py` of the
# person's would take the place of Python's own. (PYTHONSAFEPATH, which does the same, is new in Python 3.11.)
START = """import sys
if sys.path[:1] == [""]:
    del sys.path[0]
import runpy
runpy.run_module(sys.argv.pop(1), run_name="__main__", alter_sys=True)"""
EXIT_SECONDS = 2.0  # for a process that has closed its socket, until it is killed


class Link:
    """A process, its socket, and its messages."""

    def __init__(self, module: str, environment: Mapping[str, str]) -> None:
        """Start a module as a program with a DESCRIPTOR; it sends messages once `connect` has been awaited.

        Raises:
            OSError: there is no process, no socket or no file to be had.
        """
        self.fault: str | None = None  # why it cannot be listened to any more
        self._reader: asyncio.StreamReader | None = None
        self._writer: asyncio.StreamWriter | None = None
        with contextlib.ExitStack() as on_error:
            self._words = on_error.enter_context(tempfile.TemporaryFile())
            self._socket, theirs = socket.socketpair()
            on_error.callback(self._socket.close)
            with theirs:
                self.process = subprocess.Popen(
                    [sys.executable, "-u", "-c", START, module, str(theirs.fileno())],
                    stdin=subprocess.DEVNULL,
                    stdout=self._words,
                    stderr=self._words,
                    env=dict(environment),
                    pass_fds=(theirs.fileno(),),
                    start_new_session=True,  # so that a Ctrl-C reaches the runner alone, which stops jobs in order
                )
            on_error.pop_all()
        self._socket.setblocking(False)

    @property
    def is_alive(self) -> bool:
        """Whether it could take a command."""
        return self.process.poll() is None and self.fault is None

    def send(self, command: Mapping[str, Any], descriptors: Sequence[int] = ()) -> bool:
        """Give it a short command, with descriptors; False if it cannot be reached."""
        line = json.dumps(command).encode() + b"\n"
        try:
            return socket.send_fds(self._socket, [line], descriptors) == len(line)
        except OSError:
            return False

    async def event(self) -> Event | None:
        """Return its next message; None if it has ended, or its messages are invalid."""
        if self._reader is None:
            self._reader, self._writer = await asyncio.open_connection(sock=self._socket.dup(), limit=MAX_LINE_BYTES)
        while True:
            try:
                line = await self._reader.readline()
            except ValueError:
                self.fault = f"it sent a line of more than {MAX_LINE_BYTES / 1e6:g} MB"
                return None
            except OSError:
                return None
            if not line.endswith(b"\n"):  # the end; one that is killed may leave half a line
                return None
            with contextlib.suppress(ValueError, RecursionError):
                event = json.loads(line)
                if isinstance(event, dict) and isinstance(event.get("event"), str):
                    return event

    def first(self, seconds: float) -> Event | None:
        """Wait, without an event loop, for its first messages, one by one; None if it ends or takes too long.

        It is for what must be known before there is a loop: from the first `event` on, that alone may be called.
        """
        end = time.monotonic() + seconds
        poll = select.poll()
        poll.register(self._socket, select.POLLIN)
        line = b""
        while not line.endswith(b"\n"):
            if not poll.poll(max(0.0, end - time.monotonic()) * 1000):
                return None
            seen = self._socket.recv(65_536, socket.MSG_PEEK)
            if not seen:
                return None
            line += self._socket.recv(seen.find(b"\n") + 1 or len(seen))
        event = json.loads(line)
        assert isinstance(event, dict)
        return event

    def signal(self, number: signal.Signals) -> None:
        """Send it a signal, if it is there."""
        with contextlib.suppress(ProcessLookupError):
            self.process.send_signal(number)

    def last_output(self) -> str:
        """Return the end of what it printed outside of any job, such as why it could not start."""
        size = os.fstat(self._words.fileno()).st_size
        return os.pread(self._words.fileno(), LAST_WORDS_BYTES, max(0, size - LAST_WORDS_BYTES)).decode(
            "utf-8", "replace"
        )

    async def exit_code(self) -> int:
        """Return how it ended, below zero for a signal; one that has only closed its socket is killed."""
        return await asyncio.to_thread(self._wait, 0.0 if self.fault else EXIT_SECONDS)

    def _wait(self, patience_seconds: float) -> int:
        with contextlib.suppress(subprocess.TimeoutExpired):
            return self.process.wait(patience_seconds)
        self.process.kill()
        with contextlib.suppress(subprocess.TimeoutExpired):
            return self.process.wait(EXIT_SECONDS)
        return -int(signal.SIGKILL)  # it hangs in a driver, and will be gone when that lets it go

    async def close(self) -> None:
        """End it immediately, when it gets no more commands."""
        self.process.kill()
        await asyncio.to_thread(self._wait, EXIT_SECONDS)
        if self._writer is not None:
            self._writer.close()
        self._socket.close()
        self._words.close()
