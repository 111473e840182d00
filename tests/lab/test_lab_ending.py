"""A server that is told to end does so, and first answers what it has begun."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from kernel_hosts import Host
from panel_servers import JUPYTERLABS, Server, wait

pytestmark = pytest.mark.slow

EXTENSION = """
import asyncio, threading, time
from pathlib import Path

from anyio.to_thread import run_sync
from tornado.web import RequestHandler

from rocmlab.lab.recorder.recorder import Recorder

SECONDS = 1.5


def save(path):
    Path("begun").touch()
    time.sleep(SECONDS)
    Path(path).touch()


async def fail(self):
    raise RuntimeError("a disk that is gone")


class Slow(RequestHandler):
    async def get(self, what):
        if what == "save":
            await run_sync(save, "first")
            await run_sync(save, "second")
        elif what == "break":
            Recorder.close = fail
        elif what == "thread":
            Path("begun").touch()
            await run_sync(threading.Event().wait)
        else:
            await run_sync(Path("begun").touch)
            await asyncio.Event().wait()
        self.write("done")


def _jupyter_server_extension_points():
    return [{"module": "slow_requests"}]


def _load_jupyter_server_extension(server):
    server.web_app.add_handlers(".*", [(r"/slow/(\\w+)", Slow)])
"""


@pytest.fixture
def server(host: Host, tmp_path: Path) -> Iterator[Server]:
    """A server with requests that take long."""
    (tmp_path / "installed/slow_requests.py").write_text(EXTENSION)
    extensions = {**dict.fromkeys(JUPYTERLABS, False), "slow_requests": True}
    found = Server(host, f"--ServerApp.jpserver_extensions={extensions}", has_jupyterlab=True)
    try:
        yield found.up()
    finally:
        found.process.kill()
        found.process.wait()


def begin(server: Server, what: str) -> tuple[threading.Thread, list[int]]:
    """Send a request, and return when the server works on it."""
    answers: list[int] = []
    thread = threading.Thread(target=lambda: answers.append(server.request(f"slow/{what}")[0]))
    thread.start()
    wait((server.folder / "begun").exists)
    return thread, answers


def test_a_request_is_answered_before_the_server_ends(server: Server) -> None:
    """What saves a file on a slow disk is not stopped in the middle."""
    thread, answers = begin(server, "save")
    server.stop()
    thread.join()
    assert (answers, server.process.returncode) == ([200], 0)
    assert (server.folder / "second").exists()


@pytest.mark.parametrize("what", ["task", "thread"])
def test_a_request_that_is_never_done_does_not_keep_the_server(server: Server, what: str) -> None:
    """Such as one that waits for a disk that is gone; Python would wait for AnyIO's thread, for ever."""
    thread, answers = begin(server, what)
    server.stop()
    thread.join()
    assert (answers, server.process.returncode) == ([0], 0)
    assert "without waiting for threads, as of a request that was not finished: AnyIO worker thread" in server.log
    assert not list(Path(os.environ["JUPYTER_RUNTIME_DIR"]).glob("jpserver-*"))


def test_what_cannot_be_closed_does_not_keep_the_server(server: Server) -> None:
    """jupyter_server would run on without its socket, for ever, and the lab's port could not be used again."""
    assert server.request("slow/break")[0] == 200
    thread, answers = begin(server, "save")
    server.stop()
    thread.join()
    assert (answers, server.process.returncode) == ([200], 0)
    assert "RuntimeError: a disk that is gone" in server.log
