"""Whose project folder is trusted: this user's and root's, as with git's safe.directory. With a real second user."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from clones import NEEDS_NATIVE_PYTHON
from second_user import UID, open_to_others

from rocmlab.cli.main import main
from rocmlab.stack import project as projects
from rocmlab.stack import project_folder, settings
from rocmlab.stack.project_folder import Untrusted

needs_root = pytest.mark.skipif(os.getuid() != 0, reason="a second user id needs root: run .ci/run")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project folder, and the present one."""
    found = tmp_path / "project"
    for name in ("compose.yaml", "docker/Dockerfile", ".env", ".rocmlab/jupyter.json", ".venv/bin/python", "src/a"):
        (found / name).parent.mkdir(parents=True, exist_ok=True)
        (found / name).touch()
    monkeypatch.chdir(found)
    monkeypatch.delenv("SUDO_UID", raising=False)
    return found


def test_a_folder_of_ours_is_found_from_below(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As usual."""
    (folder / "notebooks/deep").mkdir(parents=True)
    monkeypatch.chdir(folder / "notebooks/deep")

    assert projects.find() == folder


@needs_root
@pytest.mark.parametrize(
    "name", [".", "compose.yaml", "docker", "docker/Dockerfile", ".env", ".rocmlab", ".venv", ".venv/bin"]
)
def test_what_belongs_to_another_user_is_rejected(folder: Path, name: str) -> None:
    """The error names folder, owner and the setting."""
    os.chown(folder / name, UID, UID)

    with pytest.raises(Untrusted) as caught:
        projects.find()

    assert str(folder / name) in caught.value.problem.what
    assert f"uid {UID}" in caught.value.problem.what
    assert f"export ROCMLAB_SAFE_DIRECTORY={folder}" in caught.value.problem.fix
    assert "as root in a container" in caught.value.problem.why


@pytest.mark.parametrize("name", ["src/rocmlab/cli/up.py", "docker/start.sh", "scripts", "Makefile"])
def test_every_file_that_runs_is_looked_at(folder: Path, name: str) -> None:
    """Not only the folders above it: after `chmod o-w` of what was named first, the rest would still be open."""
    if "." in name or name == "Makefile":
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).touch()
    else:
        (folder / name).mkdir()
    (folder / name).chmod(0o777)

    with pytest.raises(Untrusted, match="writable for every user") as caught:
        projects.find()

    assert f"chmod -R o-w {folder}" in caught.value.problem.fix


@needs_root
@pytest.mark.parametrize("name", [".env", ".venv", ".rocmlab"])
def test_the_target_of_a_link_counts(folder: Path, tmp_path: Path, name: str) -> None:
    """And a link that another user has made, even to nothing."""
    target = tmp_path / "theirs"
    target.mkdir()
    os.chown(target, UID, UID)
    shutil.rmtree(folder / name) if (folder / name).is_dir() else (folder / name).unlink()
    (folder / name).symlink_to(target)
    with pytest.raises(Untrusted, match=f"uid {UID}"):
        projects.find()

    (folder / name).unlink()
    (folder / name).symlink_to(tmp_path / "nothing")
    os.chown(folder / name, UID, UID, follow_symlinks=False)
    with pytest.raises(Untrusted, match=f"uid {UID}"):
        projects.find()


@pytest.mark.parametrize("name", [".", "compose.yaml", ".env", "src"])
def test_what_everybody_can_write_is_rejected(folder: Path, name: str) -> None:
    """The fix is a command."""
    (folder / name).chmod(0o777)

    with pytest.raises(Untrusted, match="writable for every user") as caught:
        projects.find()

    assert caught.value.problem.fix.startswith(f"chmod -R o-w {folder} ")


def test_a_folder_that_is_named_is_trusted(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Alone, in a list, through a link, or all of them by a star; not by another name, and not from `.env`."""
    folder.chmod(0o777)
    (tmp_path / "link").symlink_to(folder)
    for value in (str(folder), f"/elsewhere:{folder}", str(tmp_path / "link"), "*"):
        monkeypatch.setenv(project_folder.VARIABLE, value)
        assert projects.find() == folder

    for value in ("", "/elsewhere", f"{folder}/docker"):
        monkeypatch.setenv(project_folder.VARIABLE, value)
        with pytest.raises(Untrusted):
            projects.find()
    monkeypatch.delenv(project_folder.VARIABLE)
    (folder / ".env").write_text(f"{project_folder.VARIABLE}=*\n")
    with pytest.raises(Untrusted):
        projects.find()
    assert project_folder.VARIABLE not in settings.NAMES


@needs_root
def test_the_user_who_called_sudo_counts(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`sudo make doctor` in one's own clone."""
    for path in (folder, *folder.rglob("*")):
        os.chown(path, UID, UID)
    with pytest.raises(Untrusted):
        projects.find()

    monkeypatch.setenv("SUDO_UID", str(UID))

    assert projects.find() == folder


@needs_root
def test_another_user_may_use_a_clone_of_roots_and_not_a_third_ones(folder: Path) -> None:
    """A clone that an administrator has put there for all; what a third user has changed in it is rejected."""
    program = """
import os, sys
from pathlib import Path
from rocmlab.stack import project_folder, sockets
folder, uid = Path(sys.argv[1]), int(sys.argv[2])
import pwd
os.setgroups([]); os.setresgid(uid, uid, uid); os.setresuid(uid, uid, uid)
try:
    project_folder.check(folder)
except project_folder.Untrusted as err:
    sys.exit(str(err))
"""
    source = str(Path(project_folder.__file__).parents[2])
    open_to_others(folder)

    def check() -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-c", program, str(folder), str(UID)]
        environment = {**os.environ, "PYTHONPATH": source}
        return subprocess.run(command, env=environment, capture_output=True, text=True)

    assert check().returncode == 0

    os.chown(folder / ".env", UID + 1, UID + 1)
    done = check()
    assert f"uid {UID + 1}" in done.stderr
    assert "as root in a container" not in done.stderr


@needs_root
@pytest.mark.parametrize("words", [["status"], ["up"], ["down"], ["clean"], ["doctor", "--quick"], ["run"], ["logs"]])
def test_every_command_rejects_it_before_anything_else(
    folder: Path, words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """Exit code 2, and nothing was written or removed."""
    before = sorted(folder.rglob("*"))
    os.chown(folder / ".env", UID, UID)

    assert main(words) == 2

    assert f"{folder / '.env'} belongs to uid {UID}" in capsys.readouterr().err
    assert sorted(folder.rglob("*")) == before


def test_a_module_in_the_current_folder_is_not_run(tmp_path: Path, repository: Path) -> None:
    """`scripts/rocmlab` in a folder of anybody's: Python would import `rocmlab` or `json` from there first."""
    for name in ("rocmlab/__init__.py", "rocmlab/__main__.py", "json.py", "argparse.py"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("print('not ours')\n")

    done = subprocess.run([repository / "scripts/rocmlab", "--version"], cwd=tmp_path, capture_output=True, text=True)

    assert done.stdout.startswith("rocmlab ")
    assert "not ours" not in done.stdout


@NEEDS_NATIVE_PYTHON
def test_an_environment_of_the_users_own_is_neither_removed_nor_replaced(folder: Path) -> None:
    """A `.venv` that rocmlab did not make."""
    from rocmlab.stack import making
    from rocmlab.stack.environment import Environment, was_made_by_us

    assert not was_made_by_us(folder / ".venv")
    with pytest.raises(projects.RocmlabError, match="was not made by rocmlab"):
        making.make(Environment(folder, "cpu", sys.executable, ""), lambda _: None)

    assert (folder / ".venv/bin/python").exists()
