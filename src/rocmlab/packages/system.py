"""Packages of the system that `apt.txt` next to the notebooks names, as for repo2docker: one a line, with comments."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

from rocmlab.base.errors import RocmlabError
from rocmlab.packages import declared

FILE = "apt.txt"
MAX_BYTES = 100_000  # all names are one variable of a build; Linux has 128 KiB for one
# They become arguments of a build. A name that ends with `-` would remove a package. Source: Debian policy 5.6.
PACKAGE = re.compile(r"[a-z0-9][a-z0-9.+-]*[a-z0-9+](:[a-z0-9]+)?(=[0-9][A-Za-z0-9.+:~-]*)?")
QUERY_SECONDS = 20
INSTALLED = "ii "


def read(notebooks: Path) -> tuple[str, ...]:
    """Return what is named, in the file's order; empty without a file.

    Raises:
        RocmlabError: it cannot be read, or a line is not the name of a package.
    """
    path = declared.folder_of(notebooks) / FILE
    try:
        lines = declared.content(path, MAX_BYTES).splitlines()
    except FileNotFoundError:
        return ()
    except (OSError, ValueError) as err:
        raise RocmlabError(f"{path} cannot be read", str(err), "correct or remove this file") from err
    found: dict[str, None] = {}
    for number, line in enumerate(lines, 1):
        for name in line.partition("#")[0].split():
            if not PACKAGE.fullmatch(name):
                raise RocmlabError(
                    f"{path}, line {number}: {name!r} is not a package of Debian or Ubuntu",
                    "names have lower case letters, digits and + . -, and perhaps =VERSION; options are not possible",
                    "correct this line",
                )
            found[name] = None
    return tuple(found)


def missing(names: Sequence[str], dpkg: str = "dpkg-query") -> tuple[str, ...]:
    """Return which packages this host does not have; all of them where it has no dpkg.

    Raises:
        RocmlabError: dpkg does not answer.
    """
    if not names or shutil.which(dpkg) is None:
        return tuple(names)
    plain = [name.partition("=")[0] for name in names]
    command = [dpkg, "--show", "--showformat", "${db:Status-Abbrev}${Package}\n${db:Status-Abbrev}${binary:Package}\n"]
    try:
        done = subprocess.run([*command, *plain], capture_output=True, text=True, timeout=QUERY_SECONDS, check=False)
    except (OSError, subprocess.SubprocessError) as err:
        what = f"{FILE}: {dpkg} does not show which packages are installed"
        raise RocmlabError(what, str(err), f"run it to see why: {dpkg} --show") from err
    there = {line.removeprefix(INSTALLED) for line in done.stdout.splitlines() if line.startswith(INSTALLED)}
    return tuple(name for name, own in zip(names, plain, strict=True) if own not in there)


def finding(names: Sequence[str], dpkg: str = "dpkg-query") -> str:
    """Return what is known about packages that `missing` has returned."""
    if shutil.which(dpkg):
        return f"apt.txt: {', '.join(names)} not installed on this host"
    return f"apt.txt names {', '.join(names)}; this host has no dpkg, so whether they are installed is not known"


def fix(names: Sequence[str]) -> str:
    """Return the command that installs packages on this host."""
    if shutil.which("apt-get"):
        return f"sudo apt-get install {' '.join(names)}"
    return "install what these are called on this system"
