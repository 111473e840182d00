"""What the panel's half in the Jupyter server costs: a whole server with one viewer, against one without the panel."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import secrets
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from http.client import HTTPConnection
from pathlib import Path

from benchmarks.environment import python_path
from rocmlab.base.errors import RocmlabError

EXTENSION = "rocmlab.lab.server"
START_SECONDS = 120.0
SETTLE_SECONDS = 8.0  # in which imports and first readings end
MEASURE_SECONDS = 30.0
MIN_SNAPSHOTS = 15  # that a viewer must have seen meanwhile


def missing() -> str | None:
    """Return why the server cannot be measured here; None if it can."""
    for module in ("jupyter_server", EXTENSION):
        try:
            is_there = importlib.util.find_spec(module) is not None
        except ImportError:
            is_there = False
        if not is_there:
            return f"there is no {module}: python -m pip install 'rocmlab[lab]'"
    return None


def measure(root: Path, runs: int) -> Iterator[tuple[float, float]]:
    """Yield what a server takes of a core in percent, alone and with the panel and a viewer, in turns.

    Args:
        root: of a simulated host.
        runs: how often.

    Raises:
        RocmlabError: a server did not start, or the viewer saw nothing.
    """
    with (
        tempfile.TemporaryDirectory(prefix="rocmlab-bench-") as folder,
        _Server(root, Path(folder, "alone"), has_panel=False) as alone,
        _Server(root, Path(folder, "ours"), has_panel=True) as ours,
        ours.viewer(),
    ):
        time.sleep(SETTLE_SECONDS)
        for _ in range(runs):
            yield alone.percent(), ours.percent()


class _Server:
    """A Jupyter server of its own."""

    def __init__(self, root: Path, folder: Path, *, has_panel: bool) -> None:
        folder.mkdir()
        self._folder, self._has_panel = folder, has_panel
        self._token = secrets.token_hex(16)
        self._seen = 0
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self._port = free.getsockname()[1]
        self._environment = {
            **os.environ,
            "ROCMLAB_ROOT": os.fspath(root),
            "JUPYTER_CONFIG_DIR": str(folder),
            "JUPYTER_CONFIG_PATH": "",
            "JUPYTER_RUNTIME_DIR": str(folder / "runtime"),
            "PYTHONPATH": python_path(),
        }

    def __enter__(self) -> _Server:
        extensions = {EXTENSION: self._has_panel}
        settings = {
            "ip": "127.0.0.1",
            "port": self._port,
            "port_retries": 0,
            "root_dir": str(self._folder),
            "allow_root": True,
            "open_browser": False,
            "jpserver_extensions": extensions,
        }
        config = {"ServerApp": settings, "IdentityProvider": {"token": self._token}}
        (self._folder / "jupyter_server_config.json").write_text(json.dumps(config), encoding="utf-8")
        self._log = (self._folder / "log").open("wb")
        self._process = subprocess.Popen(
            [sys.executable, "-m", "jupyter_server"],
            cwd=self._folder,
            env=self._environment,
            stdin=subprocess.DEVNULL,
            stdout=self._log,
            stderr=self._log,
        )
        try:
            self._await_start()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        try:
            self._process.wait(20)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._log.close()

    def _await_start(self) -> None:
        end = time.monotonic() + START_SECONDS
        url = f"http://127.0.0.1:{self._port}/api/status?token={self._token}"
        while time.monotonic() < end and self._process.poll() is None:
            with contextlib.suppress(OSError, urllib.error.URLError), urllib.request.urlopen(url, timeout=5):
                return
            time.sleep(0.1)
        raise self._failed("the Jupyter server of the benchmark did not start")

    def _failed(self, what: str) -> RocmlabError:
        output = (self._folder / "log").read_text(encoding="utf-8", errors="replace")[-800:]
        return RocmlabError(what, output.strip() or "no output", "start `jupyter server` manually")

    @contextlib.contextmanager
    def viewer(self) -> Iterator[None]:
        """Watch the stream meanwhile, as the panel does."""
        connection = HTTPConnection("127.0.0.1", self._port, timeout=START_SECONDS)
        connection.request("GET", "/rocmlab/api/stream", headers={"Authorization": f"token {self._token}"})
        answer = connection.getresponse()
        if answer.status != 200:
            raise self._failed(f"the stream answered {answer.status}")
        over = threading.Event()

        def watch() -> None:
            with contextlib.suppress(OSError, ValueError, AttributeError):
                while not over.is_set() and (line := answer.readline()):
                    self._seen += line.startswith(b"event: snapshot")

        thread = threading.Thread(target=watch, daemon=True)
        thread.start()
        try:
            yield
        finally:
            over.set()
            if connection.sock is not None:
                with contextlib.suppress(OSError):
                    connection.sock.shutdown(socket.SHUT_RDWR)
            thread.join(5)
            connection.close()

    def percent(self) -> float:
        """Return how much of a core the server takes."""
        before, seen, began = self._cpu_seconds(), self._seen, time.monotonic()
        time.sleep(MEASURE_SECONDS)
        used, passed = self._cpu_seconds() - before, time.monotonic() - began
        if self._has_panel and self._seen - seen < MIN_SNAPSHOTS:
            raise self._failed(f"the viewer saw {self._seen - seen} snapshots in {passed:.0f} s")
        return 100 * used / passed

    def _cpu_seconds(self) -> float:
        """Return what the process has used: nanoseconds of its threads, as `stat` counts in hundredths of a second."""
        total = 0
        for path in Path(f"/proc/{self._process.pid}/task").glob("*/schedstat"):
            with contextlib.suppress(OSError):
                total += int(path.read_text(encoding="ascii").split()[0])
        return total / 1e9
