"""Warm kernels: whoever dies, no one is left behind, and what a user works with is not taken away."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from warm_kernels import Talk, ask, gone, lives, program, said, warm

from rocmlab.kernels.fork_server import ForkServer
from rocmlab.kernels.forked import Refused

pytestmark = [pytest.mark.slow, pytest.mark.skipif(sys.platform != "linux", reason="warm kernels need Linux")]

# A kernel that hears nothing: its signals are blocked, and a loop of C code holds the interpreter's lock.
DEAF = """
import ctypes, os, signal, threading
signal.pthread_sigmask(signal.SIG_SETMASK, signal.valid_signals())
for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
    if number < 32:
        signal.signal(number, signal.SIG_IGN)
os.close(os.open("deaf", os.O_CREAT))
ctypes.PyDLL(None).sleep(60)
"""
CLIENT = """
import os, signal, sys
from rocmlab.base import job_tokens
from warm_kernels import Talk, ask, fork
address, folder, code = sys.argv[1:]
running = fork(address, folder, token=job_tokens.new())
ask(running.connection, "import subprocess")
other = ask(running.connection, "o = subprocess.Popen(['sleep', '60'], start_new_session=True)", "o.pid")
same = ask(running.connection, "o = subprocess.Popen(['sleep', '60'])", "o.pid")
if code:
    talk = Talk(running.connection)
    talk.send(code)
print(running.pid, other, same, flush=True)
signal.pause()
"""
STARTER = """
import os, signal, sys
from pathlib import Path
from rocmlab.kernels.fork_server import ForkServer
from warm_kernels import fork
server = ForkServer(sys.executable, [sys.argv[2]], dict(os.environ), Path(sys.argv[1]))
if sys.argv[2] == "json":
    running = fork(server.address, sys.argv[1])
    print(server.pid, running.pid, flush=True)
else:
    print(server.pid, flush=True)
signal.pause()
"""


@pytest.fixture(autouse=True)
def _tests_are_importable(monkeypatch: pytest.MonkeyPatch) -> None:
    """The programs of these tests use the helper next to them."""
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join((str(Path(__file__).parent), os.environ["PYTHONPATH"])))


@pytest.fixture
def server(_tests_are_importable: None, tmp_path: Path) -> Iterator[ForkServer]:
    """A server that may be killed."""
    found = ForkServer(sys.executable, ["json"], dict(os.environ), tmp_path / "warm")
    assert found.ready(60), found.why
    yield found
    found.close()


@pytest.mark.long
@pytest.mark.parametrize("code", ["", "while True: pass", DEAF], ids=["idle", "busy", "deaf"])
def test_a_kernel_ends_with_its_client(server: ForkServer, tmp_path: Path, code: str) -> None:
    """So do programs of its, in its session or another; the server serves on."""
    with program(CLIENT, server.address, tmp_path, code) as client:
        pids = said(client)
        _until_deaf(tmp_path, code)

        client.kill()

        assert gone(*pids)
    with warm(server.address, tmp_path) as another:
        assert ask(another.connection, "", "1") == 1


def test_a_starter_that_ignores_the_ends_of_children_does_no_harm(tmp_path: Path) -> None:
    """Ray's processes do, and what they start inherits it: the server serves on, and exit codes are true."""
    before = signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    try:
        found = ForkServer(sys.executable, ["json"], dict(os.environ), tmp_path / "warm")
    finally:
        signal.signal(signal.SIGCHLD, before)
    try:
        assert found.ready(60), found.why
        for code in (3, 0):
            with warm(found.address, tmp_path) as kernel:
                run = "__import__('subprocess').run(['sh', '-c', 'exit 7']).returncode"
                assert ask(kernel.connection, "", run) == 7
                talk = Talk(kernel.connection)
                talk.send(f"import os; os._exit({code})")
                assert kernel.process.ended(10)
                talk.close()
                assert kernel.exit_code() == code
        assert found.ready(5), found.why
    finally:
        found.close()


def test_a_kernel_outlives_its_fork_server(server: ForkServer, tmp_path: Path) -> None:
    """A user's work continues; it can be watched, interrupted and ended, but no one can know its exit code."""
    assert server.pid is not None
    with warm(server.address, tmp_path) as kernel:
        ask(kernel.connection, "x = 41")

        os.kill(server.pid, signal.SIGKILL)
        assert gone(server.pid)

        assert ask(kernel.connection, "x += 1", "x") == 42
        assert (kernel.ended(), kernel.exit_code()) == (False, None)
        with pytest.raises(Refused, match="the fork server has exited"), warm(server.address, tmp_path):
            pass
        assert not server.ready(5)
        assert server.why == "the fork server exited with code -9"
        talk = Talk(kernel.connection)
        talk.send("import os; os._exit(3)")
        assert kernel.process.ended(10)
        talk.close()
        assert kernel.exit_code() is None
    assert gone(kernel.pid)


@pytest.mark.long
@pytest.mark.parametrize("first", ["parent", "client", "at once"])
@pytest.mark.parametrize("code", ["", DEAF], ids=["idle", "deaf"])
def test_nobody_is_left_when_parent_and_client_are_killed(
    server: ForkServer, tmp_path: Path, first: str, code: str
) -> None:
    """The system itself ends the kernel's process group: no thread, no lock, no handler is needed."""
    assert server.pid is not None
    with program(CLIENT, server.address, tmp_path, code) as client:
        kernel, other, same = said(client)
        _until_deaf(tmp_path, code)
        order = [client.pid, server.pid] if first == "client" else [server.pid, client.pid]

        os.kill(order[0], signal.SIGSTOP if first == "at once" else signal.SIGKILL)
        os.kill(order[1], signal.SIGKILL)
        os.kill(order[0], signal.SIGKILL)

        assert gone(kernel, same, *order)
    with suppress(ProcessLookupError):
        os.kill(other, signal.SIGKILL)  # in a session of its own, with no one left who knows its token


def test_everything_ends_with_the_starter(tmp_path: Path) -> None:
    """Killed, it takes server, kernel and files with it."""
    with program(STARTER, tmp_path / "warm", "json") as starter:
        pids = said(starter)
        assert all(lives(pid) for pid in pids)

        starter.kill()

        assert gone(*pids)
    assert list((tmp_path / "warm").iterdir()) == []


def test_a_parent_that_imports_ends_with_its_starter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An import that hangs in C code does not keep it."""
    (tmp_path / "slow_stand_in.py").write_text("import ctypes\nctypes.PyDLL(None).sleep(60)")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join((str(tmp_path), os.environ["PYTHONPATH"])))
    with program(STARTER, tmp_path / "warm", "slow_stand_in") as starter:
        pids = said(starter)

        starter.kill()

        assert gone(*pids)


def test_closing_a_parent_ends_its_kernels(tmp_path: Path) -> None:
    """And its folder goes; closing it again does no harm."""
    server = ForkServer(sys.executable, ["json"], dict(os.environ), tmp_path / "warm")
    with warm(server.address, tmp_path) as kernel:
        server.close()
        server.close()

        assert gone(kernel.pid)
        assert server.why == "the fork server was closed"
        assert list((tmp_path / "warm").iterdir()) == []


def _until_deaf(folder: Path, code: str) -> None:
    """Wait until a kernel has stopped listening."""
    end = time.monotonic() + 20
    while code == DEAF and not (folder / "deaf").exists():
        assert time.monotonic() < end
        time.sleep(0.01)
