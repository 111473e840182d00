"""Packages of the system that `apt.txt` names: they reach a build, so each line is checked."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from rocmlab.base.errors import RocmlabError
from rocmlab.packages import system


def named(folder: Path, text: str) -> tuple[str, ...]:
    """Return what an `apt.txt` with this text names."""
    (folder / "apt.txt").write_text(text)
    return system.read(folder)


def test_names_comments_and_versions(tmp_path: Path) -> None:
    """In the file's order, each once; a folder `binder` has it as well."""
    assert system.read(tmp_path) == ()
    assert named(tmp_path, "# all\nlibgl1 # for OpenCV\n\ng++\nlibgl1\nzlib1g:i386=1:1.2.13~rc1 graphviz\n") == (
        *("libgl1", "g++"),
        *("zlib1g:i386=1:1.2.13~rc1", "graphviz"),
    )
    (tmp_path / "binder").mkdir()
    assert system.read(tmp_path) == ()


@pytest.mark.parametrize(
    "line",
    ["--allow-downgrades", "Graphviz", "a;reboot", "$(id)", "bash-", "./x.deb", "a/stable", "a=$(id)", "-o", "a\0"],
)
def test_what_is_not_a_name_is_an_error(tmp_path: Path, line: str) -> None:
    """Options, paths and what a shell would run; a name that ends with a dash would remove a package."""
    with pytest.raises(RocmlabError, match="line 2: "):
        named(tmp_path, f"graphviz\n{line}\n")


def test_what_is_not_a_small_text_file_is_an_error(tmp_path: Path) -> None:
    """A folder, another encoding, and more than a variable of a build may have; nothing waits for a pipe."""
    path = tmp_path / "apt.txt"
    path.write_bytes(b"graphviz # f\xfcr")
    with pytest.raises(RocmlabError, match=r"apt\.txt cannot be read"):
        system.read(tmp_path)
    path.write_text("graphviz\n" * 20_000)
    with pytest.raises(RocmlabError, match="at most 100 kB"):
        system.read(tmp_path)
    for make in (os.mkfifo, os.mkdir):
        path.unlink()
        make(path)
        with pytest.raises(RocmlabError, match="not a file"):
            system.read(tmp_path)


def test_what_the_host_lacks(tmp_path: Path) -> None:
    """Packages that were removed and left settings are not there; without dpkg nothing is known to be."""
    dpkg = tmp_path / "dpkg-query"
    dpkg.write_text('#!/bin/sh\nprintf "ii g++\\nii g++\\nrc gone\\nrc gone\\nii zlib1g\\nii zlib1g:i386\\n"; exit 1\n')
    dpkg.chmod(0o755)

    names = ("g++", "gone", "never", "zlib1g:i386=1")
    assert system.missing(names, str(dpkg)) == ("gone", "never")
    assert system.missing(names, str(tmp_path / "none")) == names
    assert system.missing(()) == ()
    assert "not installed" in system.finding(names, str(dpkg))
    dpkg.write_bytes(b"\0")
    with pytest.raises(RocmlabError, match="does not show"):
        system.missing(names, str(dpkg))
    assert "not known" in system.finding(names, str(tmp_path / "none"))
