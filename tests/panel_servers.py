"""A real jupyter_server with the GPU panel, on a simulated host, and clients that read its streams."""

from __future__ import annotations

import contextlib
import ctypes
import http.client
import json
import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import websocket
from clones import free_port
from kernel_hosts import WAIT_SECONDS, Host

from rocmlab.lab import install

TOKEN = "t" * 32
METRICS_TOKEN = "m" * 32
JUPYTERLABS = ("jupyterlab", "jupyter_lsp", "jupyter_server_proxy", "jupyter_server_terminals", "notebook_shim")
ALONE = f"--ServerApp.jpserver_extensions={dict.fromkeys(JUPYTERLABS, False)}"  # our extension without JupyterLab
IN_ACCESS = 1  # of <sys/inotify.h>: a file was read
EVENT_BYTES = 16  # of struct inotify_event, for a watched file


class Server:
    """One server process: JupyterLab's, or one with our extension alone, which takes half as much to start."""

    def __init__(
        self, host: Host, *words: str, base_url: str = "/", has_jupyterlab: bool = False, **environment: str
    ) -> None:
        self.port = free_port()
        self.base_url = base_url
        install.main(["--prefix", str(host.prefix)])
        self.folder = host.prefix.parent
        self.log_path = self.folder / f"server-{self.port}.log"  # two of one host have two
        command = [sys.executable, "-m", "jupyter_server", f"--ServerApp.port={self.port}", "--allow-root"]
        if not has_jupyterlab:
            command.append(ALONE)
        with self.log_path.open("w") as log:
            self.process = subprocess.Popen(
                [*command, "--ServerApp.ip=127.0.0.1", f"--ServerApp.base_url={base_url}", *words],
                env={
                    **os.environ,
                    "JUPYTER_TOKEN": TOKEN,
                    "PYTHONFAULTHANDLER": "1",
                    "JUPYTER_CONFIG_DIR": str(host.prefix / "etc/jupyter"),
                    **environment,
                },
                cwd=self.folder,
                stdout=log,
                stderr=subprocess.STDOUT,
            )

    @property
    def log(self) -> str:
        """What it has printed so far."""
        return self.log_path.read_text()

    def up(self) -> Server:
        """Wait until it answers."""
        wait(lambda: self.request("api/status")[0] == 200, 0.1)
        return self

    def request(
        self, path: str, method: str = "GET", body: object = None, token: str | None = TOKEN, **headers: str
    ) -> tuple[int, dict[str, str], str]:
        """Return status, headers and text; status 0 where no one answers. Redirects are not followed."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=WAIT_SECONDS)
        given = {"Authorization": f"token {token}"} if token else {}
        given |= {name.replace("_", "-"): value for name, value in headers.items()}
        try:
            data = json.dumps(body) if body is not None else None
            connection.request(method, self.base_url + path, data, given)
            answer = connection.getresponse()
            found: dict[str, str] = {}
            for name, value in answer.getheaders():
                found[name.lower()] = "; ".join(filter(None, (found.get(name.lower()), value)))
            return answer.status, found, answer.read().decode()
        except OSError:
            return 0, {}, ""
        finally:
            connection.close()

    def json(self, path: str, method: str = "GET", body: object = None, status: int = 200) -> dict:
        """Return the JSON of an answer that has this status."""
        found = self.request(path, method, body)
        assert found[0] == status, found
        return json.loads(found[2], parse_constant=_no_constant) if found[2] else {}

    def notebook(self, path: str, kernel: str) -> dict:
        """Start a session as JupyterLab does when a notebook is opened; return it when its kernel is idle."""
        wanted = {"path": path, "name": Path(path).name, "type": "notebook", "kernel": {"name": kernel}}
        session = self.json("api/sessions", "POST", wanted, status=201)
        wait(lambda: self.json(f"api/kernels/{session['kernel']['id']}")["execution_state"] in ("idle", "starting"))
        return session

    @contextlib.contextmanager
    def stream(self) -> Iterator[Events]:
        """Watch, as a page does."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=WAIT_SECONDS)
        connection.request("GET", f"{self.base_url}rocmlab/api/stream", headers={"Authorization": f"token {TOKEN}"})
        answer = connection.getresponse()
        try:
            assert answer.status == 200, answer.read()
            yield Events(answer)
        finally:
            answer.close()
            connection.close()

    @contextlib.contextmanager
    def execute(self, kernel_id: str, code: str) -> Iterator[None]:
        """Run code in a kernel, without waiting for its end; it keeps running when this is left."""
        url = f"ws://127.0.0.1:{self.port}{self.base_url}api/kernels/{kernel_id}/channels?token={TOKEN}"
        header = {"msg_id": "1", "msg_type": "execute_request", "username": "", "session": "s", "version": "5.3"}
        content = {"code": code, "silent": False, "store_history": False, "user_expressions": {}, "allow_stdin": False}
        message = {"header": header, "parent_header": {}, "metadata": {}, "content": content, "channel": "shell"}
        channel = websocket.create_connection(url, timeout=WAIT_SECONDS)
        try:
            channel.send(json.dumps(message))
            yield
        finally:
            channel.close()

    def stop(self) -> float:
        """Shut it down, and return how long that took."""
        begin = time.monotonic()
        self.process.terminate()
        try:
            self.process.wait(WAIT_SECONDS)
        except subprocess.TimeoutExpired:
            self.process.send_signal(signal.SIGABRT)  # it prints where each of its threads is
            self.process.wait(WAIT_SECONDS)
            raise AssertionError(f"the server did not end:\n{self.log[-8000:]}") from None
        return time.monotonic() - begin


class Page:
    """A page's connection to a kernel, as JupyterLab opens it: cells have ids."""

    def __init__(self, server: Server, kernel_id: str, session: str = "") -> None:
        self.server, self.kernel_id, self.session = server, kernel_id, session or uuid.uuid4().hex
        path = f"api/kernels/{kernel_id}/channels?token={TOKEN}&session_id={self.session}"
        address = f"ws://127.0.0.1:{server.port}{server.base_url}{path}"
        self.channel = websocket.create_connection(address, timeout=WAIT_SECONDS)

    def send(self, kind: str, channel: str, content: dict, metadata: dict | None = None) -> str:
        """Send a message, and return its id."""
        header = {
            "msg_id": uuid.uuid4().hex,
            "msg_type": kind,
            "username": "",
            "session": self.session,
            "version": "5.3",
        }
        message = {"header": header, "parent_header": {}, "metadata": metadata or {}, "content": content}
        self.channel.send(json.dumps({**message, "channel": channel}))
        return header["msg_id"]

    def run(self, cell: str, code: str) -> str:
        """Run a cell, and return the id of the request."""
        content = {"code": code, "silent": False, "store_history": True, "user_expressions": {}, "stop_on_error": True}
        return self.send("execute_request", "shell", {**content, "allow_stdin": True}, {"cellId": cell} if cell else {})

    def until(self, kind: str, request: str) -> dict:
        """Return the next message of a kind that belongs to a request."""
        while True:
            message = json.loads(self.channel.recv())
            if message["msg_type"] == kind and message["parent_header"].get("msg_id") == request:
                return message

    def news(self, after: int = -1) -> dict:
        """Return what the recorder has for this page."""
        return self.server.json(f"rocmlab/api/outputs/{self.kernel_id}?session={self.session}&after={after}")

    def close(self) -> None:
        """Go, as a page that is closed."""
        self.channel.close()


class Events:
    """The server-sent events of one connection."""

    def __init__(self, answer: http.client.HTTPResponse) -> None:
        self.answer = answer
        self.comments: list[str] = []
        self.latest: dict[str, dict] = {}  # what came last, by name

    def __iter__(self) -> Iterator[tuple[str, dict]]:
        name = ""
        while line := self.answer.readline().decode():
            field, _, value = line.rstrip("\n").partition(": ")
            if field == "event":
                name = value
            elif field == "data":
                self.latest[name] = json.loads(value, parse_constant=_no_constant)
                yield name, self.latest[name]
            elif line.startswith(":"):
                self.comments.append(line)
                yield "", {}

    def first(self, name: str, is_it: Callable[[dict], object] = lambda _: True) -> dict:
        """Return the event of this name that came last, or the next one that is wanted."""
        end = time.monotonic() + WAIT_SECONDS
        if name in self.latest and is_it(self.latest[name]):
            return self.latest[name]
        for found, data in self:
            if found == name and is_it(data):
                return data
            assert time.monotonic() < end, self.latest.get(name)
        raise AssertionError(f"the stream ended: {self.latest.get(name)}")


def wait(is_true: Callable[[], object], pause: float = 0.05) -> None:
    """Wait until something is true."""
    end = time.monotonic() + WAIT_SECONDS
    while not is_true():
        assert time.monotonic() < end, "it never became true"
        time.sleep(pause)


def _no_constant(word: str) -> None:
    raise AssertionError(f"{word} is no JSON")


class Reads:
    """How often files are read, by whomever: counted by the kernel (inotify)."""

    def __init__(self, *paths: Path) -> None:
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._descriptor = self._libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
        assert self._descriptor >= 0, os.strerror(ctypes.get_errno())
        for path in paths:
            watch = self._libc.inotify_add_watch(self._descriptor, os.fsencode(path), IN_ACCESS)
            assert watch >= 0, f"{path}: {os.strerror(ctypes.get_errno())}"

    def count(self) -> int:
        """Return how many there were since the last question; such as follow each other at once may count as one."""
        try:
            return len(os.read(self._descriptor, 1 << 16)) // EVENT_BYTES
        except BlockingIOError:
            return 0

    def during(self, seconds: float) -> int:
        """Return how many there are in a time."""
        self.count()
        end, found = time.monotonic() + seconds, 0
        while time.monotonic() < end:
            time.sleep(0.02)
            found += self.count()
        return found

    def close(self) -> None:
        """Count no more."""
        os.close(self._descriptor)
