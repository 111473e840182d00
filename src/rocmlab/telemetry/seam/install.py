"""Puts a replacement of the library into this process, where there is no NVML and there are AMD GPUs."""

from __future__ import annotations

import importlib
import logging
from pathlib import Path
from typing import Any

from rocmlab.base.errors import RocmlabError
from rocmlab.devices import cuda, is_simulated
from rocmlab.telemetry.seam.gpus import Gpus, amd_gpus
from rocmlab.telemetry.seam.library import Library
from rocmlab.telemetry.seam.names import show_notebooks


def nvidia_answers(root: Path) -> bool:
    """Return whether NVIDIA's own library lists GPUs; it is not queried for a simulated host."""
    if is_simulated(root) or not cuda.has_driver(root):
        return False
    from rocmlab.devices import nvml

    with nvml.session() as library:
        return library is not None and any(True for _ in library.handles())


def check(root: Path) -> None:
    """Make sure that there are AMD GPUs to show.

    Raises:
        RocmlabError: there are none.
    """
    if not amd_gpus(root):
        raise RocmlabError(
            "no AMD GPU was found",
            "no AMD GPU with the driver amdgpu is here, and NVIDIA's library (libnvidia-ml.so.1) does not answer",
            "`rocmlab doctor` shows what is missing; docs/simulate.md shows how to try it without a GPU",
        )


def install(root: Path, *, with_notebooks: bool) -> None:
    """Let nvidia-ml-py (`import pynvml`) in this process answer from the AMD GPUs below `root`.

    Args:
        root: the host.
        with_notebooks: show notebooks in front of the command lines that psutil gives.

    Raises:
        RocmlabError: NVIDIA's own library answers, there is no AMD GPU, or nvidia-ml-py is missing or another package.
    """
    if nvidia_answers(root):
        raise RocmlabError(
            "NVIDIA's own library (libnvidia-ml.so.1) answers here",
            "rocmlab does not replace it: a program would mistake AMD GPUs for NVIDIA's",
            "run the program as it is",
        )
    check(root)
    bindings = _bindings()
    psutil = _imported("psutil", "it is what programs ask for command lines") if with_notebooks else None
    logging.getLogger("rocmlab").addHandler(logging.NullHandler())  # our log lines would disturb a full screen
    gpus = Gpus(root, with_owners=with_notebooks)
    bindings.nvmlLib = Library(gpus)
    if psutil:
        show_notebooks(gpus, psutil.Process)


def _bindings() -> Any:  # noqa: ANN401
    found = _imported("pynvml", "it is what programs ask for GPUs", package="nvidia-ml-py")
    if not hasattr(found, "nvmlLib") or not callable(getattr(found, "_nvmlGetFunctionPointer", None)):
        raise RocmlabError(
            f"{getattr(found, '__file__', 'pynvml')} is not nvidia-ml-py",
            "another package has installed a module of the same name, pynvml",
            "python3 -m pip uninstall pynvml nvidia-ml-py3 && python3 -m pip install --force-reinstall nvidia-ml-py",
        )
    return found


def _imported(name: str, why: str, package: str = "") -> Any:  # noqa: ANN401
    try:
        return importlib.import_module(name)
    except ImportError as err:
        raise RocmlabError(
            f"{package or name} is not installed for this Python",
            f"{err}; {why}",
            f"python3 -m pip install {package or name}, with the Python that runs the program",
        ) from err
