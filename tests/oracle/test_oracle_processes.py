"""The processes on GPUs: what rocmlab finds, against AMD's own tools on the same simulated hosts."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import oracle_tools
import pytest

from rocmlab.devices import Device, discover
from rocmlab.simulation import GpuUse, write_host
from rocmlab.telemetry.model import device_id
from rocmlab.telemetry.processes import finder

pytestmark = pytest.mark.oracle
GIB = 1 << 30
# amd-smi lists those alone that have a render node open; the nodes are made in a namespace of this process's own.
OPENS = """
mount -t tmpfs tmpfs /dev
mkdir /dev/dri
touch /dev/kfd /dev/dri/renderD128 /dev/dri/renderD129
exec "$0" -c "import sys; files = [open(name) for name in sys.argv[1:]]; print(flush=True); sys.stdin.read()" "$@"
"""


@pytest.fixture
def worker() -> Iterator[int]:
    """A process that has the driver and both GPUs open."""
    nodes = ("/dev/kfd", "/dev/dri/renderD128", "/dev/dri/renderD129")
    command = ["unshare", "--mount", "--propagation", "private", "sh", "-euc", OPENS, sys.executable, *nodes]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout
        process.stdout.readline()
        try:
            yield process.pid
        finally:
            process.kill()


@pytest.fixture
def host(tmp_path: Path, worker: int) -> Path:
    """Two MI210, one used by the worker and by this process, the other by the worker alone."""
    uses = [
        GpuUse(worker, 0, 5 * GIB, cu_occupancy=52, sdma_seconds=12.5, evicted_seconds=3.0),
        GpuUse(worker, 1, 2 * GIB, cu_occupancy=10, sdma_seconds=1.5),
        GpuUse(os.getpid(), 0, GIB, cu_occupancy=26),
    ]
    return write_host(tmp_path / "host", profile="instinct", gpus=2, products=("mi210",), processes=uses)


def gpus(root: Path) -> list[Device]:
    """Return the simulated GPUs."""
    return [device for device in discover(root, {}) if device.backend == "rocm"]


@pytest.mark.parametrize("tool", ["rocm-smi-6.1", "rocm-smi-6.4", "rocm-smi-7.2"])
def test_rocm_smi_sums_up_the_same(host: Path, tool: str) -> None:
    """Memory, copying and occupancy of each process, over all GPUs."""
    printed = oracle_tools.run(tool, host, "--showpids", "--json")["system"]
    theirs = {name: [int(word) for word in text.split(", ")[2:]] for name, text in printed.items()}

    ours: dict[str, list[float]] = {}
    units = sum(device.compute_units or 0 for device in gpus(host))
    by_name = {device_id(device): device for device in gpus(host)}
    for each in finder(host).find(gpus(host)):
        total = ours.setdefault(f"PID{each.pid}", [0, 0, 0])
        total[0] += each.vram_bytes or 0
        total[1] += (each.sdma_seconds or 0) * 1e6
        total[2] += (each.compute_units_percent or 0) * (by_name[each.device].compute_units or 0) / units

    assert theirs == {name: [round(total[0]), round(total[1]), int(total[2] + 1e-6)] for name, total in ours.items()}


def test_amd_smi_lists_the_same(host: Path, worker: int) -> None:
    """Each process on each GPU, with what it has there."""
    by_index = {device.smi_index: device for device in gpus(host)}
    theirs: dict[tuple[str, int], dict[str, Any]] = {}
    for gpu in oracle_tools.run("amd-smi-10.1", host, "process", "--json"):
        for entry in gpu["process_list"]:
            info = entry["process_info"]
            theirs[device_id(by_index[gpu["gpu"]]), info["pid"]] = oracle_tools.flat(info, "process")

    ours = {(each.device, each.pid): each for each in finder(host).find(gpus(host))}

    assert len(ours) == 3
    assert {key for key in ours if key[1] == worker} <= theirs.keys() <= ours.keys()  # others may have no node open
    units = {device_id(device): device.compute_units or 0 for device in gpus(host)}
    for key in theirs:
        each = ours[key]
        assert theirs[key]["process.mem_usage"] == f"{each.vram_bytes} B"
        assert theirs[key]["process.sdma_usage"] == f"{round((each.sdma_seconds or 0) * 1e6)} us"
        assert theirs[key]["process.evicted_time"] == f"{round((each.evicted_seconds or 0) * 1e3)} ms"
        assert theirs[key]["process.cu_occupancy"] == round(
            (each.compute_units_percent or 0) / 100 * units[each.device]
        )
