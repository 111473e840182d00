"""Wheels of rocmlab itself, built and installed without an index."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

from clones import REPOSITORY

ENVIRONMENT = {**os.environ, "PIP_NO_INDEX": "1", "PIP_DISABLE_PIP_VERSION_CHECK": "1"}


def built(source: Path, folder: Path, version: str = "") -> Path:
    """Build the wheel of a source tree, which is given another version first, and return its path."""
    init = source / "src/rocmlab/__init__.py"
    if version:
        init.write_text(init.read_text().replace('__version__ = "0.1.0"', f'__version__ = "{version}"'))
    command = [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", str(folder)]
    done = subprocess.run(command, cwd=source, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return next(folder.glob("rocmlab-*.whl"))


def installed(environment: Path, wheel: Path) -> Path:
    """Install a wheel into a new environment, and return that."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", environment], check=True)
    pip = [
        sys.executable,
        "-m",
        "pip",
        "--python",
        str(environment / "bin/python"),
        "install",
        "--quiet",
        "--no-compile",
    ]
    subprocess.run([*pip, "--no-deps", str(wheel)], env=ENVIRONMENT, check=True)
    return environment


def tracked() -> dict[str, tuple[bytes, bool]]:
    """Return content and executability of each file that a project folder is made of."""
    spec = importlib.util.spec_from_file_location("wheel_project", REPOSITORY / "scripts/wheel_project.py")
    assert spec
    assert spec.loader
    hook = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(hook)
    command = ["git", "-C", str(REPOSITORY), "ls-files", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run([*command, *hook.CONTENT, "src"], capture_output=True, text=True, check=True).stdout
    paths = {name: REPOSITORY / name for name in listed.splitlines()}
    return {name: (path.read_bytes(), os.access(path, os.X_OK)) for name, path in paths.items() if path.is_file()}
