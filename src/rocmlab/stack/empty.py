"""An empty virtual environment with pip."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from shlex import quote

from rocmlab.base.errors import RocmlabError
from rocmlab.stack import process

# Where a Python has its pip: in its own folder, or where Debian puts wheels.
FIND = """
import ensurepip, pathlib
folders = pathlib.Path(ensurepip.__file__).with_name("_bundled"), pathlib.Path("/usr/share/python-wheels")
print(*(wheel for folder in folders for wheel in folder.glob("pip-*.whl")), sep="\\n")
"""
UNPACK = """
import sys, sysconfig, zipfile
zipfile.ZipFile(sys.argv[1]).extractall(sysconfig.get_path("purelib"))
"""


def create(python: str, version: str, folder: Path) -> None:
    """Make one, by `venv` or, where Debian left it out, by `virtualenv`.

    Args:
        python: the interpreter.
        version: its version, such as 3.12.
        folder: of the environment; it is not there yet.

    Raises:
        RocmlabError: neither is there.
    """
    if _create_with_wheel(python, folder):
        return
    shutil.rmtree(folder, ignore_errors=True)
    code, output = process.capture([python, "-P", "-m", "venv", str(folder)], timeout_seconds=300)
    if code == 0:
        return
    shutil.rmtree(folder, ignore_errors=True)
    if process.capture([python, "-P", "-m", "virtualenv", str(folder)], timeout_seconds=300)[0] == 0:
        return
    lines = output.strip().splitlines()
    raise RocmlabError(
        "a virtual environment cannot be made",
        lines[0] if lines else f"{python} -m venv failed",
        f"sudo apt install python{version}-venv" if sys.platform == "linux" else "install Python from python.org",
    )


def _create_with_wheel(python: str, folder: Path) -> bool:
    """Make one with the pip of that Python, unpacked from its wheel; return whether that was possible.

    `venv` has pip install itself, and all of it compiled: five seconds where this takes half a one.
    """
    code, found = process.capture([python, "-P", "-c", FIND])
    if code or not found.strip():
        return False
    if process.capture([python, "-P", "-m", "venv", "--without-pip", str(folder)], timeout_seconds=300)[0]:
        return False
    interpreter = str(folder / "bin/python")
    if process.capture([interpreter, "-I", "-c", UNPACK, found.splitlines()[0]])[0]:
        return False
    for name in ("pip", "pip3"):
        script = folder / "bin" / name
        script.write_text(f'#!/bin/sh\nexec {quote(interpreter)} -m pip "$@"\n', encoding="utf-8")
        script.chmod(0o755)
    return process.capture([interpreter, "-I", "-m", "pip", "--version"])[0] == 0
