"""A queue of short PyTorch notebooks on two GPUs, compared with papermill: one by one, and two at a time by xargs.

The GPUs are simulated and their work is three seconds of sleep, so that only what surrounds the work is compared: with
long trainings the ratio tends to the number of GPUs. Ours is the whole of `rocmlab run`, the start of its warm kernels
and its report included; theirs has its slow import blocked, and xargs gives no GPUs to its notebooks.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rocmlab import simulation
from rocmlab.base.errors import RocmlabError

KERNEL = "torch"
NOTEBOOKS = 8
GPUS = 2
CELLS = ("import torch", "import time\ntime.sleep(3)", "print((torch.ones(200, 200) @ torch.ones(200, 200)).sum())")
PAPERMILL = """
import sys
sys.modules["rfc3987_syntax"] = None
from papermill.__main__ import papermill
papermill()
"""


def measure(runs: int) -> dict[str, list[float]]:
    """Return wall seconds by `ours`, `sequential` and `xargs`, taken in turn; empty lists where there is no PyTorch.

    Raises:
        RocmlabError: a notebook did not run.
    """
    figures: dict[str, list[float]] = {"ours": [], "sequential": [], "xargs": []}
    specification = _specification()
    if specification is None:
        return figures
    with tempfile.TemporaryDirectory(prefix="rocmlab-bench-") as name:
        folder = Path(name)
        environment = _environment(folder, specification)
        notebooks = [_write(folder / f"n{number}.ipynb") for number in range(NOTEBOOKS)]
        _sequential(notebooks[:1], environment)  # warms the files, and does not count
        for _ in range(runs):
            figures["ours"].append(_ours(notebooks, environment))
            figures["sequential"].append(_sequential(notebooks, environment))
            figures["xargs"].append(_xargs(notebooks, environment))
    return figures


def _specification() -> dict[str, Any] | None:
    from jupyter_client.kernelspec import KernelSpecManager, NoSuchKernel

    try:
        found = KernelSpecManager(ensure_native_kernel=False).get_kernel_spec(KERNEL)
    except NoSuchKernel:
        return None
    return {"argv": found.argv, "display_name": KERNEL, "language": "python", "env": found.env}


def _environment(folder: Path, specification: Mapping[str, Any]) -> dict[str, str]:
    """Return an environment in which both find the same plain kernel, and ours two simulated GPUs."""
    kernel = folder / "kernels" / KERNEL / "kernel.json"
    kernel.parent.mkdir(parents=True)
    kernel.write_text(json.dumps(specification), encoding="utf-8")
    root = folder / "host"
    simulation.write_host(root, gpus=GPUS)
    source = str(Path(__file__).parents[3])
    kept = {name: value for name, value in os.environ.items() if not name.endswith("_VISIBLE_DEVICES")}
    return {
        **kept,
        "JUPYTER_PATH": str(folder),
        "IPYTHONDIR": str(folder / "ipython"),
        "PYTHONPATH": os.pathsep.join(filter(None, (source, os.environ.get("PYTHONPATH")))),
        "ROCMLAB_ROOT": str(root),
        "ROCMLAB_RUNTIME": "native",
        "ROCMLAB_BACKEND": "rocm",
        "ROCMLAB_SHARE": str(folder / "share"),
    }


def _write(path: Path) -> Path:
    empty: dict[str, object] = {"cell_type": "code", "metadata": {}, "outputs": [], "execution_count": None}
    cells = [{**empty, "id": f"cell-{number}", "source": source} for number, source in enumerate(CELLS)]
    kernelspec = {"name": KERNEL, "display_name": KERNEL, "language": "python"}
    notebook = {"cells": cells, "metadata": {"kernelspec": kernelspec}, "nbformat": 4, "nbformat_minor": 5}
    path.write_text(json.dumps(notebook), encoding="utf-8")
    return path


def _ours(notebooks: Sequence[Path], environment: Mapping[str, str]) -> float:
    return _seconds([sys.executable, "-m", "rocmlab", "run", *map(str, notebooks)], environment)


def _sequential(notebooks: Sequence[Path], environment: Mapping[str, str]) -> float:
    return sum(_seconds([*_papermill(), str(path), f"{path}.out"], environment) for path in notebooks)


def _xargs(notebooks: Sequence[Path], environment: Mapping[str, str]) -> float:
    pairs = "\0".join(word for path in notebooks for word in (str(path), f"{path}.out"))
    return _seconds(["xargs", "-0", "-n2", f"-P{GPUS}", *_papermill()], environment, pairs)


def _papermill() -> list[str]:
    return [sys.executable, "-c", PAPERMILL, "--no-progress-bar"]


def _seconds(command: Sequence[str], environment: Mapping[str, str], words: str = "") -> float:
    begin = time.monotonic()
    done = subprocess.run(command, input=words, env=dict(environment), capture_output=True, text=True, check=False)
    seconds = time.monotonic() - begin
    if done.returncode:
        raise RocmlabError(
            f"a notebook of the benchmark did not run: {command[1:4]} ended with exit code {done.returncode}",
            (done.stdout + done.stderr)[-600:].strip() or "it said nothing",
            "make run-notebooks NOTEBOOKS=00_hello_gpu, which says more",
        )
    return seconds
