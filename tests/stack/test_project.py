"""A project folder with everything decided."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest
from hosts import Gpu, device, make_host

from rocmlab.errors import RocmlabError
from rocmlab.stack import gpus, settings
from rocmlab.stack import project as projects
from rocmlab.stack.choice import Choice
from rocmlab.stack.project import Project


class Recorder:
    """A lab that only remembers that it was stopped."""

    stopped = False

    def stop(self, _: object) -> None:
        """Remember it."""
        self.stopped = True


def project(folder: Path, backend: str, **flags: str) -> Project:
    """A project whose lab is a recorder."""
    return Project(settings.load(folder, flags), Choice(backend, "docker", "test"), {}, Recorder())  # type: ignore[arg-type]


class TestGpusInside:
    """A lab for GPUs must have one."""

    @pytest.mark.parametrize("backend", ["rocm", "cuda"])
    @pytest.mark.parametrize("seen", [[], [device(None, why_not="/dev/kfd cannot be opened").as_dict()]])
    def test_a_lab_without_usable_gpu_is_stopped(
        self, tmp_path: Path, backend: str, seen: list[dict[str, Any]]
    ) -> None:
        """It would compute on the CPU and look as if it did not."""
        found = project(tmp_path, backend)

        with pytest.raises(RocmlabError, match="no usable GPU") as caught:
            projects.check_gpus_inside(found, seen)

        assert found.lab.stopped  # type: ignore[attr-defined]
        assert "BACKEND=cpu" in caught.value.problem.fix

    def test_one_usable_gpu_is_enough(self, tmp_path: Path) -> None:
        """A second one that cannot be used is listed, and stops nothing."""
        seen = [device(None, why_not="absent").as_dict(), device(0).as_dict()]
        found = project(tmp_path, "rocm")

        projects.check_gpus_inside(found, seen)

        assert not found.lab.stopped  # type: ignore[attr-defined]

    @pytest.mark.parametrize(("backend", "flags"), [("cpu", {}), ("metal", {}), ("rocm", {"GPUS": "none"})])
    def test_where_no_gpu_was_asked_for_none_is_needed(
        self, tmp_path: Path, backend: str, flags: dict[str, str]
    ) -> None:
        """The CPU was chosen, or every GPU was hidden on purpose."""
        projects.check_gpus_inside(project(tmp_path, backend, **flags), [])


class TestSettings:
    """`.env` describes the lab that is there."""

    def test_a_failure_puts_them_back(self, tmp_path: Path) -> None:
        """A port that could not be had does not stay chosen; a file that was not there is not left behind."""
        found = project(tmp_path, "cpu", PORT="9000")
        settings.save(found.settings, {"PORT": "9000"})
        before = (tmp_path / ".env").read_text()

        def fail() -> None:
            with projects.settings_kept_on_failure(found):
                settings.save(settings.load(tmp_path, {"PORT": "9001"}), {"PORT": "9001"})
                raise RuntimeError("the port is taken")

        with pytest.raises(RuntimeError):
            fail()

        assert (tmp_path / ".env").read_text() == before

    def test_two_commands_take_turns(self, tmp_path: Path) -> None:
        """The second one says that it waits, and goes on when the first is done."""
        found, said = project(tmp_path, "cpu"), []
        with projects.locked(found, said.append):
            second = threading.Thread(target=lambda: projects.locked(found, said.append).__enter__())
            second.start()
            second.join(0.3)
            assert second.is_alive()

        second.join(5)

        assert not second.is_alive()
        assert "waiting for another" in said[0]


class TestOtherRuntime:
    """One project has one lab."""

    @pytest.mark.parametrize(("before", "stops"), [("podman", True), ("docker", False)])
    def test_the_lab_of_the_other_runtime_is_stopped(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, before: str, stops: bool
    ) -> None:
        """It is known by what `.env` said before, for by then the new `.env` is written."""
        calls = tmp_path / "calls"
        program = tmp_path / "podman"
        program.write_text(f'#!/bin/sh\necho "$*" >>{calls}\n[ "$1" = ps ] && echo 123abc\nexit 0\n')
        program.chmod(0o755)
        monkeypatch.setenv("PATH", f"{tmp_path}:/bin:/usr/bin")
        found = project(tmp_path, "cpu")
        names = ("ROCMLAB_BACKEND", "JUPYTER_TOKEN", "SHARE", "ROCMLAB_IMAGE", "COMPOSE_PROJECT_NAME", "COMPOSE_FILE")
        found.previous = {**dict.fromkeys(names, "x"), "PORT": "1", "ROCMLAB_RUNTIME": before}
        said: list[str] = []

        projects.stop_other(found, said.append)

        assert bool(said) is stops
        assert (calls.exists() and "rm --force --ignore --time 10 x-lab" in calls.read_text()) is stops


class TestPlan:
    """From the host to a decision, on a simulated host."""

    def test_gpus_that_are_not_there_are_refused_before_anything_is_written(
        self, tmp_path: Path, repository: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """GPUS=7 on a host with one GPU names the ones there are; no `.env` appears."""
        root = make_host(tmp_path / "host", Gpu(1, 0x0300, 128))
        (root / "opt/rocm/.info").mkdir(parents=True)
        (root / "opt/rocm/.info/version").write_text("7.2.0\n")
        monkeypatch.setenv("ROCMLAB_ROOT", str(root))
        monkeypatch.setenv("RUNTIME", "native")
        monkeypatch.setenv("GPUS", "7")

        with pytest.raises(RocmlabError, match="there is no GPU 7") as caught:
            projects.plan(tmp_path)

        assert "0=0000:03:00.0" in caught.value.problem.why
        assert not (tmp_path / ".env").exists()

    def test_a_container_is_given_nodes_that_this_user_may_not_open(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """GPUS=0 works for a user outside `render`: the entry point joins the nodes' groups inside."""
        root = make_host(tmp_path / "host", Gpu(1, 0x0300, 128))
        monkeypatch.setenv("ROCMLAB_ROOT", str(root))
        monkeypatch.setattr("rocmlab.devices.nodes.os.access", lambda *_, **__: False)
        choice = Choice("rocm", "docker", "test")

        chosen = gpus.given_from(choice, [], root)

        assert [(one.index, one.render_node) for one in chosen] == [(0, "/dev/dri/renderD128")]

    def test_gpus_without_a_gpu_backend_are_refused(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """GPUS=0 on the CPU backend is a contradiction, not a wish to ignore."""
        monkeypatch.setenv("RUNTIME", "native")
        monkeypatch.setenv("BACKEND", "cpu")
        monkeypatch.setenv("GPUS", "0")

        with pytest.raises(RocmlabError, match="the backend is cpu"):
            projects.plan(tmp_path)

    def test_before_the_first_make_up_there_is_nothing_to_stop(self, tmp_path: Path) -> None:
        """`make down` in a fresh clone says so."""
        with pytest.raises(RocmlabError, match="no lab here yet"):
            projects.reopen(tmp_path)
