"""Kernels from a fork server: requesting one, watching it, and ending it. See docs/warm.md."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import subprocess
import threading
from collections.abc import Mapping, Sequence

from rocmlab.kernels.forkserver import messages
from rocmlab.kernels.forkserver.lifeline import Lifeline
from rocmlab.kernels.kernelspec import WITHOUT_HISTORY

ANSWER_SECONDS = 120.0  # for a fork server that still imports, and for a kernel to bind its sockets
EXIT_SECONDS = 1.0  # for the fork server to report the exit code of a kernel that has exited
KILL_SECONDS = 5.0  # one that hangs in a driver cannot be killed; it must not block us
UNKNOWN_EXIT = -int(signal.SIGKILL)  # reported to Jupyter where the fork server exited before its kernel


class Refused(Exception):
    """No kernel was forked; the text is the reason, and the caller starts one cold."""


def fork(
    address: str,
    *,
    cwd: str,
    environment: Mapping[str, str],
    descriptors: Sequence[int],
    output: int,
    connection_file: str,
    token: str | None = None,
    arguments: Sequence[str] = (WITHOUT_HISTORY,),
    answer_seconds: float = ANSWER_SECONDS,
) -> ForkedProcess:
    """Have a kernel forked; when this returns, its sockets are bound.

    A fork server that still imports is waited for. The kernel ends when what is returned is closed, and when this
    process ends, whatever happens to the fork server.

    Args:
        address: of the fork server.
        cwd: where the kernel runs.
        environment: all of it, as a cold kernel would have it.
        descriptors: of its leases; it gets copies, which what it executes and what its children fork does not have.
        output: a descriptor for what its process prints; it gets a copy.
        connection_file: of the kernel.
        token: of its job, 16 hexadecimal digits; None for one of its own.
        arguments: more arguments for ipykernel's command line.
        answer_seconds: how long to wait.

    Raises:
        Refused: there is no kernel, and why.
    """
    request = {
        "cwd": os.path.abspath(cwd),
        "environment": dict(environment),
        "connection_file": os.path.abspath(connection_file),
        "token": token,
        "arguments": list(arguments),
    }
    lifeline = Lifeline()
    channel = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    buffer = messages.Buffer()
    try:
        channel.settimeout(answer_seconds)
        channel.connect(address)
        with contextlib.suppress(BrokenPipeError):  # then its answer says why
            messages.send(channel, request, [output, lifeline.descriptor, *descriptors])
        lifeline.pass_on()
        pid = _answer(channel, buffer)
    except BaseException as err:
        _close(channel, buffer, lifeline)
        if isinstance(err, (OSError, messages.Malformed)):
            raise Refused(_why(err, answer_seconds)) from err
        raise
    return ForkedProcess(pid, channel, buffer, lifeline)


def _answer(channel: socket.socket, buffer: messages.Buffer) -> int:
    """Wait until the kernel can be reached, and return its process.

    Raises:
        Refused: it cannot be.
    """
    pid: int | None = None
    is_serving = False
    while not (is_serving and pid):
        message = messages.receive(channel, buffer)
        if message is None:
            raise Refused("the fork server has exited")
        if "refused" in message:
            raise Refused(str(message["refused"]))
        if "exit" in message:
            raise Refused(f"the forked kernel exited with code {message['exit']} before it could be reached")
        pid = message.get("pid", pid)
        is_serving = is_serving or "serving" in message
    return pid


def _why(err: Exception, seconds: float) -> str:
    if isinstance(err, TimeoutError):
        return f"the fork server did not answer within {seconds:g} seconds"
    if isinstance(err, (FileNotFoundError, ConnectionError)):
        return "the fork server has exited"
    return f"the fork server cannot be reached: {err}"


def _close(channel: socket.socket, buffer: messages.Buffer, lifeline: Lifeline) -> None:
    channel.close()
    buffer.close()
    lifeline.close()


class ForkedProcess:
    """A forked kernel's process, which belongs to the process that has this.

    `poll` and what follows it is what jupyter_client uses of a `subprocess.Popen`.
    """

    stdin = stdout = stderr = None

    def __init__(self, pid: int, channel: socket.socket, buffer: messages.Buffer, lifeline: Lifeline) -> None:
        self.pid = pid
        self.sentinel: int | None = buffer.take()[0]  # a pidfd, readable once the process has exited
        self.returncode: int | None = None  # after `poll` has seen that it exited
        self._channel = channel
        self._buffer = buffer
        self._lifeline = lifeline
        self._code: int | None = None
        self._is_reported = False  # its exit code, or that it stays unknown
        self._lock = threading.RLock()

    def ended(self, seconds: float = 0.0) -> bool:
        """Wait until it has exited; False if it has not."""
        if self.sentinel is None:
            return True
        poll = select.poll()
        poll.register(self.sentinel, select.POLLIN)
        return bool(poll.poll(seconds * 1000))

    def exit_code(self, seconds: float = 0.0) -> int | None:
        """Return its exit code, below zero for a signal; None if it has not exited, or its fork server did before."""
        with self._lock:
            if self.sentinel is not None and self.ended(seconds):
                self._hear()
            return self._code

    def _hear(self) -> None:
        while not self._is_reported:
            self._channel.settimeout(EXIT_SECONDS)
            try:
                message = messages.receive(self._channel, self._buffer)
            except (OSError, messages.Malformed):  # too late, or killed with the connection
                message = None
            if message is None or "exit" in message:
                self._code = message["exit"] if message else None
                self._is_reported = True

    def signal(self, number: int) -> None:
        """Send a signal to its process group."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            if not self.ended():
                os.killpg(self.pid, number)

    def close(self) -> None:
        """Kill it and all that carries its token; its exit code is still known."""
        with self._lock:
            if self.sentinel is None:
                return
            self.signal(signal.SIGKILL)
            self.exit_code(KILL_SECONDS)
            _close(self._channel, self._buffer, self._lifeline)
            os.close(self.sentinel)
            self.sentinel = None

    def poll(self) -> int | None:
        """Return its exit code, None as long as it runs; what it forked ends with it."""
        if self.returncode is None and self.ended():
            code = self.exit_code()
            self.close()
            self.returncode = UNKNOWN_EXIT if code is None else code
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Wait until it has exited.

        Raises:
            TimeoutExpired: it still runs.
        """
        self.ended(86400.0 if timeout is None else timeout)
        code = self.poll()
        if code is None:
            raise subprocess.TimeoutExpired(f"the kernel {self.pid}", timeout or 0)
        return code

    send_signal = signal

    def terminate(self) -> None:
        """Ask it to exit."""
        self.signal(signal.SIGTERM)

    def kill(self) -> None:
        """Kill it."""
        self.signal(signal.SIGKILL)
