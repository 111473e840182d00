"""A project folder with everything decided."""

from __future__ import annotations

import json
import os
import pwd
import signal
import subprocess
import sys
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import test_engine
import test_podman
from engine_words import container
from engine_words import image as engine_image
from hosts import Gpu, device, make_host

from rocmlab.base.errors import RocmlabError
from rocmlab.stack import gpus, settings
from rocmlab.stack import project as projects
from rocmlab.stack.choice import Choice, Host
from rocmlab.stack.docker import DockerLab
from rocmlab.stack.engine import Engine
from rocmlab.stack.gpus import Passed
from rocmlab.stack.lab import Lab
from rocmlab.stack.podman import PodmanLab
from rocmlab.stack.project import Project

WAITS = """
import signal, sys, time
from pathlib import Path
from types import SimpleNamespace
from rocmlab.stack import project as projects, settings
from rocmlab.stack.choice import Choice

signal.signal(signal.SIGHUP, signal.SIG_DFL)  # the tests may run under nohup

def wait():
    print("written", flush=True)
    time.sleep(600)

lab = SimpleNamespace(is_known_to_run=lambda: True, is_startable=wait)
chosen = settings.load(Path(sys.argv[1]), {"PORT": "9001"})
found = projects.Project(chosen, Choice("cpu", "native", "test"), {"PORT": "9001"}, lab)
if sys.argv[2] == "restarts":
    projects.restarts(found)
with projects.settings_kept_on_failure(found):
    projects.write(found)
    wait()
"""


def lab_in(folder: Path, runtime: str) -> Lab:
    """Return the lab of an engine that the last `make up` has described."""
    names = ("JUPYTER_TOKEN", "SHARE", "ROCMLAB_IMAGE", "COMPOSE_PROJECT_NAME", "COMPOSE_FILE", "ROCMLAB_BACKEND")
    env = {**dict.fromkeys(names, "x"), "PORT": "1", "ROCMLAB_RUNTIME": runtime}
    found = projects._described(settings.load(folder, {}), env)
    assert found is not None
    return found.lab


class Recorder:
    """A lab that only remembers that it was stopped."""

    stopped = False

    def stop(self, _: object) -> None:
        """Remember it."""
        self.stopped = True

    def disk_problem(self) -> None:
        """None: it has no disk."""


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

    @pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
    @pytest.mark.parametrize("where", ["start", "restarts"])
    def test_a_signal_puts_them_back(self, tmp_path: Path, where: str, number: int) -> None:
        """Ctrl-C, a service manager's end, or a terminal that is closed, in the minutes of a build or a look."""
        settings.save(settings.load(tmp_path, {"PORT": "9000"}), {"PORT": "9000"})
        before = (tmp_path / ".env").read_text()
        command = [sys.executable, "-c", WAITS, tmp_path, where]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as ended:
            assert ended.stdout
            ended.stdout.readline()
            during = (tmp_path / ".env").read_text()

            ended.send_signal(number)
            ended.communicate(timeout=120)

        assert "PORT=9001" in during
        assert (tmp_path / ".env").read_text() == before

    def test_a_failure_puts_the_overlay_back(self, tmp_path: Path) -> None:
        """It describes the lab that is there, which another `docker compose up` would change by it."""
        found = project(tmp_path, "rocm", GPUS="0")
        found.values["COMPOSE_FILE"] = f"compose.yaml:{gpus.OVERLAY}"
        found.passed = Passed(("/dev/kfd", "/dev/dri/renderD128"))
        projects.write(found)
        before = (tmp_path / gpus.OVERLAY).read_text()
        found.passed = Passed(("/dev/kfd", "/dev/dri/renderD129"))

        def fail() -> None:
            with projects.settings_kept_on_failure(found):
                projects.write(found)
                raise RuntimeError("the port is taken")

        with pytest.raises(RuntimeError):
            fail()

        assert (tmp_path / gpus.OVERLAY).read_text() == before
        assert (tmp_path / gpus.OVERLAY).stat().st_mode & 0o777 == 0o644

    def test_a_run_has_an_overlay_of_its_own(self, tmp_path: Path) -> None:
        """`make run-notebooks GPUS=1` leaves the standing lab's alone; its own Compose calls read the new one."""
        found = project(tmp_path, "rocm", GPUS="1")
        files = f"compose.yaml:{gpus.OVERLAY}:mine.yaml"
        values = {"ROCMLAB_BACKEND": "rocm", "ROCMLAB_IMAGE": "x", "PORT": "1", "JUPYTER_TOKEN": "t"}
        found.values = {**values, "COMPOSE_FILE": files}
        found.lab = DockerLab(found.settings, found.values, Engine(is_usable=True))
        assert found.lab.environment["COMPOSE_FILE"] == files
        found.passed = Passed(("/dev/kfd", "/dev/dri/renderD129"))

        projects.write(found, persist=False)

        base, name, mine = found.lab.environment["COMPOSE_FILE"].split(":")
        assert (base, mine) == ("compose.yaml", "mine.yaml")
        assert "renderD129" in (tmp_path / name).read_text()
        assert not (tmp_path / gpus.OVERLAY).exists()
        assert not (tmp_path / ".env").exists()
        projects.write(found)  # the next `make up`
        assert not (tmp_path / name).exists()

    def test_two_commands_take_turns(self, tmp_path: Path) -> None:
        """The second one says that it waits, and continues when the first is done."""
        found, said = project(tmp_path, "cpu"), []
        with projects.locked(found, said.append):
            second = threading.Thread(target=lambda: projects.locked(found, said.append).__enter__())
            second.start()
            second.join(0.3)
            assert second.is_alive()

        second.join(5)

        assert not second.is_alive()
        assert "waiting for another" in said[0]


ENGINE = f"""case "$1" in ps) echo 123abc;; inspect) echo '{container()}';; esac\nexit 0\n"""


class TestOtherRuntime:
    """One project has one lab."""

    @pytest.mark.parametrize(("before", "stops"), [("podman", True), ("docker", False)])
    def test_the_lab_of_the_other_runtime_is_stopped(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, before: str, stops: bool
    ) -> None:
        """It is known by what `.env` said before, for by then the new `.env` is written."""
        calls = tmp_path / "calls"
        program = tmp_path / "podman"
        program.write_text(f'#!/bin/sh\necho "$*" >>{calls}\n{ENGINE}')
        program.chmod(0o755)
        monkeypatch.setenv("PATH", f"{tmp_path}:/bin:/usr/bin")
        found = project(tmp_path, "cpu")
        names = ("ROCMLAB_BACKEND", "JUPYTER_TOKEN", "SHARE", "ROCMLAB_IMAGE", "COMPOSE_PROJECT_NAME", "COMPOSE_FILE")
        found.previous = {**dict.fromkeys(names, "x"), "PORT": "1", "ROCMLAB_RUNTIME": before}
        said: list[str] = []

        projects.stop_other(found, said.append)

        assert bool(said) is stops
        assert (calls.exists() and "rm --force --ignore --time 10 x-lab" in calls.read_text()) is stops

    def test_to_podman_and_back(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """Each change of the runtime stops the lab before it, by the engine that it runs in."""
        calls = tmp_path / "calls"
        for name in ("docker", "podman"):
            program = tmp_path / name
            program.write_text(f'#!/bin/sh\necho "{name} $*" >>{calls}\n{ENGINE}')
            program.chmod(0o755)
        monkeypatch.setenv("PATH", f"{tmp_path}:/bin:/usr/bin")
        names = ("ROCMLAB_BACKEND", "JUPYTER_TOKEN", "SHARE", "ROCMLAB_IMAGE", "COMPOSE_PROJECT_NAME", "COMPOSE_FILE")
        env = {**dict.fromkeys(names, "x"), "PORT": "1"}
        said: list[str] = []

        for before, after in (("docker", "podman"), ("podman", "docker")):
            found = Project(settings.load(tmp_path, {}), Choice("cpu", after, "test"), {}, Recorder())  # type: ignore[arg-type]
            found.previous = {**env, "ROCMLAB_RUNTIME": before}
            projects.stop_other(found, said.append)

        done = [line for line in calls.read_text().splitlines() if " down " in line or " rm " in line]
        assert [line.split()[0] for line in done] == ["docker", "podman"]
        assert said == [f"stopping the {name} lab of an earlier `make up`" for name in ("docker", "podman")]

    @pytest.mark.parametrize("name", ["docker", "podman"])
    def test_a_lab_of_another_clone_is_left_alone(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
    ) -> None:
        """A copied `.env` has the other clone's name in it; either engine tells whose the container is."""
        other, program = tmp_path / "other", tmp_path / name
        other.mkdir()
        (other / "compose.yaml").touch()
        names = ("com.docker.compose.project.working_dir", "rocmlab.project")
        inspected = container(labels=dict.fromkeys(names, str(other)))
        program.write_text(f"#!/bin/sh\ncase $1 in ps) echo 123abc;; inspect) echo '{inspected}';; esac\n")
        program.chmod(0o755)
        monkeypatch.setenv("PATH", f"{tmp_path}:/bin:/usr/bin")
        lab = lab_in(tmp_path, name)

        for change in (lab.start, lab.stop, lab.clean):
            with pytest.raises(RocmlabError, match=f"belongs to the clone {other}"):
                change(print)

    @pytest.mark.parametrize(("name", "forces"), [("docker", True), ("podman", False)])
    def test_removing_an_image_ends_no_container(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, forces: bool
    ) -> None:
        """Podman's `image rm --force` removes those that use it: a headless run in a container of its own."""
        calls, program = tmp_path / "calls", tmp_path / name
        program.write_text(
            f'#!/bin/sh\necho "$*" >>{calls}\n'
            'case "$1 $2" in "image rm") echo "image is in use by a container" >&2; exit 2;; '
            f"\"image inspect\") echo '{engine_image()}';; esac\n"
        )
        program.chmod(0o755)
        monkeypatch.setenv("PATH", f"{tmp_path}:/bin:/usr/bin")
        lab = lab_in(tmp_path, name)
        said: list[str] = []

        lab.clean(said.append)

        removals = [line for line in calls.read_text().splitlines() if line.startswith("image rm")]
        assert len(removals) == 2
        assert all(("--force" in line) is forces for line in removals)
        assert said[0] == "kept image x: image is in use by a container"


class TestNotes:
    """What is said of a lab besides the choice."""

    @pytest.mark.parametrize(("share", "is_said"), [("./other", True), ("./share", False)])
    def test_another_share_is_named_with_the_earlier_one(self, tmp_path: Path, share: str, is_said: bool) -> None:
        """A lab that moves to another engine, or SHARE, begins with an empty one; the data seem to be gone."""
        env = {"ROCMLAB_BACKEND": "cpu", "ROCMLAB_RUNTIME": "native", "JUPYTER_TOKEN": "t", "PORT": "1"}
        lab = SimpleNamespace(disk_problem=lambda: None, share=lambda: str(tmp_path / share))
        found = Project(settings.load(tmp_path, {}), Choice("cpu", "native", "test"), {}, lab)
        found.previous = {**env, "SHARE": "./share"}

        assert any(str(tmp_path / "share") in line for line in projects.notes(found)) is is_said

    @pytest.mark.parametrize(
        ("has_systemd", "lingers", "is_rootless", "is_said"),
        [
            (True, False, True, True),
            (True, True, True, False),
            (False, False, True, False),
            (True, False, False, False),
        ],
    )
    def test_a_lab_that_would_end_with_the_login_says_so(
        self, tmp_path: Path, has_systemd: bool, lingers: bool, is_rootless: bool, is_said: bool
    ) -> None:
        """Rootless Podman's containers are ended by systemd at the last logout, with kernels and runs."""
        user = pwd.getpwuid(os.getuid()).pw_name
        for path, is_there in (("run/systemd/system", has_systemd), (f"var/lib/systemd/linger/{user}", lingers)):
            if is_there:
                (tmp_path / path).mkdir(parents=True)
        choice = Choice("cpu", "podman", "test", is_rootless=is_rootless)
        lab = SimpleNamespace(disk_problem=lambda: None)
        found = Project(settings.load(tmp_path, {}), choice, {}, lab, root=tmp_path)

        assert any("loginctl enable-linger" in line for line in projects.notes(found)) is is_said

    @pytest.mark.parametrize(
        ("choice", "flags", "is_said"),
        [
            (Choice("rocm", "podman", "test", is_rootless=True), {"GPUS": "1"}, True),
            (Choice("rocm", "podman", "test", is_rootless=True), {"GPUS": "none"}, True),
            (Choice("rocm", "podman", "test", is_rootless=True), {}, False),
            (Choice("rocm", "podman", "test"), {"GPUS": "1"}, False),
            (Choice("rocm", "podman", "test", is_rootless=True, is_wsl=True), {"GPUS": "none"}, False),
            (Choice("cpu", "podman", "test", is_rootless=True, is_simulated=True), {"GPUS": "1"}, False),
        ],
    )
    def test_that_a_mask_chooses_is_said_where_it_does(
        self, tmp_path: Path, choice: Choice, flags: dict[str, str], is_said: bool
    ) -> None:
        """Of a simulated host no GPU is passed, and on WSL2 no single one is chosen."""
        found = Project(settings.load(tmp_path, flags), choice, {}, Recorder())  # type: ignore[arg-type]

        said = [line for line in projects.notes(found) if "rootless Podman passes every GPU" in line]

        assert bool(said) is is_said


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

        with pytest.raises(RocmlabError, match="GPU 7 not found") as caught:
            projects.plan(tmp_path)

        assert "0=0000:03:00.0" in caught.value.problem.why
        assert not (tmp_path / ".env").exists()

    def test_a_terminals_masks_do_not_reach_a_container(
        self, tmp_path: Path, repository: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """HIP_VISIBLE_DEVICES=0 in the shell hides GPU 1 from its programs, and the engine's are not among them."""
        root = make_host(tmp_path / "host", Gpu(1, 0x0300, 128), Gpu(2, 0x0600, 129, unique_id=7))
        (tmp_path / "bin").mkdir()
        words = test_engine.docker(tmp_path / "bin", info=json.dumps(test_engine.INFO))
        given = {**words, "ROCMLAB_ROOT": str(root), "RUNTIME": "docker", "GPUS": "1", "HIP_VISIBLE_DEVICES": "0"}
        for name, value in given.items():
            monkeypatch.setenv(name, value)

        found = projects.plan(tmp_path)

        assert dict(found.passed.environment)["HIP_VISIBLE_DEVICES"] == "1"

    def test_a_run_leaves_a_native_lab_native(
        self, tmp_path: Path, repository: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """An engine was installed later: only `make up` moves the lab; a run would build another one first."""
        (tmp_path / "bin").mkdir()
        (tmp_path / ".env").write_text("ROCMLAB_RUNTIME=native\n")
        words = test_engine.docker(tmp_path / "bin", info=json.dumps(test_engine.INFO))
        for name, value in {**words, "ROCMLAB_ROOT": str(make_host(tmp_path / "host")), "BACKEND": "cpu"}.items():
            monkeypatch.setenv(name, value)

        assert projects.plan(tmp_path, stays=True).choice.runtime == "docker", "a copied .env is no lab"
        (tmp_path / ".venv/bin").mkdir(parents=True)
        (tmp_path / ".venv/bin/python").touch()
        (tmp_path / ".venv/rocmlab-environment.json").write_text('{"backend": "cpu"}')
        assert projects.plan(tmp_path).choice.runtime == "docker"
        kept = projects.plan(tmp_path, stays=True).choice
        assert kept.runtime == "native"
        assert "as the lab was set up" in kept.why
        assert "RUNTIME=native" not in kept.why, "no one has set that"

    def test_a_native_lab_that_no_longer_fits_does_not_stop_a_run(
        self, tmp_path: Path, repository: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Set up on the CPU, then GPU and Docker came: the run goes where the GPU can be used."""
        (tmp_path / "bin").mkdir()
        (tmp_path / ".venv/bin").mkdir(parents=True)
        (tmp_path / ".venv/bin/python").touch()
        (tmp_path / ".venv/rocmlab-environment.json").write_text('{"backend": "cpu"}')
        (tmp_path / ".env").write_text("ROCMLAB_RUNTIME=native\n")
        words = test_engine.docker(tmp_path / "bin", info=json.dumps(test_engine.INFO))
        for name, value in {**words, "ROCMLAB_ROOT": str(make_host(tmp_path / "host")), "BACKEND": "cpu"}.items():
            monkeypatch.setenv(name, value)

        def choose(host: Host, backend: str, runtime: str, before: str, **others: bool) -> Choice:
            if runtime == "native":
                raise RocmlabError("this host has an AMD GPU, and no ROCm to use it", "", "")
            return real(host, backend, runtime, before, **others)

        real = projects.choosing.choose
        monkeypatch.setattr(projects.choosing, "choose", choose)

        assert projects.plan(tmp_path, stays=True).choice.runtime == "docker"

    @pytest.mark.slow
    @pytest.mark.parametrize("stays", [False, True])
    def test_a_lab_whose_gpus_are_gone_does_not_compute_on_the_cpu(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stays: bool
    ) -> None:
        """Neither `make up` nor a run; a `.env` that was copied from a machine with GPUs is no such lab."""
        engine = Engine(is_usable=True, version="28.5")
        monkeypatch.setattr(projects.choosing, "inspect", lambda *_: Host(engine))
        (tmp_path / ".env").write_text("ROCMLAB_BACKEND=rocm\nROCMLAB_RUNTIME=docker\n")
        assert projects.plan(tmp_path, stays=stays).choice.backend == "cpu"

        (tmp_path / ".rocmlab").mkdir()
        (tmp_path / ".rocmlab/written.json").write_text('{"ROCMLAB_BACKEND": "rocm", "ROCMLAB_RUNTIME": "docker"}')
        with pytest.raises(RocmlabError, match="this lab had AMD GPUs"):
            projects.plan(tmp_path, stays=stays)
        monkeypatch.setenv("BACKEND", "cpu")
        assert projects.plan(tmp_path, stays=stays).choice.backend == "cpu"

    @pytest.mark.parametrize("value", ["", "/"])
    def test_this_machine_is_looked_at_again(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, value: str) -> None:
        """Planning with the simulated host that `.env` remembers shows it to every part; taking it back shows none."""
        root = make_host(tmp_path / "host", Gpu(1, 0x0300, 128))
        (tmp_path / ".env").write_text("ROCMLAB_ROOT=host\n")
        monkeypatch.setenv("ROCMLAB_ROOT", "x")
        monkeypatch.delenv("ROCMLAB_ROOT")
        monkeypatch.setenv("RUNTIME", "native")
        monkeypatch.setenv("BACKEND", "cpu")

        simulated = projects.plan(tmp_path)
        seen = os.environ.get("ROCMLAB_ROOT")
        monkeypatch.setenv("ROCMLAB_ROOT", value)
        real = projects.plan(tmp_path)

        assert (simulated.root, simulated.choice.is_simulated, seen) == (root, True, str(root))
        assert (real.root, real.choice.is_simulated) == (Path("/"), False)
        assert "ROCMLAB_ROOT" not in os.environ
        assert "ROCMLAB_ROOT" not in real.values

    def test_docker_being_down_does_not_move_a_lab(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """A lab that `.env` says is Docker's waits for Docker; without one, Podman that works is taken."""
        (tmp_path / "bin").mkdir()
        test_engine.docker(tmp_path / "bin", info="", code=1, error="permission denied")
        for name, value in test_podman.podman(tmp_path / "bin").items():
            monkeypatch.setenv(name, value)
        monkeypatch.setenv("BACKEND", "cpu")
        (tmp_path / "notebooks").mkdir()
        monkeypatch.setattr(PodmanLab, "has_base", lambda _: True)

        assert projects.plan(tmp_path).choice.runtime == "podman"
        (tmp_path / ".env").write_text("ROCMLAB_RUNTIME=docker\n")
        with pytest.raises(RocmlabError, match="may not be used by this user"):
            projects.plan(tmp_path)

    def test_podman_is_asked_where_docker_is_unfit(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """A rootless Docker answers and cannot run the lab; the line says why it was skipped."""
        (tmp_path / "bin").mkdir()
        facts = json.dumps({**test_engine.INFO, "SecurityOptions": ["name=rootless"]})
        test_engine.docker(tmp_path / "bin", info=facts)
        for name, value in test_podman.podman(tmp_path / "bin").items():
            monkeypatch.setenv(name, value)
        monkeypatch.setenv("BACKEND", "cpu")

        choice = projects.plan(tmp_path).choice

        assert choice.runtime == "podman"
        assert "because a rootless Docker engine cannot run the lab" in choice.why

    def test_a_container_is_given_nodes_that_this_user_may_not_open(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """GPUS=0 works for a user outside `render`: the entry point joins the nodes' groups inside."""
        root = make_host(tmp_path / "host", Gpu(1, 0x0300, 128))
        monkeypatch.setenv("ROCMLAB_ROOT", str(root))
        for path in (root / "dev/kfd", *(root / "dev/dri").iterdir()):
            path.chmod(0o600)
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
        """`make down` in a fresh clone reports it."""
        with pytest.raises(RocmlabError, match="no lab found here"):
            projects.reopen(tmp_path)


@pytest.mark.parametrize(
    ("runtime", "caller", "is_refused"),
    [("native", "owner", True), ("native", "", False), ("native", "another", False), ("docker", "owner", False)],
)
def test_a_native_lab_is_not_made_with_sudo_in_the_callers_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, runtime: str, caller: str, is_refused: bool
) -> None:
    """Its environment and share would be root's, and the user could change nothing of it; nothing is written."""
    if os.geteuid() == 0:
        os.chown(tmp_path, 65534, 65534)
    owner = tmp_path.stat().st_uid
    uids = {"owner": owner, "another": owner + 1}
    monkeypatch.setattr(os, "getuid", lambda: 0)
    monkeypatch.setenv("SUDO_UID", str(uids.get(caller, "")))
    found = Project(settings.load(tmp_path, {}), Choice("cpu", runtime, "test"), {"SHARE": "share"}, Recorder())

    if not is_refused:
        projects.check_user(found)
        return
    with pytest.raises(RocmlabError, match="not started with sudo"):
        projects.prepare(found, print)
    assert [*tmp_path.iterdir()] == []
