"""Native environments next to each other: `.venv` is a folder, or a link to one of those in `.rocmlab/environments`."""

from __future__ import annotations

import os
import shutil
from datetime import datetime, timezone
from pathlib import Path

from rocmlab.base import installation
from rocmlab.base.virtual_environments import copy as copy
from rocmlab.stack import envfile

FOLDER = ".rocmlab/environments"
LINK = ".venv"
REAL = "-venv"  # the end of the name of one that was a real `.venv`
UV = ".rocmlab/uv"  # what installs the packages of all of them
ASIDE = "replaced"  # in FOLDER: `.venv`, while another one is made in its place


def new_folder(project: Path) -> Path:
    """Return the path of an environment that is not there yet."""
    stamp = datetime.now(timezone.utc).strftime("%Y-%m-%dT%H%M%S.%fZ")
    return project / FOLDER / stamp


def switch(project: Path, target: Path) -> Path:
    """Have `.venv` lead to another environment, in one step; return the folder of the one before.

    A real `.venv` is moved to the others first. Its scripts name `.venv`, so it works again when `.venv` leads to it.
    """
    link = project / LINK
    before = link.resolve()
    if link.exists() and not link.is_symlink():
        before = new_folder(project)
        before = before.with_name(before.name + REAL)
        before.parent.mkdir(parents=True, exist_ok=True)
        os.rename(link, before)
    temporary = project / FOLDER / f".link-{os.getpid()}"
    temporary.parent.mkdir(parents=True, exist_ok=True)
    temporary.unlink(missing_ok=True)
    temporary.symlink_to(os.path.relpath(target.resolve(), project))
    # A relative link is read from where it is, so it is renamed only after it was made for the project's folder.
    os.replace(temporary, link)
    return before


def moved(project: Path) -> Path | None:
    """Return the newest folder that was a real `.venv` once, or None."""
    return max((path for path in (project / FOLDER).glob(f"*{REAL}")), default=None)


def remove(project: Path, folder: Path) -> None:
    """Remove an environment of a project; of a link also what it leads to, unless that is another project's."""
    if folder.is_symlink():
        if _is_of(project, folder.resolve()):
            shutil.rmtree(folder.resolve(), ignore_errors=True)
        folder.unlink()
    elif folder.exists():
        shutil.rmtree(folder)


def _is_of(project: Path, folder: Path) -> bool:
    """Return whether an environment, which may be anywhere, was made for this project."""
    record = envfile.read_json(folder / installation.WHOLE) or envfile.read_json(folder / installation.PART)
    return (project / FOLDER).resolve() in folder.parents or record.get("project") == str(project)


def put_aside(project: Path, folder: Path, *, is_whole: bool) -> None:
    """Make room where an environment is: a whole one is kept until the new one is finished, any other is removed."""
    aside = project / FOLDER / ASIDE
    if not is_whole:
        remove(project, folder)
        return
    remove(project, aside)
    aside.parent.mkdir(parents=True, exist_ok=True)
    if folder.is_symlink():
        aside.symlink_to(folder.resolve())
        folder.unlink()
    else:
        try:
            os.rename(folder, aside)
        except OSError:  # another file system
            remove(project, folder)


def bring_back(project: Path, folder: Path, *, only_if_there: bool = False) -> None:
    """Put the environment that was kept aside in its place again, instead of the one that was not finished."""
    aside = project / FOLDER / ASIDE
    is_there = aside.exists()
    if is_there or not only_if_there:
        if folder.is_symlink():
            folder.unlink()
        else:
            shutil.rmtree(folder, ignore_errors=True)
    if is_there and aside.is_symlink():
        folder.symlink_to(os.path.relpath(aside.resolve(), folder.parent))
        aside.unlink()
    elif is_there:
        os.rename(aside, folder)


def remove_all(project: Path) -> bool:
    """Remove `.venv` and all environments next to it; return whether there was one."""
    link = project / LINK
    was_there = os.path.lexists(link) or (project / FOLDER).exists()
    remove(project, link)
    for name in (FOLDER, UV):
        shutil.rmtree(project / name, ignore_errors=True)
    return was_there


def remove_unused(project: Path, kept: set[str]) -> None:
    """Remove the environments next to `.venv` that are neither current nor among those to keep."""
    kept = kept | {str((project / LINK).resolve())}
    for folder in (project / FOLDER).glob("*"):
        if str(folder.resolve()) not in kept and folder.is_dir() and not folder.is_symlink():
            shutil.rmtree(folder, ignore_errors=True)
