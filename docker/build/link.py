"""Have two environments share what both have from one wheel: each such file is on the disk once, under two names.

Usage: PYTHON link.py FROM TO, two folders of environments. Whatever replaces or removes such a file later, as pip does,
leaves the other environment's.
"""

from __future__ import annotations

import csv
import filecmp
import os
import sys
from pathlib import Path

MIN_BYTES = 32_768  # nine of ten files are smaller, and have a sixth of the bytes; to link them takes a build 6 s


def recorded(packages: Path) -> set[tuple[str, str, str]]:
    """Return path, hash and size of each large file that came out of a wheel unchanged. Source: the RECORDs."""
    found = set()
    for record in packages.glob("*.dist-info/RECORD"):
        with record.open(encoding="utf-8", newline="") as file:
            rows = [row for row in csv.reader(file) if len(row) == 3 and row[1]]  # the others are made at installation
        found |= {(path, digest, size) for path, digest, size in rows if int(size or 0) >= MIN_BYTES}
    return {each for each in found if not each[0].startswith(("..", "/"))}  # a program names its own interpreter


def link(source: Path, target: Path) -> int:
    """Replace files of one folder of packages by links to the same of another one; return how many bytes that saved."""
    saved = 0
    for name, _, _ in sorted(recorded(source) & recorded(target)):
        here, there = source / name, target / name
        draft = there.with_name(f".{there.name}.link")
        if here.is_file() and there.is_file() and filecmp.cmp(here, there, shallow=False):
            draft.hardlink_to(here)
            os.replace(draft, there)
            saved += there.stat().st_size
    return saved


def main(source: Path, target: Path) -> None:
    """Link what both environments have for the same version of Python; print what it saved."""
    saved = 0
    for packages in source.glob("lib/python3.*/site-packages"):
        if (other := target / packages.relative_to(source)).is_dir():
            saved += link(packages, other)
    sys.stderr.write(f"{target}: {saved / 1e6:,.0f} MB are the same files as in {source}\n")


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
