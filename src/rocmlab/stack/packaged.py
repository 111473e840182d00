"""The project folder of an installed package: made by `up`, given newer versions by `upgrade`.

A wheel has in `rocmlab/project` what a clone has next to `src`. The folder is a git repository of its own, where each
version that was installed is one commit, which the remote `package` brings. So upgrade, rollback and the copies of
changed notebooks are those of a clone. Commands run the code that is in the folder, whichever version is installed.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import rocmlab
from rocmlab.base.errors import RocmlabError
from rocmlab.stack import project_folder, source
from rocmlab.stack.lab import Say

PACKAGE = Path(rocmlab.__file__).parent
TREE = PACKAGE / "project"
NAME = "rocmlab"  # of the folder that is made
MADE = ".rocmlab/made-by-a-package"
MAKING = ("up", "build")  # the commands that make it
BRANCH = "refs/rocmlab/main"  # what the remote `package` of the folder has: the folder itself is that remote
VERSION = re.compile(r'^__version__ = "(.+)"$', re.MULTILINE)
START = "import sys; del sys.path[0]; import rocmlab.__main__"  # `-m` would look into the current folder first


def add_option(parser: argparse.ArgumentParser) -> None:
    """Add the option of an installed package; a clone has none, and is the folder itself."""
    if TREE.is_dir():
        parser.add_argument(
            "--folder",
            metavar="PATH",
            help=f"the project folder; it is made if missing (default: that of the current folder, else ./{NAME})",
        )


def enter(command: str, arguments: Sequence[str], say: Say) -> None:
    """Run a command with the code of its project folder, which `up` and `build` make; return where there is none."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    if command in MAKING:
        parser.add_argument("--folder", type=Path)
    given, rest = parser.parse_known_args(arguments)
    wanted: Path | None = getattr(given, "folder", None)
    try:
        folder = find(wanted)
    except project_folder.Untrusted:
        if command in MAKING:
            raise
        return  # a command that needs no project does not read it, and one that does reports it
    if folder is None and command not in MAKING:
        return
    if folder is None:
        folder = (wanted or Path(NAME)).absolute()
        make(folder)
        say(f"made the project folder {folder}: notebooks, settings and the share are in it")
        say("messages name `make TARGET NAME=value`, for this folder; without make: NAME=value rocmlab TARGET")
    if (folder / MADE).exists():
        _bring(folder, command, say)
    others = [each for each in os.environ.get("PYTHONPATH", "").split(os.pathsep) if each]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(folder / "src"), *others])}
    sys.stdout.flush()
    if wanted is not None:
        os.chdir(folder)  # which its own code then finds, and not the project that this command was typed in
    os.execve(sys.executable, [sys.executable, "-c", START, command, *rest], environment)


def find(wanted: Path | None) -> Path | None:
    """Return the project folder that is named, else the nearest one upwards, else ./rocmlab; None: there is none."""
    if wanted is None and (nearest := project_folder.nearest()) is not None:
        return nearest
    folder = (wanted or Path(NAME)).absolute()
    if not project_folder.is_project(folder):
        return None
    project_folder.check(folder)
    return folder


def make(folder: Path) -> None:
    """Make a project folder of the installed version, whole or not at all; raise RocmlabError if it holds files."""
    if os.path.lexists(folder) and (folder.is_symlink() or not folder.is_dir() or any(folder.iterdir())):
        raise RocmlabError(
            f"{folder} is there, and is not a rocmlab project",
            "nothing is written over files of yours",
            "choose another one: rocmlab up --folder NAME",
        )
    folder.parent.mkdir(parents=True, exist_ok=True)
    draft = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
    try:
        _write(draft / "new")
        (draft / "new" / MADE).parent.mkdir(mode=0o700)
        (draft / "new" / MADE).touch()
        os.rename(draft / "new", folder)
    finally:
        shutil.rmtree(draft)


def _write(folder: Path) -> None:
    """Write the project of the installed version, with its package in `src`."""
    unwanted = shutil.ignore_patterns("__pycache__", TREE.name)
    shutil.copytree(TREE, folder, ignore=unwanted, copy_function=_copy)
    shutil.copytree(PACKAGE, folder / "src/rocmlab", ignore=unwanted, copy_function=_copy)


def _copy(path: str, copy: str) -> None:
    """Copy a file; a program can be started, whatever modes an installer has given it."""
    shutil.copyfile(path, copy)
    with open(copy, "rb") as file:
        if file.read(2) == b"#!":
            os.chmod(copy, os.stat(copy).st_mode | 0o111)


def _bring(folder: Path, command: str, say: Say) -> None:
    """Have the folder know the installed version before `upgrade`; name it before `up`, if it is newer."""
    present, own = _version((folder / "src/rocmlab/__init__.py").read_text(encoding="utf-8")), rocmlab.__version__
    is_kept = source.git(folder, "rev-parse", "--verify", "--quiet", BRANCH)[0] == 0
    if not is_kept and command in (*MAKING, "upgrade") and present == own:
        if not shutil.which("git"):
            say("git is not installed: `rocmlab upgrade` and `rocmlab rollback` need it in this folder")
            return
        _commit(folder)
        for arguments in (
            ("remote", "add", "package", "."),
            ("config", "remote.package.fetch", "+refs/rocmlab/*:refs/remotes/package/*"),
            ("fetch", "--quiet", "package"),
            ("config", "branch.main.remote", "package"),
            ("config", "branch.main.merge", BRANCH),
            ("update-ref", "refs/heads/main", BRANCH),
            ("reset", "--quiet"),
        ):
            _git(folder, *arguments)
    elif command == "up" and _order(own) > _order(present):
        say(f"rocmlab {own} is installed, and this folder has {present}: rocmlab upgrade")
    elif command == "upgrade":
        if not is_kept:
            raise RocmlabError(
                "the version in this folder is not known to git",
                "the folder was made where git was not installed",
                f"install git, run `rocmlab up` of version {present}, and retry",
            )
        newest = _version(_git(folder, "show", f"{BRANCH}:src/rocmlab/__init__.py"))
        if _order(own) > _order(newest):
            _commit(folder, BRANCH)
        else:
            say(f"no newer version is installed ({own}); run `rocmlab upgrade` of a newer one, with uvx, pipx or pip")


def _commit(folder: Path, *parents: str) -> None:
    """Make a commit of the installed version, and have BRANCH and a tag lead to it; the checkout stays as it is."""
    who = ("-c", f"user.name={NAME}", "-c", f"user.email={NAME}@localhost", "-c", "core.autocrlf=false")
    message = f"rocmlab {rocmlab.__version__}"
    _git(folder, "-c", "init.defaultBranch=main", "init", "--quiet")
    with tempfile.TemporaryDirectory(dir=folder / ".rocmlab") as made:
        tree, place = Path(made, "tree"), ("--git-dir", str(folder.absolute() / ".git"))
        _write(tree)
        index = {"GIT_INDEX_FILE": str(Path(made, "index"))}
        _git(tree, *who, *place, "--work-tree", str(tree.absolute()), "add", "--all", "--force", ".", **index)
        found = _git(tree, *place, "write-tree", **index)
    commit = _git(folder, *who, "commit-tree", found, *(f"-p{each}" for each in parents), "-m", message)
    _git(folder, "update-ref", BRANCH, commit)
    _git(folder, "update-ref", f"refs/tags/v{rocmlab.__version__}", commit)  # `git tag` would sign where that is set


def _git(folder: Path, *arguments: str, **variables: str) -> str:
    code, output = source.git(folder, *arguments, variables=variables)
    if code:
        raise RocmlabError(f"git failed in {folder}", output.strip()[-400:], "git status shows the repository's state")
    return output.strip()


def _version(text: str) -> str:
    found = VERSION.search(text)
    return found[1] if found else ""


def _order(version: str) -> tuple[list[int], str]:
    """Return what versions are compared by: 0.2.0rc1 comes before 0.2.0."""
    numbers, rest = re.match(r"([\d.]*)(.*)", version).groups()  # type: ignore[union-attr]  # it matches any text
    return [int(each) for each in numbers.split(".") if each], rest or "~"
