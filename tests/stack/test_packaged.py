"""The installed package: what its wheel brings, the folder that `up` makes of it, and what git then knows of it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from clones import clone, without_docker
from packages_built import built, installed, tracked

from rocmlab.base.errors import RocmlabError
from rocmlab.stack import packaged

pytestmark = pytest.mark.slow

OWN = (".git", ".rocmlab", ".env")  # in a folder, and not of the project


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment with the wheel of the tree under test, built from its source distribution."""
    folder = tmp_path_factory.mktemp("package")
    command = [sys.executable, "-m", "hatchling", "build", "--target", "sdist", "--directory", str(folder)]
    subprocess.run(command, cwd=clone(folder / "source").folder, check=True, capture_output=True)
    subprocess.run(["tar", "-xzf", str(next(folder.glob("*.tar.gz"))), "-C", str(folder)], check=True)
    return installed(folder / "environment", built(folder / "rocmlab-0.1.0", folder))


@pytest.fixture(scope="module")
def newer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment with the wheel of a newer version's repository, in which one notebook is different."""
    folder = tmp_path_factory.mktemp("newer")
    source = clone(folder / "source").folder
    with (source / "notebooks/01_mnist_fc.ipynb").open("a") as file:
        file.write("\n")
    (source / "docker/wheels/large.whl").touch()  # which git ignores
    git(source, "init", "--quiet")
    git(source, "add", "--all")
    return installed(folder / "environment", built(source, folder, version="0.99.0"))


@pytest.fixture
def here(tmp_path: Path) -> Path:
    """A folder of a user who has no clone."""
    folder = tmp_path / "here"
    folder.mkdir()
    return folder


def rocmlab(package: Path, here: Path, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run the installed command; with BACKEND=nope, `up` ends before it builds anything."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("ROCMLAB_", "PYTHONPATH"))}
    environment |= {"PATH": without_docker(environment["PATH"]), "BACKEND": "nope", **variables}
    command = [str(package / "bin/rocmlab"), *arguments]
    return subprocess.run(command, cwd=here, env=environment, capture_output=True, text=True, check=False)


def git(folder: Path, *arguments: str) -> str:
    """Return what git answers."""
    done = subprocess.run(["git", "-C", str(folder), *arguments], capture_output=True, text=True, check=True)
    return done.stdout.strip()


@pytest.mark.long
def test_the_wheel_is_the_same_bytes_whoever_builds_it(package: Path, tmp_path: Path) -> None:
    """At another time, with other times of the files and another umask."""
    source = package.parent / "rocmlab-0.1.0"
    for path in source.rglob("*.py"):
        os.utime(path, (1_700_000_000, 1_700_000_000))
    before = os.umask(0o077)
    try:
        again = built(source, tmp_path)
    finally:
        os.umask(before)

    assert again.read_bytes() == next(package.parent.glob("*.whl")).read_bytes()


@pytest.mark.long
def test_the_folder_has_what_a_clone_has(package: Path, here: Path) -> None:
    """Each file of the project and of the package, byte for byte, programs executable; git knows them as one commit.

    So it is where a user's git signs every tag, which needs a message and a key.
    """
    signs = {"GIT_CONFIG_COUNT": "1", "GIT_CONFIG_KEY_0": "tag.gpgSign", "GIT_CONFIG_VALUE_0": "true"}
    done = rocmlab(package, here, "up", **signs)
    folder = here / "rocmlab"
    expected = tracked()

    assert "BACKEND=nope is unknown" in done.stderr
    assert f"made the project folder {folder}" in done.stderr
    made = {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}
    assert {each for each in made if each.split("/")[0] not in OWN and "__pycache__" not in each} == set(expected)
    assert [name for name, (content, _) in expected.items() if (folder / name).read_bytes() != content] == []
    assert [name for name, (_, runs) in expected.items() if os.access(folder / name, os.X_OK) != runs] == []
    assert git(folder, "status", "--porcelain") == ""
    assert git(folder, "describe", "--tags") == "v0.1.0"


def test_files_of_a_user_are_never_written_over(package: Path, here: Path) -> None:
    """A folder of that name which is not a project is named, and stays; another one can be chosen, and is then used."""
    (here / "rocmlab").mkdir()
    (here / "rocmlab/compose.yaml").write_text("mine\n")

    refused = rocmlab(package, here, "up")
    rocmlab(package, here, "up", "--folder", "lab")
    again = rocmlab(package, here / "lab/docs", "up")

    assert refused.returncode == 2
    assert "is not a rocmlab project" in refused.stderr
    assert [path.name for path in (here / "rocmlab").iterdir()] == ["compose.yaml"]
    assert (here / "lab/Makefile").is_file()
    assert "made the project folder" not in again.stderr
    assert sorted(path.name for path in here.iterdir()) == ["lab", "rocmlab"]


@pytest.mark.long
def test_the_folder_that_is_named_is_used_also_inside_another_project(package: Path, here: Path) -> None:
    """Else that other one's settings would be written, and its lab be started."""
    rocmlab(package, here, "up")
    (here / "rocmlab/.env").write_text("PORT=of-another-project\n")

    done = rocmlab(package, here / "rocmlab", "up", "--folder", str(here / "named"))

    assert "of-another-project" not in done.stderr
    assert "BACKEND=nope is unknown" in done.stderr
    assert (here / "named/Makefile").is_file()


def test_a_link_is_never_replaced(tmp_path: Path) -> None:
    """Neither one that leads nowhere, such as to a disk that is not mounted, nor one to an empty folder."""
    for target in (tmp_path / "gone", tmp_path):
        link = tmp_path / f"link-{target.name}"
        link.symlink_to(target)
        with pytest.raises(RocmlabError, match="is there, and is not"):
            packaged.make(link)


@pytest.mark.parametrize("arguments", [("up", "--help"), ("status",), ("devices",), ("--version",)])
def test_only_up_and_build_make_a_folder(package: Path, here: Path, arguments: tuple[str, ...]) -> None:
    """Help and every other command write nothing; where a project is needed, the error names the way to one."""
    done = rocmlab(package, here, *arguments)

    assert list(here.iterdir()) == []
    assert ("rocmlab up" in done.stderr) == (arguments == ("status",))
    assert ("--folder" in done.stdout) == (arguments == ("up", "--help"))


@pytest.mark.long
def test_a_folder_runs_its_own_version(package: Path, newer: Path, here: Path) -> None:
    """A newer package that is installed changes nothing before `upgrade`, which gives git its files."""
    rocmlab(package, here, "up")
    folder = here / "rocmlab"
    (folder / "src/rocmlab/cli/lab.py").write_text("raise SystemExit('the code of the folder')\n")
    notebook = folder / "notebooks/01_mnist_fc.ipynb"
    notebook.write_text("mine\n")

    up = rocmlab(newer, here, "up")
    ran = rocmlab(newer, folder / "notebooks", "status")
    before = git(folder, "tag")
    rocmlab(newer, here, "upgrade")
    older = rocmlab(package, here, "upgrade")

    assert "rocmlab 0.99.0 is installed, and this folder has 0.1.0: rocmlab upgrade" in up.stderr
    assert "the code of the folder" in ran.stderr
    assert before == "v0.1.0"
    assert git(folder, "tag").split() == ["v0.1.0", "v0.99.0"]
    assert git(folder, "diff", "--name-only", "v0.1.0", "v0.99.0").split() == [
        *("notebooks/01_mnist_fc.ipynb", "src/rocmlab/__init__.py")
    ]
    assert "no newer version is installed (0.1.0)" in older.stderr
    assert git(folder, "rev-parse", "refs/rocmlab/main") == git(folder, "rev-parse", "v0.99.0")
    assert notebook.read_text() == "mine\n"


@pytest.mark.long
def test_git_may_come_later(package: Path, newer: Path, here: Path, tmp_path: Path) -> None:
    """Without git a folder is made; its version is known to git from the next `up` on."""
    bare = tmp_path / "bin"
    bare.mkdir()

    without = rocmlab(package, here, "up", PATH=str(bare))
    refused = rocmlab(newer, here, "upgrade")
    notebook = here / "rocmlab/notebooks/01_mnist_fc.ipynb"
    notebook.write_text("mine\n")
    rocmlab(package, here, "up")

    assert "git is not installed" in without.stderr
    assert "run `rocmlab up` of version 0.1.0" in refused.stderr
    assert git(here / "rocmlab", "status", "--porcelain") == "M notebooks/01_mnist_fc.ipynb"
    assert notebook.read_text() == "mine\n"
