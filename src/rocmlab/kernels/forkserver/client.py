"""Asking a warm parent for a kernel, watching it, and ending it."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import threading
from collections.abc import Mapping, Sequence
from typing import Any

from rocmlab.kernels.forkserver import messages

ANSWER_SECONDS = 120.0  # for a parent that still imports, and for a kernel to bind its sockets
EXIT_SECONDS = 1.0  # for the parent to tell how a kernel has ended that has
KILL_SECONDS = 5.0  # one that hangs in a driver cannot be ended; it must not hold us


class Refused(Exception):
    """No kernel is forked; the reason is why, and the caller starts one cold."""


def fork(
    address: str,
    *,
    cwd: str,
    environment: Mapping[str, str],
    descriptors: Sequence[int],
    output: int,
    connection: Mapping[str, Any] | None = None,
    connection_file: str | None = None,
    mark: str | None = None,
    arguments: Sequence[str] = ("--HistoryManager.hist_file=:memory:",),
    answer_seconds: float = ANSWER_SECONDS,
) -> Forked:
    """Have a kernel forked; when this returns, its sockets are bound.

    A parent that still imports is waited for. The kernel ends when what is returned is closed, and when this process
    ends, whatever becomes of the parent.

    Args:
        address: of the parent.
        cwd: where the kernel runs.
        environment: all of it, as a kernel that is started in the ordinary way would have it.
        descriptors: of its leases; it gets copies, which what it executes and what its children fork does not have.
        output: a descriptor for what its process prints; it gets a copy.
        connection: what it listens at; None for sockets in a folder of its own.
        connection_file: where that is or will be written down, and what the kernel may be known by; None for a file in
            a folder of its own.
        mark: of its job, 16 hexadecimal digits; None for one of its own.
        arguments: more words for ipykernel's command line.
        answer_seconds: how long to wait.

    Raises:
        Refused: there is no kernel, and why.
    """
    request = {
        "cwd": os.path.abspath(cwd),
        "environment": dict(environment),
        "connection": None if connection is None else dict(connection),
        "connection_file": None if connection_file is None else os.path.abspath(connection_file),
        "mark": mark,
        "arguments": list(arguments),
    }
    read_end, lifeline = os.pipe()
    channel = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    buffer = messages.Buffer()
    try:
        channel.settimeout(answer_seconds)
        channel.connect(address)
        with contextlib.suppress(BrokenPipeError):  # then it has said why
            messages.send(channel, request, [output, read_end, *descriptors])
        answer = _answer(channel, buffer)
    except (OSError, messages.Malformed) as err:
        _close(channel, buffer, lifeline)
        raise Refused(_why(err, answer_seconds)) from err
    except BaseException:
        _close(channel, buffer, lifeline)
        raise
    finally:
        os.close(read_end)
    return Forked(answer, channel, buffer, lifeline)


def _answer(channel: socket.socket, buffer: messages.Buffer) -> messages.Message:
    """Wait until the kernel is there and can be reached.

    Raises:
        Refused: it will not be.
    """
    answer: messages.Message = {}
    is_serving = False
    while not (is_serving and answer):
        message = messages.receive(channel, buffer)
        if message is None:
            raise Refused("the warm parent has ended")
        if "refused" in message:
            raise Refused(str(message["refused"]))
        if "exit" in message:
            raise Refused(f"the forked kernel ended with exit code {message['exit']} before it could be reached")
        if "pid" in message:
            answer = message
        is_serving = is_serving or "serving" in message
    return answer


def _why(err: Exception, seconds: float) -> str:
    if isinstance(err, TimeoutError):
        return f"the warm parent did not answer within {seconds:g} seconds"
    if isinstance(err, (FileNotFoundError, ConnectionError)):
        return "the warm parent has ended"
    return f"the warm parent cannot be asked: {err}"


def _close(channel: socket.socket, buffer: messages.Buffer, lifeline: int) -> None:
    channel.close()
    buffer.close()
    os.close(lifeline)


class Forked:
    """A forked kernel; whoever has this owns it."""

    def __init__(
        self, answer: messages.Message, channel: socket.socket, buffer: messages.Buffer, lifeline: int
    ) -> None:
        self.pid: int = answer["pid"]
        self.connection: dict[str, Any] = answer["connection"]
        self.connection_file: str = answer["file"]
        self.mark: str = answer["mark"]
        self.sentinel: int = buffer.take()[0]  # a pidfd, readable once the process has ended
        self.closed = False
        self._channel = channel
        self._buffer = buffer
        self._lifeline = lifeline
        self._code: int | None = None
        self._is_told = False  # how it ended, or that nobody will tell
        self._lock = threading.RLock()

    def ended(self, seconds: float = 0.0) -> bool:
        """Wait until its process has ended; False if it has not."""
        if self.closed:
            return True
        poll = select.poll()
        poll.register(self.sentinel, select.POLLIN)
        return bool(poll.poll(seconds * 1000))

    def exit_code(self, timeout: float = 0) -> int | None:
        """Return how it ended, below zero for a signal; None if it has not, or its parent ended before it."""
        if not self.closed and self.ended(timeout):
            with self._lock:
                self._hear()
        return self._code

    def _hear(self) -> None:
        while not self._is_told and not self.closed:
            self._channel.settimeout(EXIT_SECONDS)
            try:
                message = messages.receive(self._channel, self._buffer)
            except (OSError, messages.Malformed):  # too late, or killed with the connection
                message = None
            if message is None:
                self._is_told = True
            elif "exit" in message:
                self._code, self._is_told = message["exit"], True

    def signal(self, number: int) -> None:
        """Send a signal to its process group."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            if not self.ended():
                os.killpg(self.pid, number)

    def close(self) -> None:
        """End it and all that carries its mark; how it ended is still known."""
        with self._lock:
            if self.closed:
                return
            self.signal(signal.SIGKILL)
            self.exit_code(KILL_SECONDS)
            self.closed = True
            _close(self._channel, self._buffer, self._lifeline)
            os.close(self.sentinel)
