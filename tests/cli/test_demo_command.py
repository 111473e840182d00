"""How `rocmlab demo` ends; what it shows is tested with a real lab (tests/native)."""

from __future__ import annotations

import os
import signal
import socket
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from rocmlab.base.errors import RocmlabError
from rocmlab.cli import demo_work
from rocmlab.cli.main import main
from rocmlab.stack import demo
from rocmlab.stack import project as projects
from rocmlab.stack.environment import MARKER
from rocmlab.stack.native import NativeLab
from rocmlab.stack.podman import PodmanLab
from rocmlab.telemetry.seam import programs


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


def native_lab_for(folder: Path, backend: str) -> list[Path]:
    """Put a native lab for a backend into a project, which does not run; return its files."""
    (folder / ".env").write_text(
        f"ROCMLAB_BACKEND={backend}\nROCMLAB_RUNTIME=native\nJUPYTER_TOKEN=t\nPORT=1\nSHARE=./share\nRUNTIME=native\n"
    )
    (folder / "notebooks").mkdir()
    (folder / ".venv/bin").mkdir(parents=True)
    (folder / ".venv/bin/python").symlink_to(sys.executable)
    (folder / ".venv" / MARKER).write_text(f'{{"backend": "{backend}"}}')
    return sorted(folder.rglob("*"))


def test_the_environment_of_the_own_lab_is_not_made_again(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A native lab for AMD GPUs has many gigabytes in it, which the next `make up` would have installed again."""
    before = native_lab_for(tmp_path, "rocm")
    monkeypatch.setattr(projects, "find", lambda: tmp_path)
    monkeypatch.setattr(demo, "start", lambda *_, **__: pytest.fail("it was started"))
    handler = signal.getsignal(signal.SIGTERM)
    try:
        assert main(["demo"]) == 2
    finally:
        signal.signal(signal.SIGTERM, handler)

    said = capsys.readouterr().err
    assert "would change the environment of your lab" in said
    assert f"git clone {tmp_path}" in said
    assert [path for path in sorted(tmp_path.rglob("*")) if path.name != ".rocmlab"] == before


def test_nvitop_shows_the_host_that_was_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The lab's nvitop, where this Python has none: with that host natively; a container sees only its own."""
    native_lab_for(tmp_path, "cpu")
    started: list[object] = []
    monkeypatch.setattr(projects, "find", lambda: tmp_path)
    monkeypatch.setattr(programs, "is_module_here", lambda _: False)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("ROCMLAB_ROOT", "/a/simulated/host")
    monkeypatch.setattr(NativeLab, "is_startable", lambda _: True)
    monkeypatch.setattr(NativeLab, "run", lambda _, words, variables=None: started.append((words, variables)) or 0)
    assert main(["nvitop", "-1"]) == 0
    assert started == [(["nvitop", "-1"], {"ROCMLAB_ROOT": "/a/simulated/host"})]

    (tmp_path / ".env").write_text(
        (tmp_path / ".env").read_text().replace("=native", "=podman") + "ROCMLAB_IMAGE=i\nCOMPOSE_PROJECT_NAME=p\n"
    )
    monkeypatch.setattr(PodmanLab, "is_running", lambda _: True)
    assert main(["nvitop", "-1"]) == 2
    assert "does not see the host /a/simulated/host" in capsys.readouterr().err


def test_the_trainings_last_as_long_as_is_said(tmp_path: Path) -> None:
    """The notebook's parameter is the constant."""
    demo_work.write_notebooks(tmp_path)

    assert f"seconds = {demo_work.TRAINING_SECONDS}" in (tmp_path / demo_work.TRAINING_NAME).read_text()
