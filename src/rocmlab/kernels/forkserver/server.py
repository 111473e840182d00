"""The fork server: imports modules once, then forks a kernel for each client that requests one.

It is run by its path under the kernel's interpreter, which need not have rocmlab, as `server.py STARTER LISTENER
MODULE...`: a descriptor whose other end its starter holds, one that listens already, and what to import. It has one
thread. Each client's connection belongs to one kernel: when it is closed, that kernel and all that carries its token is
killed. When its starter exits, everything ends. If the starter writes to it, it exits after its last kernel.
"""

from __future__ import annotations

import contextlib
import fcntl
import importlib.util
import json
import os
import select
import selectors
import shutil
import signal
import socket
import struct
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, NoReturn


def _load(name: str, folder: Path = Path(__file__).parent) -> ModuleType:
    """Import a module by its path, under a name that no notebook imports."""
    full = f"_rocmlab_forkserver_{name}"
    if full in sys.modules:
        return sys.modules[full]
    specification = importlib.util.spec_from_file_location(full, folder / f"{name}.py")
    assert specification is not None
    assert specification.loader is not None
    module = importlib.util.module_from_spec(specification)
    sys.modules[full] = module
    specification.loader.exec_module(module)
    return module


if TYPE_CHECKING:
    from rocmlab.base import job_tokens
    from rocmlab.kernels.forkserver import child, guards, messages, preload
else:
    job_tokens = _load("job_tokens", Path(__file__).parents[2] / "base")
    guards, messages = _load("guards"), _load("messages")
    _load("lifeline")
    _load("inheritance")
    child, preload = _load("child"), _load("preload")

REPLY_SECONDS = 5.0  # for a client to read an answer of some bytes
RETIRE_SECONDS = 15.0  # without a kernel; a client may just be connecting


@dataclass
class Client:
    """A connection, and the kernel that belongs to it, if it has requested one."""

    connection: socket.socket
    process: int  # its own
    refusal: str | None = None  # why nothing is done for it
    buffer: messages.Buffer = field(default_factory=messages.Buffer)
    pid: int | None = None  # not reaped while the connection is open, so that its number is not another's
    pidfd: int | None = None
    token: str = ""


class Server:
    """Serves clients, one after another."""

    def __init__(self, listener: socket.socket, starter: socket.socket) -> None:
        self.listener = listener
        self.starter = starter
        self.environment = _first_environment()
        self.added = {name: text for name, text in os.environ.items() if self.environment.get(name) != text}
        self.clients: dict[int, Client] = {}  # by descriptor of their connection
        self.why: str | None = None  # why it refuses
        self.is_retired = False
        own = {listener.fileno(), starter.fileno()}
        self.kept = sorted(set(guards.open_files()) - own)  # opened by the imports: kernels need them as they are
        self.selector = selectors.DefaultSelector()
        self.folder = str(Path(listener.getsockname()).parent)

    def serve(self) -> NoReturn:
        """Serve until the starter has exited, or the last kernel after this server was retired."""
        self.selector.register(self.listener, selectors.EVENT_READ, self._accept)
        self.selector.register(self.starter, selectors.EVENT_READ, self._starter)
        while True:
            ready = self.selector.select(RETIRE_SECONDS if self.is_retired and not self.clients else None)
            if not ready:
                self._leave()
            for key, _ in ready:
                if self._is_registered(key):
                    key.data()

    def _is_registered(self, key: selectors.SelectorKey) -> bool:
        return self.selector.get_map().get(key.fileobj) is key  # an earlier one of this round may have closed it

    # -- clients ---------------------------------------------------------------------------------------------------

    def _accept(self) -> None:
        try:
            connection, _ = self.listener.accept()
        except OSError:  # it is gone already
            return
        credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
        process, uid, _ = struct.unpack("3i", credentials)
        connection.settimeout(REPLY_SECONDS)
        client = Client(connection, process)
        if uid != os.geteuid():
            client.refusal = f"this fork server serves uid {os.geteuid()} and not {uid}"
        self.clients[connection.fileno()] = client
        self.selector.register(connection, selectors.EVENT_READ, lambda: self._read(client))

    def _read(self, client: Client) -> None:
        try:
            is_open = client.buffer.fill(client.connection)
            if client.refusal:
                self._refuse(client, client.refusal)
                is_open = False
            message = client.buffer.message() if is_open else None
            if message is not None and client.pid is None:
                self._answer(client, message)
        except (messages.Malformed, TypeError, ValueError, KeyError) as err:
            self._refuse(client, f"malformed request: {err}")
            is_open = client.pid is not None
        except OSError as err:  # no memory, no process, no space, or the client is gone already
            self._refuse(client, str(err))
            is_open = False
        if not is_open:
            self._end(client)

    def _answer(self, client: Client, message: dict[str, Any]) -> None:
        """Fork a kernel, or report why not.

        Raises:
            ValueError: the request makes no sense.
            KeyError: it lacks something.
            TypeError: something in it is of another kind.
        """
        self.why = self.why or guards.obstacle()
        if self.why:
            self._refuse(client, self.why)
            return
        request = messages.parse(message, client.buffer.descriptors, self.added)
        client.token = request.token or job_tokens.new()
        if not job_tokens.PATTERN.fullmatch(client.token):
            raise ValueError(f"a token has 16 hexadecimal digits: {client.token}")
        why = guards.difference({**self.added, **self.environment}, request.environment)
        if why is None and not os.path.isdir(request.cwd):
            why = f"no such folder: {request.cwd}"
        if why:
            self._refuse(client, why)
        else:
            self._fork(client, request)

    def _fork(self, client: Client, request: messages.Request) -> None:
        sys.stdout.flush()
        sys.stderr.flush()
        pid = os.fork()
        if pid == 0:
            try:
                self._forget(client)
                connection = client.connection
                child.run(request, client.token, (*self.kept, connection.fileno()), lambda: _report_serving(connection))
            finally:
                os._exit(1)
        client.buffer.close()
        try:
            client.pidfd = os.pidfd_open(pid)
        except OSError:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            raise
        client.pid = pid
        self.selector.register(client.pidfd, selectors.EVENT_READ, lambda: self._ended(client))
        try:
            messages.send(client.connection, {"pid": pid}, [client.pidfd])
        except OSError:
            self._end(client)

    def _forget(self, client: Client) -> None:
        """In the kernel: close the server's connections; those that are objects would close them again, later."""
        self.selector.close()
        self.listener.close()
        self.starter.close()
        for other in self.clients.values():
            if other is not client:
                other.connection.close()

    def _refuse(self, client: Client, why: str) -> None:
        with contextlib.suppress(OSError):
            messages.send(client.connection, {"refused": why})

    def _ended(self, client: Client) -> None:
        """Report the exit code of its kernel to a client; what the kernel left is killed when the client goes."""
        assert client.pidfd is not None
        self.selector.unregister(client.pidfd)
        found = os.waitid(os.P_PIDFD, client.pidfd, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        code = None
        if found is not None:
            code = found.si_status if found.si_code == os.CLD_EXITED else -found.si_status
        with contextlib.suppress(OSError):  # the client has also exited, and its end of file is next
            messages.send(client.connection, {"exit": code})

    # -- ends ------------------------------------------------------------------------------------------------------

    def _end(self, client: Client) -> None:
        """Forget a client, and kill its kernel and all that this has left."""
        self.clients.pop(client.connection.fileno(), None)
        self.selector.unregister(client.connection)
        client.connection.close()
        client.buffer.close()
        if client.pid is None:
            return
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(client.pid, signal.SIGKILL)
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(client.pid, signal.SIGKILL)  # it had no session of its own yet
        job_tokens.kill(client.token, spared=(client.process, os.getppid()))
        self._reap(client)

    def _reap(self, client: Client) -> None:
        assert client.pidfd is not None
        with contextlib.suppress(KeyError):
            self.selector.unregister(client.pidfd)
        self.selector.register(client.pidfd, selectors.EVENT_READ, lambda: self._reaped(client))

    def _reaped(self, client: Client) -> None:
        assert client.pidfd is not None
        self.selector.unregister(client.pidfd)
        os.waitid(os.P_PIDFD, client.pidfd, os.WEXITED | os.WNOHANG)
        os.close(client.pidfd)

    def _starter(self) -> None:
        """End everything if the starter has exited; what it writes retires this server."""
        self.is_retired = False
        with contextlib.suppress(ConnectionError):  # it never read our report
            self.is_retired = bool(self.starter.recv(1))
        if self.is_retired:
            return
        for client in list(self.clients.values()):
            self._end(client)
        self._leave()

    def _leave(self) -> NoReturn:
        shutil.rmtree(self.folder, ignore_errors=True)
        os._exit(0)


def _first_environment() -> dict[str, str]:
    """Return the environment that this process was started with; what it imported may have added to it."""
    block = Path("/proc/self/environ").read_bytes()
    pairs = (os.fsdecode(line).partition("=") for line in block.split(b"\0") if b"=" in line)
    return {name: text for name, _, text in pairs}


def _report_serving(connection: socket.socket) -> None:
    """In the kernel: report to the client, and leave the connection to the server."""
    with contextlib.suppress(OSError):
        messages.send(connection, {"serving": True})
    connection.close()


def _watch_while_importing(starter: socket.socket) -> Callable[[], None]:
    """Have the system end this process if its starter goes while it imports; return what ends that."""
    flags = fcntl.fcntl(starter, fcntl.F_GETFL)
    fcntl.fcntl(starter, fcntl.F_SETOWN, os.getpid())
    fcntl.fcntl(starter, fcntl.F_SETFL, flags | os.O_ASYNC)  # SIGIO, which ends a process
    poll = select.poll()
    poll.register(starter, select.POLLIN)
    if poll.poll(0):  # it went before the signal was requested
        os._exit(1)

    def imported() -> None:
        fcntl.fcntl(starter, fcntl.F_SETFL, flags)

    return imported


def main(arguments: Sequence[str]) -> NoReturn:
    """Serve at a socket, with modules imported."""
    # Ray's workers ignore the one and block the other, and hand both on.
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    here = str(Path(__file__).parent)
    if sys.path and sys.path[0] == here:
        del sys.path[0]  # no notebook shall import these
    starter, listener = (socket.socket(fileno=int(number)) for number in arguments[:2])
    modules = arguments[2:]
    os.environ.setdefault("PYDEVD_DISABLE_FILE_VALIDATION", "1")
    began = time.monotonic()
    imported = _watch_while_importing(starter)
    why = preload.prepare(modules)
    imported()
    server = Server(listener, starter)
    server.why = why
    state = {"why": why, "seconds": round(time.monotonic() - began, 3)}
    with contextlib.suppress(OSError):  # its end of file is next
        starter.sendall(json.dumps(state).encode() + b"\n")
    server.serve()


if __name__ == "__main__":
    main(sys.argv[1:])
