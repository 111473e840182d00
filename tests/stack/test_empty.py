"""An empty environment: with the pip that Python brings, and an error that names what is missing."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from rocmlab.base.errors import RocmlabError
from rocmlab.stack import empty

VERSION = f"{sys.version_info.major}.{sys.version_info.minor}"


def fake_python(folder: Path, text: str) -> str:
    """Return an interpreter that is this shell script."""
    path = folder / "python3"
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return str(path)


def says(*command: Path | str) -> str:
    """Return what a command prints."""
    return subprocess.run(command, cwd="/", capture_output=True, text=True, check=True).stdout


@pytest.mark.slow
def test_it_has_pip_and_its_commands(tmp_path: Path) -> None:
    """As Python makes it: a module and the commands `pip` and `pip3`, of this environment, also through a link."""
    folder = tmp_path / "an environment"

    empty.create(sys.executable, VERSION, folder)

    link = tmp_path / "pip"
    link.symlink_to(folder / "bin/pip3")
    expected = f"{folder}/lib/python{VERSION}/site-packages/pip "
    assert expected in says(folder / "bin/python", "-m", "pip", "--version")
    assert expected in says(link, "--version")
    assert says(folder / "bin/pip", "list", "--format", "freeze").startswith("pip==")


@pytest.mark.parametrize("lacks", ["pathlib.Path(ensurepip.__file__)", "--without-pip"])
def test_a_python_without_the_wheel_makes_it_its_own_way(tmp_path: Path, lacks: str) -> None:
    """Python may come without the wheel of pip; what was begun is removed before."""
    log = tmp_path / "log"
    python = fake_python(
        tmp_path,
        f'echo "$*" | tr "\\n" " " >>{log}; echo >>{log}\n'
        f'case "$*" in *"{lacks}"*) exit 1 ;; *ensurepip*) echo pip.whl ;; esac',
    )

    empty.create(python, "3.12", tmp_path / "venv")

    assert log.read_text().splitlines()[-1].strip() == f"-P -m venv {tmp_path / 'venv'}"


def test_without_venv_the_fix_names_the_package(tmp_path: Path) -> None:
    """Debian's python3 lacks venv until python3.X-venv is installed."""
    bare = fake_python(tmp_path, 'echo "ensurepip is not available"; exit 1')

    with pytest.raises(RocmlabError) as caught:
        empty.create(bare, "3.12", tmp_path / "venv")

    assert "python3.12-venv" in caught.value.problem.fix
    assert not (tmp_path / "venv").exists()
