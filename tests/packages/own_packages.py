"""What the tests of packages share."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from wheel_files import wheel

from rocmlab.lab import kernels
from rocmlab.packages import base_packages, overlays
from rocmlab.packages.installing import Outcome
from rocmlab.packages.overlays import Place

SOURCE = Path(overlays.__file__).parents[2]
Add = Callable[..., Outcome]
by_uv_and_pip = pytest.mark.parametrize("place", ["uv", "pip"], indirect=True)  # where they could differ


def offer(folder: Path, name: str, version: str, requires: Sequence[str] = (), text: str = "") -> Path:
    """Write a wheel whose module has its version, and more text."""
    module = name.replace("-", "_")
    return wheel(folder, name, version, {f"{module}/__init__.py": f"version = {version!r}\n# {text}\n"}, requires)


def has(place: Place) -> dict[str, str]:
    """Return what the overlay in use has itself."""
    prefix = place.current()
    return base_packages.installed(overlays.site_of(prefix)) if prefix else {}


def rocmlab(place: Place, *arguments: str, code: int = 0) -> str:
    """Run the command with the lab's interpreter, and return what it printed."""
    prefix = Path(place.python).parents[1]
    if not (prefix / "share/jupyter/kernels/torch").exists():
        kernels.install(prefix, {"torch": place.python}, None, {"tensorflow": kernels.ABSENT})
    lab = {"ROCMLAB_RUNTIME": "native", "ROCMLAB_SHARE": str(place.share), "PYTHONPATH": str(SOURCE)}
    command = [place.python, "-m", "rocmlab", "packages", *arguments]
    done = subprocess.run(command, env={**os.environ, **lab}, capture_output=True, text=True, check=False)
    assert done.returncode == code, done.stderr
    return done.stdout + done.stderr
