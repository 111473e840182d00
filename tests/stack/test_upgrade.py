"""Upgrade and rollback of a native lab: real git, pip and JupyterLab, and nothing that comes from an index.

The new version's lock names one wheel of the test's own, which shows its environment the packages of these tests.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest
from clients import Server
from clones import REPOSITORY, Clone, clone, free_port, furnish, without_docker
from packages_built import built

from rocmlab.base.errors import RocmlabError
from rocmlab.stack import source

pytestmark = pytest.mark.slow

BEFORE = "2f39a50"  # the version before upgrades were known; there is no tag yet
STUBS = {  # what pip installs and what is verified: the tests' environment has no frameworks, and no index is asked
    "pip/__init__.py": "",
    "pip/__main__.py": "",
    "tensorflow.py": "class test:\n    is_built_with_rocm = is_built_with_cuda = staticmethod(lambda: False)\n"
    "__version__ = '0'\n",
    "torch.py": "class version:\n    hip = cuda = None\n__version__ = '0'\n",
    "jax.py": "__version__ = '0'\n",
}
TORCH = "2.13.0"
JUPYTER = ("etc/jupyter", "share/jupyter")  # what JupyterLab reads below the environment's folder


def git(folder: Path, *words: str) -> str:
    """Run git as some person."""
    who = ("-c", "user.name=test", "-c", "user.email=test@example.com", "-c", "commit.gpgsign=false")
    done = subprocess.run(["git", "-C", str(folder), *who, *words], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.strip()


def older() -> str:
    """Return the commit to upgrade from: the latest tag, or the version before upgrades were known; or skip."""
    tag = subprocess.run(
        ["git", "-C", str(REPOSITORY), "describe", "--tags", "--abbrev=0"], capture_output=True, text=True, check=False
    )
    name = tag.stdout.strip() or BEFORE
    found = subprocess.run(
        ["git", "-C", str(REPOSITORY), "rev-parse", "--verify", "--quiet", f"{name}^{{commit}}"],
        capture_output=True,
        text=True,
        check=False,
    )
    if found.returncode:
        pytest.skip(f"this clone does not have the commit {name} (a shallow clone?): git fetch --unshallow")
    return found.stdout.strip()


def wheel(folder: Path, name: str, version: str, files: Mapping[str, bytes]) -> str:
    """Write a wheel, and return its line of a lock."""
    info = f"{name}-{version}.dist-info"
    metadata = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\nSummary: A synthetic one, for tests.\n"
    tags = "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    contents = {**files, f"{info}/METADATA": metadata.encode(), f"{info}/WHEEL": tags.encode()}
    record = ""
    path = folder / f"{name}-{version}-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for place, content in contents.items():
            archive.writestr(place, content)
            digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
            record += f"{place},sha256={digest},{len(content)}\n"
        archive.writestr(f"{info}/RECORD", f"{record}{info}/RECORD,,\n")
    return f"{name}=={version} \\\n    --hash=sha256:{hashlib.sha256(path.read_bytes()).hexdigest()}\n"


@pytest.fixture
def wheels(tmp_path: Path) -> Path:
    """A folder with all that the new version installs, and its lock."""
    folder = tmp_path / "wheels"
    folder.mkdir()
    files = {name: text.encode() for name, text in STUBS.items() if name in ("tensorflow.py", "jax.py")}
    files["packages_of_the_tests.pth"] = sysconfig.get_path("purelib").encode() + b"\n"
    for path in (path for place in JUPYTER for path in Path(sys.prefix, place).rglob("*") if path.is_file()):
        files[f"everything-1.data/data/{path.relative_to(sys.prefix)}"] = path.read_bytes()
    (folder / "native.txt").write_text(wheel(folder, "everything", "1", files))
    wheel(folder, "torch", TORCH, {"torch.py": STUBS["torch.py"].replace("'0'", repr(TORCH)).encode()})
    return folder


@pytest.fixture
def origin(tmp_path: Path, wheels: Path) -> Path:
    """A repository whose branch ends with the tree under test, but for its lock."""
    folder = tmp_path / "origin"
    subprocess.run(["git", "clone", "--quiet", "--shared", str(REPOSITORY), str(folder)], check=True)
    git(folder, "checkout", "--quiet", "-B", "main")
    for path in [path for path in folder.iterdir() if path.name != ".git"]:
        shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
    clone(folder)
    shutil.copy(wheels / "native.txt", folder / "requirements/native.txt")
    git(folder, "add", "--all")
    git(folder, "commit", "--quiet", "--allow-empty", "--message", "the version under test")
    return folder


@pytest.fixture
def user(tmp_path: Path, origin: Path, wheels: Path) -> Iterator[Clone]:
    """A user's clone at the older version, with a lab that runs, notebooks, a run and settings."""
    folder = tmp_path / "user"
    subprocess.run(["git", "clone", "--quiet", "--shared", str(origin), str(folder)], check=True)
    git(folder, "reset", "--quiet", "--hard", older())
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("ROCMLAB_", "PYTHONPATH"))}
    for name in ("MAKEFLAGS", "MAKELEVEL", "VIRTUAL_ENV"):
        environment.pop(name, None)
    environment |= {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(wheels), "PIP_CONFIG_FILE": os.devnull}
    found = Clone(folder, {}, environment)
    found.environment["PATH"] = without_docker(found.environment["PATH"])
    found.settings["PORT"] = str(free_port())
    furnish(found)
    stub(folder / ".venv")
    found.make("up", IDLE_GPU_WARNING_SECONDS="700")
    found.settings.clear()
    (folder / "notebooks/mine.ipynb").write_text("{}")
    with (folder / "notebooks/01_mnist_fc.ipynb").open("a") as file:
        file.write("\n")
    (folder / "share/runs/2026-01-01T000000Z-old").mkdir(parents=True)
    (folder / "share/runs/2026-01-01T000000Z-old/results.json").write_text("{}")
    yield found
    found.make("down", FORCE="1", succeeds=False)


def stub(environment: Path) -> None:
    """Let `pip install` succeed and the frameworks be verified."""
    site = next(environment.glob("lib/python*/site-packages"))
    for name, text in STUBS.items():
        (site / name).parent.mkdir(exist_ok=True)
        (site / name).write_text(text)


def server(lab: Clone) -> Server:
    """Return the lab's server."""
    return Server(f"127.0.0.1:{lab.port}", lab.env["JUPYTER_TOKEN"])


def kept(user: Clone) -> dict[str, str]:
    """Return what no upgrade may lose: its token, settings, notebooks and runs."""
    folder = user.folder
    return {
        "token": user.env["JUPYTER_TOKEN"],
        "setting": user.env["IDLE_GPU_WARNING_SECONDS"],
        "notebook": (folder / "notebooks/mine.ipynb").read_text(),
        "run": (folder / "share/runs/2026-01-01T000000Z-old/results.json").read_text(),
    }


def test_an_upgrade_and_a_rollback_lose_nothing(user: Clone, origin: Path) -> None:
    """From the version before: refused while a kernel is open, then built, started, checked; and back again."""
    first = git(user.folder, "rev-parse", "HEAD")
    before = kept(user)
    server(user).execute("torch", "kept = 42", keep=True)
    git(user.folder, "-c", "pull.ff=only", "pull", "--quiet", "--autostash")  # the older one has no `make upgrade`
    changed = (user.folder / "notebooks/01_mnist_fc.ipynb").read_bytes()  # the newer one, with the user's line
    assert changed.endswith(b"}\n\n")

    refused = user.make("upgrade", succeeds=False)
    answered = user.answers()
    upgraded = user.make("upgrade", "FORCE=1")
    status = json.loads(json_status(user))

    assert refused.returncode == 2
    assert "a kernel torch without a notebook" in refused.stdout
    assert answered
    assert "the new version works" in upgraded.stdout
    assert user.answers()
    assert kept(user) == before
    assert (user.folder / "notebooks/01_mnist_fc.ipynb").read_bytes() == changed
    assert status["version"]["version"]["commit"] == git(origin, "rev-parse", "HEAD")
    assert status["version"]["previous"]["commit"] == first
    assert (user.folder / ".venv").is_symlink()
    assert json.loads((user.folder / "share/.rocmlab/layout.json").read_text()) == {"version": 1}

    back = user.make("rollback", "FORCE=1")

    assert "going back to commit" in back.stdout
    assert git(user.folder, "rev-parse", "HEAD") == first
    assert user.answers()
    assert kept(user) == before
    assert server(user).execute("torch", "print(40 + 2)").strip() == "42"


def json_status(user: Clone) -> str:
    """Return what `rocmlab status --json` prints."""
    environment = {**user.environment, "PYTHONPATH": "src"}
    command = [sys.executable, "-m", "rocmlab", "status", "--json"]
    return subprocess.run(command, cwd=user.folder, env=environment, capture_output=True, text=True, check=True).stdout


@pytest.mark.long
def test_a_version_that_does_not_work_is_left_again(user: Clone, origin: Path) -> None:
    """Its server starts, its extension does not: checkout, environment and settings are back, and the lab answers."""
    git(user.folder, "-c", "pull.ff=only", "pull", "--quiet", "--autostash")
    user.make("upgrade")
    another_process_after_an_upgrade(user, origin)
    good, before = git(user.folder, "rev-parse", "HEAD"), kept(user)
    environment = (user.folder / ".venv").resolve()
    env = (user.folder / ".env").read_text()
    app = origin / "src/rocmlab/lab/server/app.py"
    app.write_text("raise ImportError('broken on purpose')\n" + app.read_text())
    (origin / "CHANGELOG.md").write_text(
        (origin / "CHANGELOG.md").read_text() + "- A line that is new. Affected: all.\n"
    )
    git(origin, "commit", "--quiet", "--all", "--message", "a broken version")

    done = user.make("upgrade", succeeds=False)

    assert done.returncode == 2
    assert "A line that is new" in done.stdout
    assert "the GPU panel's server extension does not answer" in done.stdout
    assert "error: the upgrade did not succeed, and the previous version is restored" in done.stdout
    assert git(user.folder, "rev-parse", "HEAD") == good
    assert (user.folder / ".venv").resolve() == environment
    assert (user.folder / ".env").read_text() == env
    assert kept(user) == before
    assert user.answers()
    assert server(user).request("/rocmlab/api/kernels", token=user.env["JUPYTER_TOKEN"])[0] == 200


def another_process_after_an_upgrade(user: Clone, origin: Path) -> None:
    """A `git pull` of code alone restarts nothing at `make up`; `make upgrade` does: the process has the old code."""
    energy = origin / "src/rocmlab/telemetry/energy.py"
    energy.write_text(energy.read_text() + "# another version\n")
    git(origin, "commit", "--quiet", "--all", "--message", "code alone")
    git(user.folder, "-c", "pull.ff=only", "pull", "--quiet", "--autostash")
    record = user.folder / ".rocmlab/jupyter.json"
    pids = [json.loads(record.read_text())["pid"]]
    for verb in ("up", "upgrade", "upgrade"):
        user.make(verb)
        pids.append(json.loads(record.read_text())["pid"])

    assert pids[0] == pids[1]
    assert pids[1] != pids[2]
    assert pids[2] == pids[3]  # which is the newest version already
    assert json.loads(json_status(user))["version"]["version"]["commit"] == git(origin, "rev-parse", "HEAD")


@dataclass
class Uvx:
    """A user without a clone, who has the wheels of two versions; the newer one has another notebook 01."""

    folder: Path
    older: Path
    newer: Path
    environment: dict[str, str]

    def __call__(self, package: Path, *arguments: str, **settings: str) -> str:
        """Run a command of one of the versions, and return what it printed."""
        program = [str(Path(sys.executable).with_name("uvx")), "--no-index", "--python", sys.executable]
        command = [*program, "--from", str(package), "rocmlab", *arguments]
        environment = {**self.environment, **settings}
        done = subprocess.run(
            command, cwd=self.folder, env=environment, capture_output=True, text=True, check=False, timeout=600
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout + done.stderr


@pytest.fixture
def uvx(tmp_path: Path, wheels: Path) -> Uvx:
    """Real wheels, built from the tree under test, but for its lock."""
    tree = clone(tmp_path / "source")
    shutil.copy(wheels / "native.txt", tree.folder / "requirements/native.txt")
    older = built(tree.folder, tmp_path / "older")
    with (tree.folder / "notebooks/01_mnist_fc.ipynb").open("a") as file:
        file.write("\n")
    newer = built(tree.folder, tmp_path / "newer", version="0.99.0")
    environment = tree.environment | {"PATH": without_docker(tree.environment["PATH"]), "PYTHON": sys.executable}
    environment |= {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(wheels), "PIP_CONFIG_FILE": os.devnull}
    environment |= {"UV_OFFLINE": "1", "UV_CACHE_DIR": str(tmp_path / "uv"), "UV_TOOL_DIR": str(tmp_path / "tools")}
    return Uvx(tmp_path, older, newer, environment)


@pytest.mark.long
def test_an_installed_package_is_upgraded_and_rolled_back(uvx: Uvx) -> None:
    """Without a clone: `build` makes the folder, a newer wheel's `upgrade` switches it, `rollback` goes back."""
    user = Clone(uvx.folder / "rocmlab", {}, uvx.environment)
    notebook = user.folder / "notebooks/01_mnist_fc.ipynb"
    made = uvx(uvx.older, "build", PORT=str(free_port()))
    try:
        uvx(uvx.older, "up")
        token, answered = user.env["JUPYTER_TOKEN"], user.answers()
        (user.folder / "notebooks/mine.ipynb").write_text("{}")
        notebook.write_text("mine\n")
        upgraded = uvx(uvx.newer, "upgrade")
        status, new = json.loads(json_status(user))["version"], notebook.read_text()
        back = uvx(uvx.newer, "rollback")

        assert f"made the project folder {user.folder}" in made
        assert answered
        assert "commit v0.99.0" in upgraded
        assert "the new version works" in upgraded
        assert (status["version"]["version"], status["previous"]["version"]) == ("0.99.0", "0.1.0")
        assert new.endswith("}\n\n")
        assert "going back to 0.1.0 commit v0.1.0" in back
        assert user.answers()
        assert user.env["JUPYTER_TOKEN"] == token
        assert [copy.read_text() for copy in notebook.parent.glob("01_mnist_fc-yours-*.ipynb")] == ["mine\n"]
        assert (notebook.parent / "mine.ipynb").read_text() == "{}"
    finally:
        user.make("down", FORCE="1", succeeds=False)


class TestSource:
    """What git is asked to do with a user's clone."""

    @pytest.fixture
    def pair(self, tmp_path: Path) -> tuple[Path, Path]:
        """A repository and a clone of it, one commit behind."""
        origin, user = tmp_path / "a", tmp_path / "b"
        origin.mkdir()
        git(origin, "init", "--quiet", "--initial-branch", "main")
        (origin / "notebooks").mkdir()
        (origin / "program.py").write_text("1\n")
        (origin / "notebooks/n.ipynb").write_text("old\n")
        git(origin, "add", "--all")
        git(origin, "commit", "--quiet", "--message", "first")
        subprocess.run(["git", "clone", "--quiet", str(origin), str(user)], check=True)
        (origin / "program.py").write_text("2\n")
        (origin / "notebooks/n.ipynb").write_text("new\n")
        (origin / "added").write_text("theirs\n")
        git(origin, "add", "--all")
        git(origin, "commit", "--quiet", "--message", "second")
        return origin, user

    def test_a_changed_program_is_named_and_refused(self, pair: tuple[Path, Path]) -> None:
        """It would be built into the new version, or lost."""
        (pair[1] / "program.py").write_text("mine\n")
        (pair[1] / "notebooks/n.ipynb").write_text("mine\n")

        with pytest.raises(Exception, match="1 tracked file has local changes") as caught:
            source.check_clean(pair[1])

        assert "program.py" in str(caught.value)
        assert "n.ipynb" not in str(caught.value)

    def test_a_revision_with_local_changes_is_dirty(self, pair: tuple[Path, Path]) -> None:
        """The label of an image names a commit only where its files are that commit's."""
        clean = source.revision(pair[1])
        (pair[1] / "program.py").write_text("mine\n")

        assert clean == source.head(pair[1])
        assert source.revision(pair[1]) == f"{clean}-dirty"

    def test_a_changed_notebook_is_kept_as_a_copy(self, pair: tuple[Path, Path]) -> None:
        """Every byte exists; and it is put back if the upgrade does not succeed."""
        user, first = pair[1], source.head(pair[1])
        (user / "notebooks/n.ipynb").write_text("mine\n")
        target, why = source.fetched(user)

        (saved,) = source.move(user, target)
        moved = (user / "notebooks/n.ipynb").read_text()
        copied = saved.copy.read_text()
        source.move(user, first)
        source.put_back([saved])

        assert why == ""
        assert (moved, copied) == ("new\n", "mine\n")
        assert (user / "notebooks/n.ipynb").read_text() == "mine\n"
        assert source.head(user) == first

    def test_a_file_that_git_does_not_track_is_never_overwritten(self, pair: tuple[Path, Path]) -> None:
        """Not even one that is ignored, which git itself would replace."""
        user = pair[1]
        (user / ".git/info/exclude").write_text("/added\n")
        (user / "added").write_text("mine\n")

        with pytest.raises(Exception, match="in the way") as caught:
            source.move(user, source.fetched(user)[0])

        assert "added" in str(caught.value)
        assert (user / "added").read_text() == "mine\n"
        assert (user / "program.py").read_text() == "1\n"

    @pytest.mark.parametrize("meanwhile", ["", '{"cells": ["mine"]}'], ids=["", "saved meanwhile"])
    def test_a_move_that_stops_in_the_middle_is_undone(self, pair: tuple[Path, Path], meanwhile: str) -> None:
        """As on a full disk: git has written some files of the other version by then, and its commit is not there."""
        user, first = pair[1], source.head(pair[1])
        save = f"printf '{meanwhile}' >notebooks/n.ipynb" if meanwhile else ":"
        stop = f"read line; if [ $line = 2 ]; then {save}; exit 1; fi; echo $line"
        (user / ".git/info/attributes").write_text("program.py filter=stop\n")
        for name, value in (("smudge", stop), ("clean", "cat"), ("required", "true")):
            git(user, "config", f"filter.stop.{name}", value)
        target, _ = source.fetched(user)

        with pytest.raises(RocmlabError, match="could not check out"):
            source.move(user, target)

        assert source.head(user) == first
        assert source.changed(user) == (["notebooks/n.ipynb"] if meanwhile else [])
        assert (user / "notebooks/n.ipynb").read_text() == (meanwhile or "old\n")
        assert not (user / "added").exists()

    def test_commits_of_ones_own_are_not_dropped(self, pair: tuple[Path, Path]) -> None:
        """A branch that has gone on by itself is rejected; a way back leaves the branch where it is."""
        user, first = pair[1], source.head(pair[1])
        (user / "own").write_text("mine\n")
        git(user, "add", "--all")
        git(user, "commit", "--quiet", "--message", "own")
        own = source.head(user)

        with pytest.raises(Exception, match="have diverged"):
            source.fetched(user)
        source.move(user, first)

        assert source.head(user) == first
        assert git(user, "rev-parse", "main") == own

    def test_without_a_network_what_is_checked_out_is_used(self, pair: tuple[Path, Path]) -> None:
        """The reason is told."""
        shutil.rmtree(pair[0])

        target, why = source.fetched(pair[1])

        assert target == source.head(pair[1])
        assert "origin could not be reached" in why
