"""What is measured runs in this: an environment, a plain kernel, notebooks and processes of the benchmarks."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import rocmlab
from rocmlab.base.errors import RocmlabError

CLONE = Path(__file__).resolve().parents[1]
PACKAGE = Path(rocmlab.__file__).parents[1]
KERNEL = "rocmlab-bench"
# Not `-m`: what is measured would have the whole clone, and its folders, on its path.
MODULE = "import importlib, sys; sys.path.append(sys.argv[1]); importlib.import_module(sys.argv[2]).main(sys.argv[3:])"


def python_path() -> str:
    """Return a PYTHONPATH with this package."""
    return os.pathsep.join(filter(None, (str(PACKAGE), os.environ.get("PYTHONPATH"))))


def environment(**more: object) -> dict[str, str]:
    """Return this process's environment without masks of devices, in which this package is found; and `more`."""
    kept = {name: value for name, value in os.environ.items() if not name.endswith("_VISIBLE_DEVICES")}
    return kept | {"PYTHONPATH": python_path()} | {name: str(value) for name, value in more.items()}


def write_kernel(folder: Path, name: str = KERNEL, *, is_warm: bool = False) -> None:
    """Write the kernelspec of a plain kernel of this interpreter into a folder for JUPYTER_PATH.

    Args:
        folder: for JUPYTER_PATH.
        name: of the kernelspec.
        is_warm: whether its kernels are forked from a fork server, as those of a lab are.
    """
    specification: dict[str, object] = {
        "argv": [sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"],
        "display_name": name,
        "language": "python",
        "env": {"PYDEVD_DISABLE_FILE_VALIDATION": "1"},
        "metadata": {"rocmlab": {"preload": ["ipykernel"] if is_warm else []}},
    }
    write_specification(folder, name, specification)


def write_specification(folder: Path, name: str, specification: Mapping[str, object]) -> None:
    """Write a kernelspec into a folder for JUPYTER_PATH."""
    path = folder / "kernels" / name / "kernel.json"
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps(specification), encoding="utf-8")


def write_notebook(path: Path, sources: Sequence[str], kernel: str = KERNEL, tags: Sequence[str] = ()) -> Path:
    """Write a notebook of code cells, of which the first has these tags, and return its path."""
    cells: list[dict[str, object]] = [
        {
            "cell_type": "code",
            "id": f"cell-{number}",
            "metadata": {} if number else {"tags": list(tags)},
            "source": source.strip(),
            "outputs": [],
            "execution_count": None,
        }
        for number, source in enumerate(sources)
    ]
    kernelspec = {"name": kernel, "display_name": kernel, "language": "python"}
    notebook = {"cells": cells, "metadata": {"kernelspec": kernelspec}, "nbformat": 4, "nbformat_minor": 5}
    path.write_text(json.dumps(notebook), encoding="utf-8")
    return path


def run_module(name: str, *arguments: str, limit_seconds: float, **environment: str) -> str:
    """Run `main` of a module of the benchmarks in a process of its own, and return what it printed.

    Raises:
        RocmlabError: it failed, or took too long.
    """
    command = [sys.executable, "-c", MODULE, str(CLONE), f"benchmarks.{name}", *arguments]
    environment = {**os.environ, **environment}
    try:
        done = subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=limit_seconds, check=True
        )
    except (subprocess.CalledProcessError, subprocess.TimeoutExpired) as err:
        output = err.stderr.decode(errors="replace") if isinstance(err.stderr, bytes) else err.stderr or ""
        what = f"benchmarks.{name} {arguments[0]} could not be measured"
        fix = f"python -m benchmarks.{name} {' '.join(arguments)}      # in {CLONE}, with PYTHONPATH=src"
        raise RocmlabError(what, output[-1500:].strip() or str(err), fix) from err
    return done.stdout
