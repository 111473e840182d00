"""Have two environments share what both have from one wheel: each such file is on the disk once, under two names.

Usage: PYTHON link.py FROM TO, two folders of environments. Whatever replaces or removes such a file later, as pip does,
leaves the other environment's. What Python has compiled in FROM counts as such a file, and is not compiled again in TO:
Python sets the path that it names whenever it reads the file.
"""

from __future__ import annotations

import csv
import filecmp
import importlib.util
import os
import sys
from pathlib import Path

MIN_BYTES = 32_768  # nine of ten files are smaller, and have a sixth of the bytes; to link them takes a build 6 s


def recorded(packages: Path) -> set[tuple[str, str, str]]:
    """Return path, hash and size of each file that came out of a wheel unchanged. Source: the RECORDs."""
    found = set()
    for record in packages.glob("*.dist-info/RECORD"):
        with record.open(encoding="utf-8", newline="") as file:
            found |= {(row[0], row[1], row[2]) for row in csv.reader(file) if len(row) == 3 and row[1]}
    return {each for each in found if not each[0].startswith(("..", "/"))}  # a program names its own interpreter


def link(source: Path, target: Path) -> int:
    """Replace files of one folder of packages by links to the same of another one; return how many bytes both have."""
    linked = 0
    for name, _, size in sorted(recorded(source) & recorded(target)):
        here, there = source / name, target / name
        is_large = int(size or 0) >= MIN_BYTES
        is_compiled = name.endswith(".py") and _compiled(here).exists()
        if (is_large or is_compiled) and here.is_file() and there.is_file() and filecmp.cmp(here, there, shallow=False):
            if is_large:
                linked += _link(here, there)
            if is_compiled:  # Python takes it only for a source of the same time
                os.utime(there, ns=(here.stat().st_atime_ns, here.stat().st_mtime_ns))
                linked += _link(_compiled(here), _compiled(there))
    return linked


def _compiled(source: Path) -> Path:
    """Return where this Python keeps what it compiled of a file."""
    return Path(importlib.util.cache_from_source(str(source)))


def _link(here: Path, there: Path) -> int:
    """Give a file a second name, in place of what may have that name; return its size in bytes."""
    there.parent.mkdir(exist_ok=True)
    draft = there.with_name(f".{there.name}.link")
    draft.hardlink_to(here)
    draft.replace(there)
    return here.stat().st_size


def main(source: Path, target: Path) -> None:
    """Link what both environments have for the same version of Python; print how much that is."""
    os.umask(0o002)  # users may have Python add to the folders of what is compiled
    linked = 0
    for packages in source.glob("lib/python3.*/site-packages"):
        if (other := target / packages.relative_to(source)).is_dir():
            linked += link(packages, other)
    sys.stderr.write(f"{target}: {linked / 1e6:,.0f} MB are the same files as in {source}\n")


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
