"""How `rocmlab demo` ends; what it shows is tested with a real lab (tests/native)."""

from __future__ import annotations

import os
import signal
import socket
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from rocmlab.base.errors import RocmlabError
from rocmlab.cli import demo_work
from rocmlab.cli.main import main
from rocmlab.stack import demo
from rocmlab.stack import project as projects


class Lab:
    """Notes what is asked of it, and is interrupted at every chance."""

    def __init__(self) -> None:
        self.stops = 0

    def is_running(self) -> bool:
        """It never is, by itself."""
        return False

    def start(self, say: object) -> None:
        """Fail as a lab does whose port is taken."""
        raise RocmlabError("the lab did not start", "the test does this", "no fix")

    def stop(self, say: object) -> None:
        """A user who presses Ctrl-C again and again."""
        os.kill(os.getpid(), signal.SIGINT)
        self.stops += 1


def project_of(lab: Lab) -> Any:
    """Return what stands for a project."""
    return SimpleNamespace(lab=lab, choice=SimpleNamespace(runtime="docker"), values={}, settings=None)


def test_the_demonstration_stays_on_the_loopback(tmp_path: Path) -> None:
    """The port for BIND is the own lab's; no other machine needs to see a demonstration."""
    (tmp_path / ".env").write_text("BIND=0.0.0.0\n")

    assert demo.settings(tmp_path).get("BIND") == ""


def test_another_ctrl_c_while_it_ends_leaves_nothing_behind(
    repository: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The lab is stopped, the simulated host is removed, and Ctrl-C works again afterwards."""
    lab, seen = Lab(), []
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "notebooks").mkdir()
    monkeypatch.setattr(projects, "find", lambda: tmp_path)
    monkeypatch.setattr(demo, "plan", lambda folder, settings: project_of(lab))

    def start(project: object, say: object, on_any_port: bool) -> object:
        seen.append(list((tmp_path / ".rocmlab/demo").iterdir()))
        raise KeyboardInterrupt

    monkeypatch.setattr(demo, "start", start)
    handler, ended = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)

    try:
        assert main(["demo"]) == 0
        assert signal.getsignal(signal.SIGINT) is handler
    finally:
        signal.signal(signal.SIGTERM, ended)

    assert seen[0]  # it had made something
    assert lab.stops == 1
    assert not (tmp_path / ".rocmlab/demo").exists()


def test_a_lab_that_became_native_and_does_not_start_is_stopped(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The caller still has the project of before, and would stop that one."""
    asked, became = Lab(), Lab()
    monkeypatch.setattr(became, "stop", lambda say: setattr(became, "stops", became.stops + 1))
    monkeypatch.setattr(projects, "prepare", lambda project, say, persist: project_of(became))
    project = project_of(asked)
    project.settings = SimpleNamespace(state=tmp_path, project=tmp_path)

    with pytest.raises(RocmlabError, match="the lab did not start"):
        demo.start(project, lambda _: None)

    assert (asked.stops, became.stops) == (0, 1)


def test_a_port_that_was_taken_during_the_installation_is_not_used(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Two demonstrations that were begun together both found 8898 free."""
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        taken = other.getsockname()[1]
        started: list[int] = []

        def plan(folder: Path, given: Any) -> Any:
            lab = SimpleNamespace(port=int(given.chosen["PORT"]), start=lambda say: started.append(lab.port))
            return SimpleNamespace(lab=lab, settings=given, choice=None)

        given = SimpleNamespace(state=tmp_path, project=tmp_path, chosen={"PORT": str(taken)})
        monkeypatch.setattr(demo, "plan", plan)
        monkeypatch.setattr(projects, "prepare", lambda project, say, persist: project)

        project = demo.start(plan(tmp_path, given), lambda _: None, on_any_port=True)

    assert started == [project.lab.port] != [taken]


def test_a_port_that_is_given_and_taken_is_an_error_that_names_another(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The fix is an option of this command, not a setting of the lab."""
    monkeypatch.setattr(projects, "find", lambda: tmp_path)
    handler = signal.getsignal(signal.SIGTERM)
    try:
        with socket.socket() as other:
            other.bind(("127.0.0.1", 0))
            other.listen()
            assert main(["demo", "--port", str(other.getsockname()[1])]) == 2
    finally:
        signal.signal(signal.SIGTERM, handler)

    assert "fix: rocmlab demo --port " in capsys.readouterr().err
    assert [*tmp_path.iterdir()] == []


def test_the_trainings_last_as_long_as_is_said(tmp_path: Path) -> None:
    """The notebook's parameter is the constant."""
    demo_work.write_notebooks(tmp_path)

    assert f"seconds = {demo_work.TRAINING_SECONDS}" in (tmp_path / demo_work.TRAINING_NAME).read_text()
