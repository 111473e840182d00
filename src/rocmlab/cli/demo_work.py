"""What the demonstration simulates: notebooks that only wait, and what their kernels would do to a GPU."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rocmlab.devices import Device, discover
from rocmlab.devices.processes import namespace
from rocmlab.kernels.leases import Holder, Leases
from rocmlab.simulation import PATTERNS, GpuUse, is_ours
from rocmlab.telemetry.model import device_id

RATES = (0.1, 0.03, 0.01, 0.003, 0.001)  # of the simulated trainings, two at a time
TRAINING_SECONDS = 150
IDLE_PERCENT = 1.0
FILL_SECONDS = 25.0  # until a kernel has the memory that it wants
SHARES = (0.71, 0.48, 0.62, 0.33)  # of a GPU's memory, by HIP index
MIN_BYTES = 600 << 20  # of a kernel that has a GPU

EXPLANATION = """# Simulated training

This notebook belongs to `make demo`. **It computes nothing**: it waits, and prints a synthetic loss. The GPU that it
leases is SIMULATED, and so is everything that the panel, `smi` and `nvitop` show of it. What is real is the rest: the
kernel, its lease, the run, and the way from a process to its notebook.
"""
PARAMETERS = f"lr = 0.01\nseconds = {TRAINING_SECONDS}"
PRETEND = """import time

import rocmlab

begin, epoch = time.monotonic(), 0
while time.monotonic() - begin < seconds:
    time.sleep(min(3.0, seconds))
    epoch += 1
    loss = 2.3 / (1 + 40 * lr * epoch) + 0.02
    print(f"epoch {epoch:3}  loss {loss:.4f}  (made up)")
rocmlab.record(loss=loss, epochs=epoch)"""
IDLE = "# Forgotten kernel\n\nIts kernel holds a SIMULATED GPU and does nothing. After a minute the panel shows this."


TRAINING_NAME, IDLE_NAME = "pretended_training.ipynb", "forgotten_kernel.ipynb"


def write_notebooks(folder: Path) -> None:
    """Write the demonstration's notebooks."""
    folder.mkdir(parents=True, exist_ok=True)
    cells = [_cell("markdown", EXPLANATION), _cell("code", PARAMETERS, "parameters"), _cell("code", PRETEND)]
    _write(folder / TRAINING_NAME, cells)
    _write(folder / IDLE_NAME, [_cell("markdown", IDLE)])


def _cell(kind: str, source: str, *tags: str) -> dict[str, Any]:
    cell: dict[str, Any] = {"cell_type": kind, "id": f"cell-{len(source)}", "metadata": {}, "source": source}
    if tags:
        cell["metadata"]["tags"] = list(tags)
    return cell if kind == "markdown" else {**cell, "outputs": [], "execution_count": None}


def _write(path: Path, cells: Sequence[Mapping[str, Any]]) -> None:
    metadata = {"kernelspec": {"name": "torch", "display_name": "PyTorch", "language": "python"}}
    notebook = {"cells": list(cells), "metadata": metadata, "nbformat": 4, "nbformat_minor": 5}
    path.write_text(json.dumps(notebook, indent=1) + "\n", encoding="utf-8")


def mark(state: Path) -> None:
    """Say which process moves the host of this folder."""
    (state / "pid").write_text(str(os.getpid()), encoding="ascii")


def is_running(state: Path) -> bool:
    """Return whether a demonstration moves the host of this folder."""
    try:
        pid = int((state / "pid").read_text(encoding="ascii"))
        os.kill(pid, 0)
    except (OSError, ValueError):
        return False
    return is_ours(state / "host")


@dataclass
class Work:
    """Which GPUs are leased, and what their kernels seem to do."""

    host: Path
    gpus: list[Device] = field(default_factory=list)
    since: dict[int, tuple[int, float]] = field(default_factory=dict)  # HIP index: its process, and from when on
    busy: set[int] = field(default_factory=set)  # HIP indices

    def __post_init__(self) -> None:
        self.gpus = [device for device in discover(self.host) if device.backend == "rocm"]

    def look(self, kernels: Sequence[Mapping[str, Any]], seconds: float) -> None:
        """See who has leased which GPU; kernels that are not the lab's own are jobs, which always work."""
        idle = {name for row in kernels if row.get("state") != "busy" for name in row.get("devices") or ()}
        holders = Leases.of_host(root=self.host).held(self.gpus)
        pids = {gpu.index: pid for gpu, holder in holders.items() if (pid := _pid_here(holder))}
        self.since = {
            gpu: before if (before := self.since.get(gpu)) and before[0] == pid else (pid, seconds)
            for gpu, pid in pids.items()
            if gpu is not None
        }
        self.busy = {gpu.index for gpu in self.gpus if gpu.index in self.since and device_id(gpu) not in idle}

    def busy_percent(self, gpu: int, seconds: float) -> float:
        """Return how busy a GPU is; see `Live.pattern`."""
        if gpu in self.busy:
            return PATTERNS["training"](gpu, seconds)
        return IDLE_PERCENT if gpu in self.since else 0.0

    def uses(self, seconds: float) -> list[GpuUse]:
        """Return what KFD would list."""
        return [self._use(gpu, *facts, seconds) for gpu, facts in sorted(self.since.items())]

    def _use(self, gpu: int, pid: int, since: float, seconds: float) -> GpuUse:
        device = next(each for each in self.gpus if each.index == gpu)
        wanted = int((device.vram_bytes or 0) * SHARES[gpu % len(SHARES)])
        grown = int(wanted * min(1.0, (seconds - since) / FILL_SECONDS))
        units = int((device.compute_units or 0) * self.busy_percent(gpu, seconds) / 100)
        return GpuUse(pid=pid, gpu=gpu, vram_bytes=max(MIN_BYTES, grown), cu_occupancy=units)


def _pid_here(holder: Holder) -> int | None:
    """Return the number by which this host counts a holder's process; None if it cannot be found.

    The lab may be a container with its own numbers. Source: `NSpid` of `/proc/<pid>/status`, whose last number is the
    process's own, and `/proc/<pid>/ns/pid`.
    """
    own = namespace()
    if holder.pid is None or holder.namespace in (None, own):
        return holder.pid
    for name in filter(str.isdecimal, os.listdir("/proc")):
        try:
            status = Path(f"/proc/{name}/status").read_text(encoding="utf-8", errors="replace")
        except OSError:
            continue
        numbers = next((line.split()[1:] for line in status.splitlines() if line.startswith("NSpid:")), [])
        if len(numbers) > 1 and numbers[-1] == str(holder.pid) and namespace(name) in (holder.namespace, None):
            return int(name)
    return None
