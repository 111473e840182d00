"""Only our own processes are ended: a recorded number, or a word in a command line, is not enough."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from clones import free_port
from test_native import make_lab

from rocmlab.base import identity
from rocmlab.cluster.node import record as node_record
from rocmlab.stack.environment import Environment
from rocmlab.stack.native import NativeLab
from rocmlab.stack.process import follow

UID = 4321

LISTENING = "import socket, sys, time; s = socket.create_server(('127.0.0.1', int(sys.argv[1]))); time.sleep(600)"


@contextmanager
def process(*words: str, folder: Path | None = None, **variables: str) -> Iterator[subprocess.Popen[bytes]]:
    """Run a program until the end of the test."""
    with subprocess.Popen(words, cwd=folder, env={**os.environ, **variables}) as found:
        try:
            while identity.arguments_of(found.pid) != list(words):  # for a moment the kernel shows no arguments yet
                time.sleep(0.001)
            yield found
        finally:
            found.kill()


def sleeper(*words: str) -> tuple[str, ...]:
    """Return a command that waits, with these words in its command line."""
    return (sys.executable, "-c", "import time; time.sleep(600)", *words)


@pytest.fixture
def lab(tmp_path: Path) -> NativeLab:
    """A native lab that does not run."""
    found = make_lab(tmp_path)
    found.view.mkdir(parents=True)
    return found


def record(lab: NativeLab, **facts: object) -> None:
    """Write what an earlier `make up` has recorded."""
    lab.jupyter.record.write_text(json.dumps({"configuration": {"PORT": str(lab.port)}, **facts}))


class TestServer:
    """The native lab's JupyterLab."""

    @pytest.mark.parametrize("verb", ["stop", "clean"])
    def test_an_editor_with_the_recorded_number_survives(self, lab: NativeLab, verb: str) -> None:
        """Its command line contains jupyterlab, as that of an editor of this project's notes would."""
        with process(*sleeper("notes/jupyterlab.md")) as editor:
            record(lab, pid=editor.pid)
            assert not lab.is_running()
            if verb == "stop":
                lab.stop(lambda _: None)
            else:
                lab.venv = Environment(lab.settings.project, "cpu", sys.executable, "")  # whose folder is not there
                lab.clean(lambda _: None)

            assert editor.poll() is None

    def test_a_process_that_reuses_the_number_survives(self, lab: NativeLab) -> None:
        """The start time of the record is another's; even the mark alone, inherited by a kernel, is not enough."""
        with process(*sleeper(), **{identity.SERVER: "m" * 32}) as other:
            record(lab, pid=other.pid, started="1", mark="m" * 32)

            lab.stop(lambda _: None)

            assert other.poll() is None

    def test_a_process_without_the_mark_survives(self, lab: NativeLab) -> None:
        """The record was written by someone, or belongs to a copy of this folder."""
        with process(*sleeper("-m", "jupyterlab")) as other:
            record(lab, pid=other.pid, started=identity.start_of(other.pid), mark="m" * 32)

            lab.stop(lambda _: None)

            assert other.poll() is None

    def test_the_marked_server_is_stopped_with_what_it_started_and_nothing_else(self, lab: NativeLab) -> None:
        """Children of children as well; a process with the same words next to it stays."""
        program = (
            "import subprocess, sys, time; subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'])"
        )
        command = (sys.executable, "-c", f"{program}; time.sleep(600)")
        with process(*command, **{identity.SERVER: lab.jupyter.token}) as server, process(*command) as other:
            running = identity.find(server.pid)
            assert running is not None
            deadline = time.monotonic() + 20
            while len(identity.family(running)) < 2 and time.monotonic() < deadline:
                time.sleep(0.05)
            family = identity.family(running)
            lab.jupyter.remember(server.pid, {})
            assert lab.is_running()

            lab.stop(lambda _: None)

            assert server.wait(20) is not None
            assert len(family) == 2
            assert not any(each.is_alive for each in family)
            assert other.poll() is None
            for each in identity.family(identity.find(other.pid)):
                os.kill(each.pid, signal.SIGKILL)

    @pytest.mark.slow
    @pytest.mark.parametrize("is_ours", [True, False])
    def test_a_server_whose_record_is_lost_is_known_by_all_that_it_shows(self, lab: NativeLab, is_ours: bool) -> None:
        """Command line, folder, user and socket together; an editor that shows all but the socket survives."""
        port = lab.port if is_ours else free_port()
        words = (str(port), "-m", "jupyterlab", f"--ServerApp.root_dir={lab.view}")
        with process(sys.executable, "-c", LISTENING, *words, folder=lab.view) as server:
            found = identity.find(server.pid)
            deadline = time.monotonic() + 20
            while not lab.is_running() and is_ours and time.monotonic() < deadline:
                record(lab, pid=server.pid)
                time.sleep(0.05)
            record(lab, pid=server.pid)
            assert found is not None

            assert lab.is_running() == is_ours
            lab.stop(lambda _: None)

            assert (server.poll() is None) != is_ours


class TestNode:
    """The native lab's Ray node."""

    def test_an_editor_with_the_recorded_number_survives(self, lab: NativeLab, tmp_path: Path) -> None:
        """With `cluster node` in its command line, and in the project's own folder."""
        with process(*sleeper("cluster", "node"), folder=tmp_path) as editor:
            facts = {"pid": editor.pid, "folder": str(tmp_path), "configuration": {}}
            for more in (
                {},
                {"mark": "m" * 32, "started": identity.start_of(editor.pid)},
                {"mark": "", "started": "1"},
            ):
                lab.node.record.write_text(json.dumps({**facts, **more}))

                assert lab.node.started() is None
                assert not lab.node.stop(lambda _: None)

            assert editor.poll() is None

    def test_the_marked_node_is_stopped(self, lab: NativeLab, tmp_path: Path) -> None:
        """By number, start time and mark."""
        with process(*sleeper("cluster", "node"), **{identity.NODE: "n" * 32}) as node:
            facts = {"pid": node.pid, "started": identity.start_of(node.pid), "mark": "n" * 32, "folder": str(tmp_path)}
            lab.node.record.write_text(json.dumps(facts))

            assert lab.node.stop(lambda _: None)

            assert node.wait(20) == -signal.SIGTERM

    def test_a_number_that_was_given_away_is_no_node(self, tmp_path: Path) -> None:
        """What `node.json` says is compared with the process's start."""
        own = os.getpid()
        found = node_record.Record(own, "ready", "a:1", "a", 1, True, 0, False, started="1")

        assert not found.is_alive
        assert not node_record.is_node(own)


def test_a_signal_reaches_only_the_process_that_was_meant() -> None:
    """Another start time: nothing is sent; the right one: it is; one that has exited: nothing happens."""
    with process(*sleeper()) as found:
        started = identity.start_of(found.pid)
        assert started is not None
        identity.Process(found.pid, "1").send(signal.SIGKILL)
        time.sleep(0.05)
        assert found.poll() is None

        identity.Process(found.pid, started).send(signal.SIGTERM)

        assert found.wait(20) == -signal.SIGTERM
    identity.Process(found.pid, started).send(signal.SIGKILL)


def test_a_long_program_ends_with_the_command_that_follows_it(tmp_path: Path) -> None:
    """As where `make up` gets SIGTERM during a build: the build would go on, and nothing would wait for it."""
    program = "import os, time; print(os.getpid(), flush=True); time.sleep(600)"
    processes: list[identity.Process] = []

    def interrupt(line: str) -> None:
        processes.append(identity.Process(int(line), identity.start_of(int(line)) or ""))
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        follow([sys.executable, "-c", program], log=tmp_path / "log", show=interrupt)

    assert identity.wait_gone(processes, 10)


@pytest.mark.skipif(os.getuid() != 0, reason="a second user id needs root: run .ci/run")
def test_the_log_of_a_make_up_under_sudo_can_be_replaced_by_the_caller(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is theirs, in a folder of theirs; a link in its place is replaced, and what it leads to stays as it is."""
    state, other = tmp_path / ".rocmlab", tmp_path / "other"
    state.mkdir()
    os.chown(state, UID, UID)
    other.write_text("of root")
    (state / "build.log").symlink_to(other)
    monkeypatch.setenv("SUDO_UID", str(UID))

    follow([sys.executable, "-c", "print('built')"], log=state / "build.log", show=lambda _: None)

    log = state / "build.log"
    assert (log.is_symlink(), log.read_text(), log.stat().st_uid) == (False, "built\n", UID)
    assert (other.read_text(), other.stat().st_uid) == ("of root", 0)
