"""The native lab, with a real JupyterLab: the test environment stands for `.venv`, so nothing is installed."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import clients
import pytest
from clones import NEEDS_NATIVE_PYTHON, free_port
from hosts import Gpu, make_host

from rocmlab.base import identity
from rocmlab.base.errors import RocmlabError
from rocmlab.lab import install, kernels
from rocmlab.stack import homes, live, making, native, process, requirements, server, settings
from rocmlab.stack.environment import Environment, check_python
from rocmlab.stack.native import NativeLab

pytestmark = pytest.mark.slow
CapFd = pytest.CaptureFixture[str]


class TestEnvironmentOfTests(Environment):
    """An environment that is there already: the one these tests run in."""

    __test__ = False

    @property
    def folder(self) -> Path:
        """Return the running environment."""
        return Path(sys.prefix)

    def is_current(self) -> bool:
        """Nothing needs installing."""
        return True


def pid_of(lab: NativeLab) -> int | None:
    """Return the process id of the running server."""
    found = lab.jupyter.find()
    return found.pid if found else None


class LabOfTests(NativeLab):
    """A lab whose server imports the rocmlab under test, which `.venv` would have installed."""

    def server_environment(self) -> dict[str, str]:
        """Return that environment, with this tree to import from."""
        return {**super().server_environment(), "PYTHONPATH": str(Path(install.__file__).parents[2])}


def make_lab(project: Path, **values: str) -> NativeLab:
    """A native lab in an empty project folder."""
    defaults = {
        "PORT": str(free_port()),
        "JUPYTER_TOKEN": "a" * 64,
        "SHARE": "./share",
        "ROCMLAB_BACKEND": "cpu",
    }
    environment = TestEnvironmentOfTests(project, "cpu", sys.executable, "")
    (project / "notebooks").mkdir(exist_ok=True)
    return LabOfTests(settings.load(project, {}), {**defaults, **values}, environment)


@pytest.fixture(autouse=True)
def _sockets_in_a_folder_of_the_test(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Sockets need a short path, which pytest's own folders do not have."""
    folder = tempfile.mkdtemp(prefix="rocmlab-test-", dir="/tmp")
    monkeypatch.setenv("XDG_RUNTIME_DIR", folder)
    yield
    shutil.rmtree(folder)


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[NativeLab]:
    """A prepared lab that is stopped at the end, whatever happened."""
    found = make_lab(tmp_path)
    found.prepare(lambda _: None)
    install.main(["--prefix", str(tmp_path / "prefix")])  # the configuration that `.venv` would have
    shutil.copytree(tmp_path / "prefix/etc/jupyter", found.home / ".jupyter")
    yield found
    found.stop(lambda _: None)


@NEEDS_NATIVE_PYTHON
class TestServer:
    """Starting, looking, stopping."""

    def test_it_starts_answers_only_with_the_token_and_stops_with_its_kernels(
        self, lab: NativeLab, tmp_path: Path
    ) -> None:
        """One life: up, 403 without token, a kernel, down, and no process is left."""
        kernels.install(tmp_path / "data-prefix", {"torch": sys.executable})
        os.makedirs(lab.home / ".local/share/jupyter", exist_ok=True)
        (lab.home / ".local/share/jupyter/kernels").symlink_to(tmp_path / "data-prefix/share/jupyter/kernels")
        lab.start(lambda _: None)
        assert lab.is_running()
        assert clients.ask(lab.port, "wrong", "/api/status")[0] == 403
        specs = clients.ask(lab.port, lab.token, "/api/kernelspecs", timeout_seconds=10)[1]
        assert "torch" in specs["kernelspecs"]

        request = urllib.request.Request(
            f"http://127.0.0.1:{lab.port}/api/kernels",
            data=json.dumps({"name": "torch"}).encode(),
            headers={"Authorization": f"token {lab.token}"},
        )
        with server.OPENER.open(request, timeout=20) as answer:
            assert answer.status == 201
        running = lab.jupyter.find()
        assert running
        family = [each.pid for each in identity.family(running)]
        assert len(family) > 1

        lab.stop(lambda _: None)

        assert not lab.is_running()
        assert not [pid for pid in family if Path(f"/proc/{pid}").exists()]
        assert server.is_free(lab.port)

    def test_a_folder_of_sockets_that_others_could_read_is_refused(self, lab: NativeLab) -> None:
        """Someone else may have made the folder first, to read the kernels' keys."""
        folder = lab.runtime_folder()
        folder.chmod(0o755)

        with pytest.raises(RocmlabError, match="not a private folder"):
            lab.start(lambda _: None)

        folder.chmod(0o700)

    @pytest.mark.long
    def test_a_new_log_begins_where_it_is_too_large(self, lab: NativeLab) -> None:
        """What strangers ask for is a line each; what was written before is in the file next to it, for this user."""
        lab.settings.chosen["LOG_MAX_SIZE"] = "16k"
        lab.start(lambda _: None)
        before = lab.log.with_name("jupyter.log.1")
        deadline = time.monotonic() + 60
        while not before.exists() and time.monotonic() < deadline:
            clients.ask(lab.port, "wrong", "/api/status?" + "x" * 4000)

        while "a new log begins" not in lab.log.read_text() and time.monotonic() < deadline:
            time.sleep(0.1)
        assert before.read_text().startswith("[")
        assert before.stat().st_mode & 0o077 == 0
        assert b"\0" not in lab.log.read_bytes()  # written to its end, wherever that is
        assert lab.log.stat().st_size < 16 * 1024 <= before.stat().st_size

    def test_a_single_run_goes_by_what_its_command_says(self, lab: NativeLab, capfd: CapFd) -> None:
        """The settings of the lab stay: the server, and runs under way, read the file."""
        live.write(lab.settings)
        (lab.notebooks / "one.ipynb").write_text(
            json.dumps({"cells": [], "metadata": {}, "nbformat": 4, "nbformat_minor": 5})
        )

        code = lab.run(["run", "one"], live.given({"MIN_FREE_DISK_GB": "1e9", "PORT": "1"}))

        assert code == 2
        assert "the run does not start" in capfd.readouterr().err
        assert live.read(live.path_of(lab.settings))["MIN_FREE_DISK_GB"] == "5"

    def test_starting_again_changes_nothing(self, lab: NativeLab) -> None:
        """A second start keeps the process."""
        lab.start(lambda _: None)
        pid = pid_of(lab)

        lab.start(lambda _: None)

        assert pid == pid_of(lab)

    @pytest.mark.long
    def test_one_that_hangs_is_restarted_by_force_alone(self, lab: NativeLab, monkeypatch: pytest.MonkeyPatch) -> None:
        """It may come back, and its kernels with it; no one has said that they may end."""
        lab.start(lambda _: None)
        pid = pid_of(lab)
        assert pid
        monkeypatch.setattr(native, "BUSY_SECONDS", 1.0)
        os.kill(pid, signal.SIGSTOP)
        try:
            with pytest.raises(RocmlabError, match="the lab runs and does not answer") as caught:
                lab.start(lambda _: None)
            assert pid_of(lab) == pid
        finally:
            os.kill(pid, signal.SIGCONT)
        monkeypatch.setattr(native, "BUSY_SECONDS", 20.0)
        assert not lab.start(lambda _: None)
        monkeypatch.setattr(native, "BUSY_SECONDS", 0.0)
        is_started = lab.start(lambda _: None, force=True)

        assert "make up FORCE=1" in caught.value.problem.fix
        assert is_started
        assert pid_of(lab) != pid

    def test_the_log_has_no_warning(self, lab: NativeLab) -> None:
        """A normal start and stop write information only."""
        lab.start(lambda _: None)
        lab.stop(lambda _: None)

        text = lab.log.read_text()

        assert "[I " in text
        assert not [line for line in text.splitlines() if line.startswith(("[W", "[E", "[C")) or "WARNING" in line]

    @pytest.mark.long
    def test_another_project_folder_shows_work_and_share(self, lab: NativeLab) -> None:
        """JupyterLab's root holds the same two names as in the container."""
        lab.start(lambda _: None)

        listed = clients.ask(lab.port, lab.token, "/api/contents/", timeout_seconds=10)[1]

        assert {"share", "work"} == {entry["name"] for entry in listed["content"]}
        assert {".rocmlab", "data", "models", "runs", "cache", "home"} == {
            path.name for path in lab.share_folder.iterdir()
        }

    def test_a_taken_port_is_a_problem_with_a_free_one(self, lab: NativeLab) -> None:
        """Nothing is started, and the fix names a free port."""
        with socket.socket() as other:
            other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            other.bind(("127.0.0.1", lab.port))
            other.listen()

            with pytest.raises(RocmlabError, match="is already in use") as caught:
                lab.start(lambda _: None)

        assert "another program listens" in caught.value.problem.why
        assert server.is_free(int(caught.value.problem.fix.split("=")[1]))
        assert not lab.is_running()

    def test_a_server_that_dies_leaves_its_last_log_lines_and_nothing_else(self, lab: NativeLab) -> None:
        """A broken configuration ends the start with the log's end, and no record of a running lab."""
        (lab.home / ".jupyter/jupyter_config.py").write_text("raise SystemExit('broken on purpose')\n")

        with pytest.raises(RocmlabError, match="did not start") as caught:
            lab.start(lambda _: None)

        assert "broken on purpose" in caught.value.problem.why
        assert not lab.jupyter.record.exists()

    def test_a_stale_record_is_not_mistaken_for_a_lab(self, lab: NativeLab) -> None:
        """After a restart of the machine another process may have the recorded number; it is left alone."""
        lab.jupyter.record.parent.mkdir(exist_ok=True)
        lab.jupyter.record.write_text(json.dumps({"pid": os.getpid()}))

        assert not lab.is_running()
        lab.stop(lambda _: None)


@NEEDS_NATIVE_PYTHON
class TestHome:
    """What a user keeps, and where."""

    def test_the_lab_opens_in_work_and_saves_nothing_above(self, lab: NativeLab) -> None:
        """The preferred folder is work; a save at the top level is rejected with what to do, also for root."""
        lab.start(lambda _: None)
        page = urllib.request.Request(
            f"http://127.0.0.1:{lab.port}/lab", headers={"Authorization": f"token {lab.token}"}
        )
        with server.OPENER.open(page, timeout=10) as answer:
            settings_of_the_page = answer.read().decode()
        post = {"method": "POST", "body": {"type": "notebook"}, "timeout_seconds": 10}
        rejected = lab.ask("/api/contents/", **post)
        saved = lab.ask("/api/contents/work", **post)

        assert '"preferredPath": "work"' in settings_of_the_page
        assert rejected[0] == 403
        assert "Open the folder work" in str(rejected[1]) or rejected[1] is None
        assert saved[0] == 201
        assert lab.view.stat().st_mode & 0o777 == 0o555
        assert sorted(path.name for path in lab.view.iterdir()) == ["share", "work"]

    def test_a_home_that_others_can_write_is_rejected(self, lab: NativeLab) -> None:
        """In a shared folder another user may have made it first, with settings that JupyterLab would execute."""
        shutil.rmtree(lab.home)
        lab.home.mkdir()
        lab.home.chmod(0o777)
        with pytest.raises(RocmlabError, match="not a private folder of this user"):
            lab.prepare(lambda _: None)
        shutil.rmtree(lab.home)
        lab.home.symlink_to(lab.notebooks)
        with pytest.raises(RocmlabError, match="it is a link"):
            lab.prepare(lambda _: None)

    def test_the_server_imports_nothing_from_the_notebooks(
        self, lab: NativeLab, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A notebooks folder may have a queue.py; and a hub's terminal does not make the lab one of its servers."""
        (lab.notebooks / "queue.py").write_text("raise SystemExit('imported')")
        (lab.notebooks / "jupyterlab.py").write_text("raise SystemExit('imported')")
        monkeypatch.setenv("JUPYTERHUB_SERVICE_PREFIX", "/user/me/")
        monkeypatch.setenv("JUPYTERHUB_API_TOKEN", "the-hubs")

        lab.start(lambda _: None)
        evil = urllib.request.Request(f"http://127.0.0.1:{lab.port}/api", headers={"Host": "evil.example"})

        with pytest.raises(urllib.error.HTTPError, match="403"):
            server.OPENER.open(evil, timeout=10)
        assert "JUPYTERHUB_API_TOKEN" not in lab.server_environment()

    @pytest.mark.long
    def test_settings_and_workspaces_are_on_the_share(self, lab: NativeLab) -> None:
        """JupyterLab's own files survive `make clean`, in a home that only the user reads."""
        lab.start(lambda _: None)
        lab.ask("/lab/api/workspaces/mine", method="PUT", body={"data": {}, "metadata": {"id": "mine"}})

        listed = [path for path in (lab.home / ".jupyter/lab/workspaces").iterdir() if "mine" in path.name]

        assert listed
        assert lab.home == lab.share_folder / "home"
        assert lab.home.stat().st_mode & 0o777 == 0o700

    def test_files_next_to_work_and_share_are_moved_once(self, lab: NativeLab) -> None:
        """Root can write there: each byte is still there, and each move is one line."""
        homes.unlock(lab.view)
        (lab.view / "folder").mkdir(parents=True)
        (lab.view / "folder/note.txt").write_text("a note")
        (lab.view / "saved.ipynb").write_text("a notebook")
        lines: list[str] = []

        lab.start(lines.append)
        lab.stop(lambda _: None)

        recovered = next(lab.notebooks.glob("recovered-*"))
        assert (recovered / "saved.ipynb").read_text() == "a notebook"
        assert (recovered / "folder/note.txt").read_text() == "a note"
        assert sum(line.startswith("moved ") for line in lines) == 2
        assert lab.view.stat().st_mode & 0o777 == 0o555

    def test_clean_keeps_what_a_user_wrote(self, tmp_path: Path) -> None:
        """`.venv` and our links go; a file in the view folder, and settings of earlier versions, stay."""
        lab = make_lab(tmp_path)
        lab.venv = Environment(tmp_path, "cpu", sys.executable, "")
        lab.venv.folder.mkdir()
        for folder in ("data", "models"):
            (lab.share_folder / folder).mkdir(parents=True)
        lab.home.mkdir()
        lab._show()
        homes.unlock(lab.view)
        (lab.view / "mine.ipynb").write_text("work")
        (lab.settings.state / "config").mkdir()
        (lab.settings.state / "config/mine.json").write_text("{}")
        lines: list[str] = []

        lab.clean(lines.append)

        assert (lab.view / "mine.ipynb").read_text() == "work"
        assert not (lab.view / "work").is_symlink()
        assert (lab.settings.state / "config/mine.json").exists()
        assert not lab.venv.folder.exists()
        assert any(str(lab.view) in line for line in lines)


@NEEDS_NATIVE_PYTHON
class TestVisibility:
    """Which GPUs the lab's kernels may see."""

    def test_the_cpu_backend_hides_every_gpu(self, tmp_path: Path) -> None:
        """A CPU lab on a host with GPUs must not compute on one by accident."""
        env = make_lab(tmp_path).server_environment()

        assert env["HIP_VISIBLE_DEVICES"] == "-1"
        assert env["CUDA_VISIBLE_DEVICES"] == "-1"

    @pytest.mark.parametrize(("choice", "mask"), [("all", None), ("0", "0"), ("none", "-1")])
    def test_a_simulated_host_is_shown_to_the_lab(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, choice: str, mask: str | None
    ) -> None:
        """ROCMLAB_ROOT is in the server's environment, and GPUS masks its GPUs; the frameworks are the CPU's."""
        for name in ("HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES"):
            monkeypatch.delenv(name, raising=False)
        root = make_host(tmp_path / "host", Gpu(1, 0x0300, 128), Gpu(2, 0x0600, 129, unique_id=7))
        lab = make_lab(tmp_path)
        lab.settings.chosen |= {"ROCMLAB_ROOT": str(root), "GPUS": choice}

        env = lab.server_environment()

        assert env["ROCMLAB_ROOT"] == str(root)
        assert env.get("HIP_VISIBLE_DEVICES") == mask

    def test_weights_are_in_the_share_unless_the_user_keeps_them_elsewhere(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Who has set HF_HOME has a hundred gigabytes there, and would fetch them again."""
        monkeypatch.delenv("KERAS_HOME", raising=False)
        monkeypatch.setenv("HF_HOME", "/data/huggingface")
        lab = make_lab(tmp_path)

        env = lab.server_environment()

        assert env["HF_HOME"] == "/data/huggingface"
        assert env["KERAS_HOME"] == str(lab.share_folder / "cache/keras")

    def test_what_holds_for_one_command_does_not_reach_the_lab(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """With FORCE=1 of its start each later command in a terminal of the lab would ask nothing, and delete."""
        given = {"FORCE": "1", "WHEN": "idle", "RUNS": "30d", "PORT": "9", "SHARE": "/x", "MAKEFLAGS": " -- FORCE=1"}
        for name, value in given.items():
            monkeypatch.setenv(name, value)
        monkeypatch.setenv("HOST", "of-the-shell")

        env = make_lab(tmp_path).server_environment()

        assert not set(given) & set(env)
        assert env["HOST"] == "of-the-shell"

    def test_variables_of_rocm_in_the_env_file_reach_the_lab(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """As in a container: they win over this terminal's, and a change restarts the lab; nothing else is taken."""
        monkeypatch.setenv("HSA_OVERRIDE_GFX_VERSION", "11.0.0")
        monkeypatch.delenv("HF_TOKEN", raising=False)
        lab = make_lab(tmp_path)
        before = lab.server_environment()
        running = lab._configuration()
        with (tmp_path / ".env").open("a") as file:
            file.write("HSA_OVERRIDE_GFX_VERSION=10.3.0\nHF_TOKEN=hf\nTZ=\nPYTHONHOME=/nowhere\n")

        env = lab.server_environment()

        assert before["HSA_OVERRIDE_GFX_VERSION"] == "11.0.0"
        assert (env["HSA_OVERRIDE_GFX_VERSION"], env["HF_TOKEN"]) == ("10.3.0", "hf")
        assert "PYTHONHOME" not in env
        assert env.get("TZ") == before.get("TZ")
        assert lab._configuration() != running

    def test_what_pip_needs_reaches_it_and_the_kernels(self, tmp_path: Path) -> None:
        """CA_BUNDLE and PIP_CONFIG: for the installation, and for `%pip install`."""
        lab = make_lab(tmp_path)
        lab.venv.variables["PIP_CERT"] = "/corp.pem"
        (tmp_path / ".venv/bin").mkdir(parents=True)
        (tmp_path / ".venv/bin/python").symlink_to(sys.executable)
        (tmp_path / requirements.INSTALL).parent.mkdir(parents=True)
        (tmp_path / requirements.INSTALL).write_text("import os; print(os.environ['PIP_CERT'])\n")

        assert requirements.run_pip(lab.venv, ()) == (0, ["/corp.pem"])
        assert lab.server_environment()["PIP_CERT"] == "/corp.pem"

    def test_the_token_is_not_among_the_arguments(self, tmp_path: Path) -> None:
        """Arguments can be listed by every user of the host; the environment cannot."""
        lab = make_lab(tmp_path)
        lab.prepare(lambda _: None)
        lab.start(lambda _: None)
        try:
            assert lab.token.encode() not in Path(f"/proc/{pid_of(lab)}/cmdline").read_bytes()
        finally:
            lab.stop(lambda _: None)


@NEEDS_NATIVE_PYTHON
class TestInstallation:
    """What is installed, and what happens when it cannot be."""

    def test_a_failed_installation_leaves_no_half_environment(
        self, tmp_path: Path, repository: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The new folder goes, the log stays, and the problem quotes pip; that uv is missing is reported before."""
        monkeypatch.setenv("PIP_NO_INDEX", "1")
        monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
        (tmp_path / "requirements").mkdir()
        (tmp_path / "requirements/uv.txt").write_text("uv==0.0 --hash=sha256:" + "0" * 64 + "\n")
        shutil.copytree(repository / "docker/build", tmp_path / "docker/build")
        (tmp_path / "requirements/native.txt").write_text("no-such-package==1.0 --hash=sha256:" + "0" * 64 + "\n")
        environment = Environment(tmp_path, "cpu", sys.executable, "")
        said: list[str] = []

        with pytest.raises(RocmlabError, match="failed") as caught:
            making.make(environment, said.append)

        assert not environment.folder.exists()
        assert "uv cannot be installed; pip installs the packages, which takes longer" in said
        assert (tmp_path / ".rocmlab/install.log").exists()
        assert "ERROR" in caught.value.problem.why

    @pytest.mark.parametrize(("python", "what"), [("/no/such/python", "does not run"), ("/bin/false", "does not run")])
    def test_an_interpreter_that_does_not_run_is_a_problem(self, python: str, what: str) -> None:
        """The fix names versions that would do."""
        with pytest.raises(RocmlabError, match=what) as caught:
            check_python(python)

        assert "3.11 to 3.13" in caught.value.problem.fix

    def test_an_interpreter_that_is_too_old_is_a_problem(self, tmp_path: Path) -> None:
        """Its version is shown."""
        old = tmp_path / "python3"
        old.write_text("#!/bin/sh\necho 3 9\n")
        old.chmod(0o755)

        with pytest.raises(RocmlabError, match=r"is Python 3\.9"):
            check_python(str(old))

    @pytest.mark.parametrize(("setting", "is_compiled"), [("", False), ("1", True)])
    def test_only_what_is_imported_is_compiled(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, setting: str, is_compiled: bool
    ) -> None:
        """Compiling every file took a third of the installation; where Python may not write, pip still does it."""
        monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", setting)
        commands: list[list[str]] = []
        monkeypatch.setattr(process, "follow", lambda command, **_: commands.append(command) or (0, []))

        requirements.run_pip(Environment(tmp_path, "cpu", sys.executable, ""), ("harmless",))

        assert ("--no-compile" not in commands[0]) is is_compiled

    def test_another_backend_gets_a_new_environment(self, tmp_path: Path) -> None:
        """Pip would keep the CPU's PyTorch for a GPU: what was made for another backend is removed first."""
        version = check_python(sys.executable)
        cpu = Environment(tmp_path, "cpu", sys.executable, "")
        cpu.folder.mkdir()
        cpu.interpreter.parent.mkdir()
        cpu.interpreter.symlink_to(sys.executable)
        cpu.marker.write_text(json.dumps({"backend": "cpu", "python": version}))

        wanted = {"backend": "cpu", "python": version, "jax_packages": "", "extras": ""}
        assert cpu.matches(wanted, cpu.folder)
        assert not cpu.matches({**wanted, "backend": "rocm"}, cpu.folder)
        assert not cpu.matches({**wanted, "python": "3.99"}, cpu.folder)
        cpu.marker.unlink()
        assert not cpu.matches(wanted, cpu.folder)

    def test_a_framework_for_another_backend_is_an_error(self, tmp_path: Path, repository: Path) -> None:
        """The CPU's TensorFlow in a lab for AMD GPUs would compute on the CPU and not report it."""
        (tmp_path / "docker/build").mkdir(parents=True)
        shutil.copy(repository / "docker/build/verify.py", tmp_path / "docker/build")
        package = tmp_path / "stand-in/tensorflow"
        package.mkdir(parents=True)
        (package / "__init__.py").write_text(
            "__version__ = '0'\nclass test:\n"
            "    is_built_with_rocm = is_built_with_cuda = staticmethod(lambda: False)\n"
        )
        environment = TestEnvironmentOfTests(tmp_path, "rocm", sys.executable, "")
        interpreter = tmp_path / "python"
        interpreter.write_text(f'#!/bin/sh\nPYTHONPATH="{package.parent}" exec {sys.executable} "$@"\n')
        interpreter.chmod(0o755)

        with pytest.raises(RocmlabError, match="tensorflow is not what the backend rocm needs") as caught:
            making.verify(environment, interpreter)

        assert "is not built with rocm" in caught.value.problem.why

    def test_amds_tensorflow_never_comes_as_the_broken_release(self, tmp_path: Path) -> None:
        """2.14.0.600 ignores every Radeon, and the CPU build must not come next to AMD's."""
        (tmp_path / "requirements").mkdir()
        (tmp_path / ".venv").mkdir()
        (tmp_path / "requirements/native.txt").write_text(
            "keras==3.1 \\\n    --hash=sha256:0\ntensorflow-cpu==2.21.0 \\\n    --hash=sha256:1\n"
        )

        steps = list(requirements.steps(Environment(tmp_path, "rocm", "python3", "https://index", "https://amd")))
        locked = (tmp_path / ".venv/native-rocm.txt").read_text()

        tensorflow = next(step.arguments for step in steps if "tensorflow-rocm>=2.16" in step.arguments)
        torch = next(step.fallback or () for step in steps if step.has_companions)
        assert {"--no-index", "--no-other-index"} <= set(tensorflow)  # PyPI, or a mirror, could have a higher version
        assert "--no-other-index" in torch
        assert "keras" in locked
        assert "tensorflow-cpu" not in locked

    def test_a_lock_loses_only_the_named_packages(self) -> None:
        """Hash lines go with their package, neighbours stay."""
        lock = "a==1 \\\n    --hash=x\nb==2 \\\n    --hash=y\n"

        assert requirements.without(lock, {"a"}) == "b==2 \\\n    --hash=y\n"
