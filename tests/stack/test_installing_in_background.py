"""The first `make up` starts JupyterLab before the frameworks are there; a process in the background installs them.

The process, its lock and the environment are real. What installs packages is a program of the test in the project, as
`docker/build/install.py` is one of the project's: it begins, waits for the file `go`, and succeeds or fails.
"""

from __future__ import annotations

import importlib.metadata
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest
from packaging.requirements import Requirement

import rocmlab
from rocmlab.base import identity, installation
from rocmlab.base.errors import RocmlabError
from rocmlab.cli.upgrade import Attempt
from rocmlab.lab import install
from rocmlab.stack import making, packages, requirements, settings, source
from rocmlab.stack.choice import Choice
from rocmlab.stack.environment import MADE, Environment, check_python
from rocmlab.stack.installing import Installer
from rocmlab.stack.lab import Say
from rocmlab.stack.native import NativeLab
from rocmlab.stack.project import Project
from rocmlab.stack.requirements import LAB_LOCKS, without

pytestmark = pytest.mark.slow

REPOSITORY = Path(__file__).parents[2]
WAIT_SECONDS = 30.0
INSTALLS = """
import sys, time
from pathlib import Path
project = Path.cwd()
with open(project / "calls", "a") as file:
    print(*sys.argv[1:], file=file)
if "--editable" in sys.argv:
    (project / "rocmlab-installed").touch()
if str(project / "requirements/native.txt") in sys.argv:
    with open(project / "begun", "a") as file:
        print("begun", file=file)
    while not (project / "go").exists():
        time.sleep(0.02)
    if (project / "fails").exists():
        print("ERROR: no index answers")
        sys.exit(1)
    site = next(Path(sys.prefix).glob("lib/python3*/site-packages"))
    (site / "framework.py").write_text("here = True")
"""


def until(condition: Callable[[], object]) -> None:
    """Wait until a condition holds."""
    deadline = time.monotonic() + WAIT_SECONDS
    while not condition():
        assert time.monotonic() < deadline, "it never happened"
        time.sleep(0.02)


class Scene:
    """A project whose environment has what JupyterLab needs, and no frameworks."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        for name in ("requirements", "docker/build", "notebooks", "src/rocmlab/lab"):
            (folder / name).mkdir(parents=True)
        for name in ("native", "lab", "build", "uv"):
            (folder / f"requirements/{name}.txt").write_text("")
        (folder / "pyproject.toml").write_text("")
        (folder / "docker/build/install.py").write_text(INSTALLS)
        (folder / "docker/build/verify.py").write_text("")
        companions = "import sys, pathlib; pathlib.Path(sys.argv[0] + '.called').write_text(chr(10).join(sys.argv[1:]))"
        (folder / "docker/build/companions.py").write_text(companions)
        self.venv = Environment(folder, "cpu", sys.executable, "")
        values = {"PORT": "18999", "JUPYTER_TOKEN": "a" * 64, "SHARE": "./share", "ROCMLAB_BACKEND": "cpu"}
        self.lab = NativeLab(settings.load(folder, {}), values, self.venv)
        self.lines: list[str] = []
        self.started: list[Installer] = []  # each has its process as a child, and waits for it at the end
        self._furnish()

    def _furnish(self) -> None:
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", self.prefix], check=True)
        site = next(self.prefix.glob(packages.SITE))
        (site / "tests.pth").write_text(f"{Path(rocmlab.__file__).parents[1]}\n")
        (self.prefix / MADE).touch()
        python = str(self.venv.interpreter)
        install.main(["--prefix", str(self.prefix), "--tensorflow", python, "--torch", python])
        self.mark()

    def mark(self) -> None:
        """Note what the environment is made from."""
        record = self.venv.record_of(check_python(sys.executable))
        text = json.dumps({**record, "fingerprint": self.venv.fingerprint()})
        (self.prefix / installation.PART).write_text(text)

    @property
    def prefix(self) -> Path:
        """The environment's folder."""
        return self.folder / ".venv"

    @property
    def installer(self) -> Installer:
        """What a further command has of the process in the background."""
        return Installer(self.folder)

    def begin(self) -> None:
        """Start the installation as `make up` does, and wait until it installs."""
        before = self.count()
        self.started.append(self.installer)
        self.started[-1].begin(self.venv)
        until(lambda: self.count() > before)

    def count(self) -> int:
        """Return how often the frameworks' installation has begun."""
        path = self.folder / "begun"
        return len(path.read_text().splitlines()) if path.exists() else 0

    def go(self, *, fails: bool = False) -> None:
        """Let the installation end."""
        if fails:
            (self.folder / "fails").touch()
        (self.folder / "go").touch()

    def titles(self) -> list[str]:
        """Return what the launcher shows."""
        specs = sorted(self.prefix.glob("share/jupyter/kernels/*/kernel.json"))
        return [json.loads(path.read_text())["display_name"] for path in specs]


@pytest.fixture
def scene(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Scene]:
    """A project in which nothing is being installed yet; nothing runs in it at the end."""
    monkeypatch.delenv("PYTHONDONTWRITEBYTECODE", raising=False)
    found = Scene(tmp_path / "rocmlab")
    yield found
    (found.folder / "go").touch()
    for each in found.started:
        each.end()


def test_what_jupyterlab_needs_is_in_the_part_that_is_installed_first() -> None:
    """Every requirement of the lab's own packages, and of theirs, is in it with the version of the whole."""
    locks = [(REPOSITORY / f"requirements/{name}.txt").read_text() for name in LAB_LOCKS]
    names = {name for text in locks for name in re.findall(r"^([A-Za-z0-9][\w.-]*)==", text, re.MULTILINE)}
    whole = (REPOSITORY / "requirements/native.txt").read_text()
    all_names = set(re.findall(r"^([A-Za-z0-9][\w.-]*)==", whole, re.MULTILINE))
    part = set(re.findall(r"^([A-Za-z0-9][\w.-]*)==", without(whole, all_names - names), re.MULTILINE))
    direct = [(REPOSITORY / f"requirements/{name}.in").read_text() for name in LAB_LOCKS]
    wanted = [Requirement(line) for text in direct for line in text.splitlines() if line and line[0] not in "#-"]

    seen: set[str] = set()
    while wanted:
        requirement = wanted.pop()
        name = re.sub(r"[-_.]+", "-", requirement.name).lower()
        if name in seen or (requirement.marker and not requirement.marker.evaluate({"extra": ""})):
            continue
        seen.add(name)
        wanted += [Requirement(text) for text in importlib.metadata.requires(name) or ()]

    assert "jupyter-server" in seen
    assert seen - part <= {"rfc3987-syntax"}  # which no lock has: see scripts/lock
    assert not part & {"tensorflow", "tensorflow-cpu", "jax", "transformers"}


def test_the_launcher_shows_what_is_being_installed_until_it_is_there(scene: Scene) -> None:
    """Then the environment is whole, its kernels have their plain titles, and its packages are compiled."""
    scene.begin()
    scene.venv.mark_kernels()

    assert scene.titles() == ["TensorFlow (being installed)", "PyTorch (being installed)"]
    assert "are being installed" in str(scene.lab.unfinished())
    assert scene.lab.is_startable()
    assert not scene.lab.is_prepared()

    scene.go()
    until(lambda: (scene.prefix / packages.COMPILED).exists())
    assert scene.titles() == ["TensorFlow", "PyTorch"]
    assert scene.lab.is_prepared()
    assert scene.lab.unfinished() is None
    assert not (scene.folder / "rocmlab-installed").exists()  # which the running server imports
    assert list(scene.prefix.glob("lib/python3*/site-packages/__pycache__/framework.*.pyc"))


def test_one_installation_runs_at_a_time(scene: Scene) -> None:
    """A second `make up` meanwhile leaves it alone."""
    scene.begin()
    first = scene.installer.find()

    scene.installer.begin(scene.venv)

    assert scene.installer.find() == first
    assert scene.count() == 1


def test_it_is_not_ended_with_the_terminal(scene: Scene) -> None:
    """It has a session of its own, and its output a file."""
    scene.begin()

    found = scene.installer.find()

    assert found
    assert os.getsid(found.pid) == found.pid
    assert "installing" in (scene.folder / installation.LOG).read_text()


def test_what_a_killed_installation_has_started_is_waited_for_and_then_it_is_continued(scene: Scene) -> None:
    """Its uv still writes; only then does the next `make up` install again."""
    scene.begin()
    found = scene.installer.find()
    assert found
    os.kill(found.pid, signal.SIGKILL)
    identity.wait_gone([found], WAIT_SECONDS)

    assert installation.state(scene.prefix) == installation.INSTALLING
    scene.installer.begin(scene.venv)
    assert scene.count() == 1
    scene.go()
    until(lambda: not installation.is_locked(scene.folder))
    interrupted = installation.obstacle(scene.prefix)
    assert interrupted
    assert "make up" in interrupted.fix
    scene.begin()
    until(lambda: installation.is_whole(scene.prefix))
    assert scene.count() == 2


def test_a_failure_is_shown_and_the_next_make_up_retries(scene: Scene) -> None:
    """With what, why and fix; JupyterLab's part is kept."""
    scene.begin()
    scene.go(fails=True)
    until(lambda: installation.obstacle(scene.prefix))
    until(lambda: scene.titles() == ["TensorFlow (not installed)", "PyTorch (not installed)"])

    problem = scene.lab.unfinished()
    assert isinstance(problem, installation.Problem)
    assert problem.what == "TensorFlow and PyTorch could not be installed"
    assert "no index answers" in problem.why
    assert problem.fix.startswith("make up")
    assert scene.lab.is_startable()
    (scene.folder / "fails").unlink()
    scene.begin()
    until(lambda: installation.is_whole(scene.prefix))
    assert scene.lab.unfinished() is None


def test_make_down_ends_it_and_it_can_be_continued(scene: Scene) -> None:
    """Also what it has started; the environment is as it was."""
    scene.begin()
    found = scene.installer.find()
    assert found
    family = identity.family(found)
    assert len(family) == 2

    scene.lab.stop(scene.lines.append)

    assert not any(each.is_alive for each in family)
    assert not installation.is_locked(scene.folder)
    assert scene.lab.is_startable()
    scene.go()
    scene.begin()
    until(lambda: installation.is_whole(scene.prefix))


def test_make_clean_ends_it_and_removes_the_environment(scene: Scene) -> None:
    """Nothing writes into the folder afterwards."""
    scene.begin()

    scene.lab.clean(scene.lines.append)

    assert not scene.prefix.exists()
    assert scene.installer.find() is None


@pytest.mark.long
@pytest.mark.parametrize("always", [False, True])
def test_other_commands_wait_for_it(scene: Scene, always: bool) -> None:
    """`make run-notebooks` finds the environment whole then; `make build` and `upgrade` go through it again."""
    scene.begin()
    waiting = threading.Thread(target=lambda: scene.lab.prepare(scene.lines.append, always=always))
    waiting.start()
    until(lambda: scene.lines)

    assert scene.lines[0].startswith("waiting for TensorFlow and PyTorch, which are being installed")
    assert not scene.lab.is_prepared()
    scene.go()
    waiting.join(WAIT_SECONDS)
    assert scene.lab.is_prepared()
    assert scene.count() == (2 if always else 1)


def test_after_a_failure_other_commands_install_in_the_foreground(scene: Scene) -> None:
    """They show the error themselves, and JupyterLab's part is kept."""
    scene.go(fails=True)

    with pytest.raises(RocmlabError, match="no index answers"):
        scene.lab.prepare(scene.lines.append)
    assert scene.lab.is_startable()
    (scene.folder / "fails").unlink()
    scene.lab.prepare(scene.lines.append)

    assert scene.lab.is_prepared()
    assert not (scene.prefix / installation.PART).exists()


def test_an_environment_that_another_version_began_is_made_in_the_foreground(scene: Scene) -> None:
    """Its requirements have changed since, so JupyterLab's own packages may change as well."""
    (scene.folder / "requirements/native.txt").write_text("# another version\n")
    scene.go()

    assert not scene.lab.is_startable()
    scene.lab.prepare(scene.lines.append, only_lab=True)

    assert scene.lab.is_prepared()


def source_path() -> dict[str, str]:
    """Return the environment of a process that imports this source."""
    return {**os.environ, "PYTHONPATH": str(Path(rocmlab.__file__).parents[1])}


def has_torch(scene: Scene) -> None:
    """Have PyTorch installed, and nothing that it needs."""
    information = next(scene.prefix.glob(packages.SITE)) / "torch-2.13.0.dist-info"
    information.mkdir()
    (information / "INSTALLER").write_text("uv")
    (information / "RECORD").write_text("torch-2.13.0.dist-info/INSTALLER,,\n")


def calls_for_torch(scene: Scene) -> list[str]:
    """Return the arguments of what installs PyTorch, in order."""
    return [line for line in (scene.folder / "calls").read_text().splitlines() if "torch==" in line]


def test_what_pytorch_needs_and_its_companions_are_installed_after_an_interruption(scene: Scene) -> None:
    """The installation ended between PyTorch and these; they come from an index, not only from what is there."""
    has_torch(scene)
    scene.venv.torch_index = "https://index.example/whl"
    scene.mark()
    scene.go()

    making.finish(scene.venv, scene.lines.append)

    assert ["--no-index" in line for line in calls_for_torch(scene)] == [True, False]
    assert "--index-url https://index.example/whl" in calls_for_torch(scene)[1]
    extras, *options = (scene.folder / "docker/build/companions.py.called").read_text().split("\n")
    assert not extras  # a native PyTorch has none; an option in their place would be a part of a package's name
    assert options[options.index("--index-url") + 1] == "https://index.example/whl"
    assert "--no-index" not in options


def test_without_an_index_a_pytorch_that_is_there_stays(scene: Scene) -> None:
    """What it needs cannot be installed then, and that is no failure: it was from a folder of wheels."""
    has_torch(scene)
    scene.go()
    refuses = 'if "torch==2.13.0" in sys.argv and "--no-index" not in sys.argv:\n    sys.exit(1)\n'
    (scene.folder / "docker/build/install.py").write_text(INSTALLS + refuses)

    making.finish(scene.venv, scene.lines.append)

    assert len(calls_for_torch(scene)) == 2
    assert scene.lab.is_prepared()


def test_a_pytorch_from_a_folder_has_companions_from_there(scene: Scene) -> None:
    """It was not there before, so nothing else is tried."""
    scene.venv.wheels = "/wheels"
    scene.go()

    making.finish(scene.venv, scene.lines.append)

    assert len(calls_for_torch(scene)) == 1
    called = (scene.folder / "docker/build/companions.py.called").read_text()
    assert called.split("\n") == ["", "--no-index", "--find-links", "/wheels"]


def test_another_python_replaces_it_in_the_foreground(scene: Scene) -> None:
    """`python3` is another version now: nothing of it starts, and it is not replaced under a lab that runs."""
    record = json.loads((scene.prefix / installation.PART).read_text())
    (scene.prefix / installation.PART).write_text(json.dumps({**record, "python": "3.9"}))

    assert not scene.venv.is_part()
    assert not scene.lab.is_startable()
    with pytest.raises(RocmlabError, match="cannot be completed while JupyterLab runs"):
        making.finish(scene.venv, scene.lines.append)
    scene.installer.begin(scene.venv)

    assert scene.installer.find() is None
    assert scene.venv.interpreter.exists()


def test_a_python_that_does_not_run_is_reported_by_what_needs_it(scene: Scene) -> None:
    """Not by a look at what is there."""
    scene.venv.python = str(scene.folder / "no-python")
    scene.mark()

    assert not scene.lab.is_startable()
    with pytest.raises(RocmlabError, match="does not run"):
        scene.lab.prepare(scene.lines.append, only_lab=True)


def test_what_changes_during_the_installation_is_installed_by_the_next_make_up(scene: Scene) -> None:
    """A `git pull` meanwhile brings other requirements, which are not in the environment."""
    scene.begin()
    (scene.folder / "requirements/native.txt").write_text("# another version\n")
    scene.go()
    until(lambda: installation.is_whole(scene.prefix))

    assert not scene.lab.is_prepared()
    assert not scene.lab.is_startable()


def test_an_upgrade_ends_it_before_the_checkout_moves(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    """The packages of one version are not installed from the files of another."""
    scene.begin()
    running: list[object] = []

    def move(folder: Path, target: str) -> list[source.Saved]:
        running.append(scene.installer.find())
        raise RocmlabError(f"{folder} does not move to {target}")

    monkeypatch.setattr(source, "move", move)
    choice = Choice("cpu", "native", "test")
    attempt = Attempt(Project(scene.lab.settings, choice, scene.lab.values, scene.lab), "one", "one")

    with pytest.raises(RocmlabError, match="does not move"):
        attempt.run("two", [])
    assert running == [None]


def test_only_what_it_installs_is_installed_again(scene: Scene) -> None:
    """The locked packages, PyTorch and what that brings for a GPU; not rocmlab, and not a user's own."""
    (scene.folder / "requirements/native-cuda.txt").write_text("typing_extensions==4.0\n")
    (scene.folder / "requirements/native.txt").write_text("numpy==2.0\n")
    names = ["numpy", "typing-extensions", "torch", "torchvision", "triton", "nvidia-cublas", "rocmlab", "mine"]

    assert [name for name in names if requirements.comes(scene.venv, name)] == ["numpy", "torch", "torchvision"]
    scene.venv.backend = "cuda"
    assert [name for name in names if requirements.comes(scene.venv, name)] == names[1:6]


def test_a_copy_is_not_searched_for_what_was_interrupted(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its scripts name its own interpreter, so their sizes are other ones; `.venv` is searched before it is copied."""
    searched: list[Path] = []
    monkeypatch.setattr(packages, "remove_unfinished", lambda folder, comes: searched.append(folder))
    scene.venv.is_beside = True
    scene.go()

    making.make(scene.venv, scene.lines.append)

    assert searched == [scene.prefix]
    assert scene.venv.building is not None
    assert installation.is_whole(scene.venv.building)


def test_what_would_be_replaced_is_not_waited_for(scene: Scene) -> None:
    """Other settings need another environment: `make up BACKEND=cpu` ends the download of another backend."""
    scene.begin()
    scene.venv.torch_index = "https://index.example/whl"
    (scene.folder / "docker/build/install.py").write_text("")

    scene.lab.prepare(scene.lines.append, only_lab=True)

    assert not [line for line in scene.lines if line.startswith("waiting")]
    assert scene.installer.find() is None


def test_a_run_completes_it_and_leaves_alone_what_a_lab_runs_from(scene: Scene) -> None:
    """As the background does: rocmlab and the kernelspecs, which a running JupyterLab reads, stay."""
    scene.go()

    scene.lab.prepare(scene.lines.append)

    assert scene.lab.is_prepared()
    assert not (scene.folder / "rocmlab-installed").exists()


def test_what_is_marked_as_whole_is_on_the_disk(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    """After a power cut no file of it is empty."""
    whole: list[bool] = []
    monkeypatch.setattr(os, "sync", lambda: whole.append(scene.lab.is_prepared()))
    scene.go()

    making.finish(scene.venv, scene.lines.append)

    assert whole == [False]
    assert scene.lab.is_prepared()


class StartedLab(NativeLab):
    """A native lab whose JupyterLab runs already."""

    def _start(self, say: Say, *, force: bool) -> bool:
        """Start nothing."""
        return True


def test_a_lab_runs_though_nothing_can_be_installed_in_the_background(scene: Scene) -> None:
    """The disk is full, or the lock cannot be written: `make up` reports it, and its lab can be stopped."""
    lab = StartedLab(scene.lab.settings, scene.lab.values, scene.venv)
    (scene.folder / installation.LOCK).mkdir(parents=True)

    assert lab.start(scene.lines.append)

    assert "nothing is installed or compiled in the background" in scene.lines[-1]
    assert scene.titles() == ["TensorFlow (not installed)", "PyTorch (not installed)"]


class Unrecorded(Installer):
    """One that is started when the disk is full."""

    pid = 0

    def remember(self, pid: int, configuration: Mapping[str, object], **facts: str) -> None:
        """Fail as a full disk does."""
        self.pid = pid
        raise OSError("no space left on device")


def test_a_process_that_cannot_be_recorded_is_ended(scene: Scene) -> None:
    """No later command would find it."""
    installer = Unrecorded(scene.folder)

    with pytest.raises(OSError, match="no space left"):
        installer.begin(scene.venv)

    assert not identity.find(installer.pid)
    assert not installation.is_locked(scene.folder)


def test_the_lock_is_released_where_the_record_cannot_be_removed(scene: Scene) -> None:
    """Another command of the same process can install."""
    scene.installer.record.mkdir(parents=True)

    with pytest.raises(OSError, match="directory"):
        scene.installer.begin(scene.venv)

    assert not installation.is_locked(scene.folder)


def test_an_unexpected_failure_is_shown(scene: Scene) -> None:
    """With its type, and its place in the log."""
    (scene.folder / "requirements/native.txt").write_bytes(b"\xff")
    scene.mark()

    scene.started.append(scene.installer)
    scene.started[-1].begin(scene.venv)

    until(lambda: (scene.prefix / installation.FAILURE).exists())
    until(lambda: not installation.is_locked(scene.folder))
    problem = installation.obstacle(scene.prefix)
    assert problem
    assert "UnicodeDecodeError" in problem.why
    assert "Traceback" in (scene.folder / installation.LOG).read_text()


def test_a_failure_that_cannot_be_written_names_the_log(scene: Scene) -> None:
    """The disk is full; the launcher shows that the frameworks are not there."""
    scene.go(fails=True)
    (scene.prefix / installation.FAILURE).mkdir()
    facts = {"project": str(scene.folder), "backend": "cpu", "python": sys.executable, "torch_index": ""}
    lock = installation.take(scene.folder, None)
    assert lock is not None

    command = [sys.executable, "-m", "rocmlab.stack.installing", json.dumps(facts), str(lock)]
    done = subprocess.run(
        command, cwd=scene.folder, pass_fds=[lock], capture_output=True, text=True, check=False, env=source_path()
    )
    os.close(lock)

    assert done.returncode == 1
    assert "no index answers" in done.stdout
    assert not done.stderr
    problem = installation.obstacle(scene.prefix)
    assert problem
    assert installation.LOG in problem.why


class TestPackages:
    """Packages whose installation was interrupted, and compiling."""

    @pytest.fixture
    def site(self, tmp_path: Path) -> Path:
        """A `site-packages` with one package, as uv leaves it."""
        folder = tmp_path / ".venv/lib/python3.11/site-packages"
        information = folder / "one-1.0.dist-info"
        information.mkdir(parents=True)
        (folder / "one.py").write_text("x = 1\n")
        (information / "INSTALLER").write_text("uv")
        (information / "RECORD").write_text(
            "one.py,sha256=x,6\none-1.0.dist-info/INSTALLER,sha256=y,2\none-1.0.dist-info/RECORD,,\n"
        )
        return folder

    def test_a_complete_package_is_kept(self, site: Path) -> None:
        """Nothing of it is installed again."""
        packages.remove_unfinished(site.parents[2], lambda name: name == "one")

        assert (site / "one-1.0.dist-info/RECORD").exists()

    @pytest.mark.parametrize("damage", ["one.py", "one-1.0.dist-info/INSTALLER", "one-1.0.dist-info/RECORD"])
    @pytest.mark.parametrize("is_missing", [True, False])
    def test_a_half_installed_one_is_installed_again(self, site: Path, damage: str, is_missing: bool) -> None:
        """A file of it is missing or empty, as after a power cut; pip and uv would take it for installed."""
        (site / damage).unlink() if is_missing else (site / damage).write_text("")

        packages.remove_unfinished(site.parents[2], lambda name: name == "one")

        assert not (site / "one-1.0.dist-info").exists()

    def test_what_nothing_installs_again_is_kept(self, site: Path) -> None:
        """A user's own package, whose files were changed, and rocmlab itself."""
        (site / "one.py").write_text("changed")

        packages.remove_unfinished(site.parents[2], lambda name: name == "two")

        assert (site / "one-1.0.dist-info/RECORD").exists()

    def test_only_whole_environments_are_compiled_and_those_once(
        self, site: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Not where Python's own variable or pip's forbids it."""
        for name in ("PYTHONDONTWRITEBYTECODE", "PIP_COMPILE", "PIP_NO_COMPILE"):
            monkeypatch.delenv(name, raising=False)
        folder = site.parents[2]

        assert not packages.needs_compiling(folder)
        (folder / installation.WHOLE).touch()
        assert packages.needs_compiling(folder)
        for name, value in (("PYTHONDONTWRITEBYTECODE", "1"), ("PIP_COMPILE", "no"), ("PIP_NO_COMPILE", "0")):
            with monkeypatch.context() as patch:
                patch.setenv(name, value)
                assert not packages.needs_compiling(folder)
        with monkeypatch.context() as patch:
            patch.setenv("PIP_NO_COMPILE", "1")  # which, as a setting, has pip compile
            assert packages.needs_compiling(folder)
        packages.compile_all(folder, Path(sys.executable))
        assert list(site.glob("__pycache__/one.*.pyc"))
        assert not packages.needs_compiling(folder)

    def test_an_environment_that_cannot_be_written_is_left_alone(
        self, site: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """It is on a file system that is mounted read-only, or another user's."""
        monkeypatch.delenv("PYTHONDONTWRITEBYTECODE", raising=False)
        folder = site.parents[2]
        (folder / installation.WHOLE).touch()
        monkeypatch.setattr(os, "access", lambda path, mode: not (Path(path) == site and mode == os.W_OK))

        assert not packages.needs_compiling(folder)
