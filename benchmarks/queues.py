"""A queue of short PyTorch notebooks on two GPUs, compared with papermill: one by one, and two at a time by xargs.

The GPUs are simulated and their work is three seconds of sleep, so that only what surrounds the work is compared: with
long trainings the ratio tends to the number of GPUs. Ours is the whole of `rocmlab run`, the start of its warm kernels
and its report included; theirs has its slow import blocked, and xargs gives no GPUs to its notebooks.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.environment import environment, write_notebook, write_specification
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
    """Return wall seconds by `ours`, `sequential` and `xargs`, measured alternately; empty lists without PyTorch.

    Raises:
        RocmlabError: a notebook did not run.
    """
    times: dict[str, list[float]] = {"ours": [], "sequential": [], "xargs": []}
    specification = _specification()
    if specification is None:
        return times
    with tempfile.TemporaryDirectory(prefix="rocmlab-bench-") as name:
        folder = Path(name)
        variables = _environment(folder, specification)
        notebooks = [write_notebook(folder / f"n{number}.ipynb", CELLS, KERNEL) for number in range(NOTEBOOKS)]
        _sequential(notebooks[:1], variables)  # warms the files, and does not count
        for _ in range(runs):
            times["ours"].append(_ours(notebooks, variables))
            times["sequential"].append(_sequential(notebooks, variables))
            times["xargs"].append(_xargs(notebooks, variables))
    return times


def _specification() -> dict[str, Any] | None:
    from jupyter_client.kernelspec import KernelSpecManager, NoSuchKernel

    try:
        found = KernelSpecManager(ensure_native_kernel=False).get_kernel_spec(KERNEL)
    except NoSuchKernel:
        return None
    return {"argv": found.argv, "display_name": KERNEL, "language": "python", "env": found.env}


def _environment(folder: Path, specification: Mapping[str, Any]) -> dict[str, str]:
    """Return an environment in which both find the same plain kernel, and ours two simulated GPUs."""
    write_specification(folder, KERNEL, specification)
    root = folder / "host"
    simulation.write_host(root, gpus=GPUS)
    return environment(
        JUPYTER_PATH=folder,
        IPYTHONDIR=folder / "ipython",
        ROCMLAB_ROOT=root,
        ROCMLAB_RUNTIME="native",
        ROCMLAB_BACKEND="rocm",
        ROCMLAB_SHARE=folder / "share",
    )


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
            (done.stdout + done.stderr)[-600:].strip() or "no output",
            "make run-notebooks NOTEBOOKS=00_hello_gpu, which says more",
        )
    return seconds
