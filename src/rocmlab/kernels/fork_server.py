"""One fork server, as the process that started it sees it."""

from __future__ import annotations

import contextlib
import json
import os
import select
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from rocmlab.base import confidential, job_tokens
from rocmlab.kernels import memory

PROGRAM = Path(__file__).parent / "forkserver/server.py"
MAX_SOCKET_BYTES = 107  # sun_path without its terminator, on Linux
CLOSE_SECONDS = 5.0
BACKLOG = 128
LOG_BYTES = 400  # of the end of its log, where it crashes
RETIRE = b"\n"
NOT_INHERITED = {
    "JPY_PARENT_PID": None,  # it would exit with a process that is not its parent
    "HIP_VISIBLE_DEVICES": "-1",  # it must not open a GPU; a kernel gets its own before it can
    "CUDA_VISIBLE_DEVICES": "-1",
    "ROCR_VISIBLE_DEVICES": None,
    job_tokens.NAME: job_tokens.PLACEHOLDER,
}


class ForkServer:
    """A fork server that this process has started; it ends with this process."""

    def __init__(self, python: str, modules: Sequence[str], environment: Mapping[str, str], folder: Path) -> None:
        """Start it, and return while it imports.

        Args:
            python: the kernel's interpreter.
            modules: what it imports.
            environment: its own, with the kernelspec's in it; what of it is fixed at import its kernels share.
            folder: where it has its own folder, with its socket and its log, which is removed with it.
        """
        self._lock = threading.Lock()
        self._received = b""
        self._state: dict[str, object] | None = None  # what it reported when it had imported
        self._why: str | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._channel, theirs = socket.socketpair()
        self._folder: Path | None = None
        self.address = ""
        try:
            self._folder = _own_folder(folder)
            self.address = str(self._folder / "server")
        except OSError as err:
            self._why = f"no folder for the fork server: {err}"
        with theirs:
            if sys.platform != "linux":
                self._why = "fork servers need Linux"
            if self._why:
                return
            try:
                self._process = self._start(python, modules, environment, theirs, Path(self.address).parent)
            except OSError as err:
                self._why = f"{python} could not be started: {err}"
                return
        memory.make_expendable(self._process.pid)

    def _start(
        self,
        python: str,
        modules: Sequence[str],
        environment: Mapping[str, str],
        channel: socket.socket,
        folder: Path,
    ) -> subprocess.Popen[bytes]:
        own = {**confidential.without(environment), **NOT_INHERITED}
        with open(folder / "log", "wb") as log, socket.socket(socket.AF_UNIX) as listener:
            listener.bind(self.address)
            os.chmod(self.address, 0o600)
            listener.listen(BACKLOG)  # from now on clients can connect; they wait until all is imported
            descriptors = (channel.fileno(), listener.fileno())
            return subprocess.Popen(
                [python, str(PROGRAM), *map(str, descriptors), *modules],
                env={name: text for name, text in own.items() if text is not None},
                cwd=folder,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,  # Ctrl-C is for whoever started it
                pass_fds=descriptors,
            )

    @property
    def pid(self) -> int | None:
        """Its process; None if it could not be started."""
        return self._process.pid if self._process else None

    @property
    def seconds(self) -> float | None:
        """How long it has imported; None while it does, and if it failed."""
        self._look()
        state = self._state or {}
        seconds = state.get("seconds")
        return seconds if isinstance(seconds, float) and state["why"] is None else None

    @property
    def why(self) -> str | None:
        """Why it cannot serve, once that is known; None otherwise."""
        self._look()
        return self._why

    def ready(self, seconds: float) -> bool:
        """Wait until it can fork kernels; False if it cannot yet, or never will (then `why` is the reason)."""
        end = time.monotonic() + seconds
        with self._lock:
            return self._wait(end)

    def _look(self) -> None:
        if self._lock.acquire(blocking=False):  # else another thread waits, and looks
            try:
                self._wait(0.0)
            finally:
                self._lock.release()

    def _wait(self, end: float) -> bool:
        while self._why is None:
            if self._state is not None and not _is_readable(self._channel, 0):
                return True
            if self._state is None and not _is_readable(self._channel, max(0.0, end - time.monotonic())):
                return False
            self._receive()
        return False

    def _receive(self) -> None:
        try:
            got = self._channel.recv(65536)
        except ConnectionError:  # it exited with something unread, such as `RETIRE` while it imported
            got = b""
        if not got:
            self._why = self._crashed()
            return
        self._received += got
        if self._received.endswith(b"\n"):
            state: dict[str, object] = json.loads(self._received)
            self._state = state
            why = state["why"]
            self._why = None if why is None else str(why)

    def _crashed(self) -> str:
        assert self._process is not None
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(CLOSE_SECONDS)
        output = ""
        with contextlib.suppress(OSError):
            text = Path(self.address).with_name("log").read_text(encoding="utf-8", errors="replace")
            output = text[-LOG_BYTES:].strip()
        return f"the fork server exited with code {self._process.returncode}" + (f": {output}" if output else "")

    def retire(self) -> None:
        """Have it exit by itself, after the last of its kernels."""
        with contextlib.suppress(OSError):
            self._channel.send(RETIRE)

    def close(self) -> None:
        """End it and all kernels that it forked."""
        with contextlib.suppress(OSError):
            self._channel.shutdown(socket.SHUT_RDWR)  # wakes a thread that waits
        with self._lock:
            self._why = self._why or "the fork server was closed"
            self._channel.close()
        if self._process:
            try:
                self._process.wait(CLOSE_SECONDS)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
        if self._folder:
            shutil.rmtree(self._folder, ignore_errors=True)


def _own_folder(folder: Path) -> Path:
    """Make a folder that only this user can open: in `folder`, if the socket's name is short enough there."""
    wanted = os.path.abspath(folder)
    if len(os.fsencode(f"{wanted}/w-01234567/server")) > MAX_SOCKET_BYTES:
        wanted = "/tmp"
    os.makedirs(wanted, exist_ok=True)
    return Path(tempfile.mkdtemp(prefix="w-", dir=wanted))


def _is_readable(channel: socket.socket, seconds: float) -> bool:
    poll = select.poll()  # a server may have more descriptors than select can watch
    poll.register(channel, select.POLLIN)
    return bool(poll.poll(seconds * 1000))
