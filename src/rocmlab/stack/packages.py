"""The packages of an environment: which of them are half installed, and compiling them before they are imported."""

from __future__ import annotations

import csv
import os
import shutil
from collections.abc import Callable
from pathlib import Path

from rocmlab.base import installation
from rocmlab.packages.requested import normal
from rocmlab.stack import process

SITE = "lib/python3*/site-packages"
FALSE = ("0", "f", "false", "n", "no", "off")  # pip's own list
COMPILED = "rocmlab-compiled"  # in the environment: its packages are compiled
COMPILE_SECONDS = 3600
REMOVED = "share/jupyter/kernels/python3/"  # of ipykernel's, by `lab.kernels`


def unfinished(site: Path) -> list[Path]:
    """Return the `.dist-info` folders in `site-packages` of packages whose installation was interrupted.

    pip and uv write INSTALLER and RECORD after the package's files; RECORD has the size of each.
    """
    return [each for each in sorted(site.glob("*.dist-info")) if not _is_complete(each)]


def remove_unfinished(environment: Path, comes: Callable[[str], bool]) -> None:
    """Have packages whose installation was interrupted installed again: pip and uv keep what has a `.dist-info`.

    `comes` returns whether a normalized name will be installed; other packages, such as a user's, are left alone.
    """
    for site in environment.glob(SITE):
        for folder in unfinished(site):
            if comes(normal(folder.name.partition("-")[0])):
                shutil.rmtree(folder)


def _is_complete(information: Path) -> bool:
    if not (information / "INSTALLER").is_file():
        return False
    try:
        with open(information / "RECORD", encoding="utf-8", newline="") as file:
            rows = list(csv.reader(file))
    except (OSError, ValueError, csv.Error):
        return False
    return bool(rows) and all(_is_there(information.parent, row) for row in rows)


def _is_there(site: Path, row: list[str]) -> bool:
    """Return whether a file of a RECORD has the size given there; compiled files have none."""
    if len(row) != 3 or not row[2]:
        return len(row) == 3
    if REMOVED in row[0]:
        return True
    try:
        return os.stat(site / row[0]).st_size == int(row[2])
    except (OSError, ValueError):
        return False


def needs_compiling(environment: Path) -> bool:
    """Return whether the packages of a whole environment should be compiled: they are not, and this user may."""
    if not (environment / installation.WHOLE).exists() or (environment / COMPILED).exists():
        return False
    is_ours = all(os.access(each, os.W_OK) for each in (environment, *environment.glob(SITE)))
    return is_ours and not os.environ.get("PYTHONDONTWRITEBYTECODE") and not _is_pip_told_not_to()


def _is_pip_told_not_to() -> bool:
    """Return whether the caller's variables have pip compile nothing; as settings both names mean whether it does."""
    return any(os.environ.get(name, "").lower() in FALSE for name in ("PIP_COMPILE", "PIP_NO_COMPILE"))


def compile_all(environment: Path, interpreter: Path) -> None:
    """Compile every package that can be compiled; an interruption leaves no broken file."""
    sites = [str(each) for each in environment.glob(SITE)]
    process.capture([str(interpreter), "-P", "-m", "compileall", "-qq", *sites], timeout_seconds=COMPILE_SECONDS)
    (environment / COMPILED).touch()
