"""Processes that a simulated host is told to list."""

from __future__ import annotations

import json
import os
from pathlib import Path

from rocmlab.devices import discover, sample
from rocmlab.devices.processes import is_isolated
from rocmlab.simulation import GpuUse, Live, write_host

KFD = "sys/class/kfd/kfd/proc"


def test_a_process_has_the_files_of_every_gpu(tmp_path: Path) -> None:
    """KFD lists each process for each GPU; on those it does not use it has nothing."""
    use = GpuUse(4711, gpu=1, vram_bytes=3 << 30, cu_occupancy=40, sdma_seconds=2.5, evicted_seconds=0.25)
    root = write_host(tmp_path, gpus=2, processes=[use])
    first, second = (device.kfd_id for device in discover(root, {}) if device.backend == "rocm")
    folder = root / KFD / "4711"

    values = {str(path.relative_to(folder)): path.read_text().strip() for path in folder.rglob("*") if path.is_file()}

    assert values.pop("pasid").isdigit()
    assert values == {
        f"vram_{first}": "0",
        f"sdma_{first}": "0",
        f"stats_{first}/cu_occupancy": "0",
        f"stats_{first}/evicted_ms": "0",
        f"vram_{second}": str(3 << 30),
        f"sdma_{second}": "2500000",
        f"stats_{second}/cu_occupancy": "40",
        f"stats_{second}/evicted_ms": "250",
        "queues/1/gpuid": str(second),
        "queues/1/size": str(1 << 20),
        "queues/1/type": "0",
    }
    assert not (root / "proc/4711").exists()


def test_a_made_up_process_has_an_entry_in_the_hosts_own_proc(tmp_path: Path) -> None:
    """One with a command is of the simulated host alone."""
    root = write_host(tmp_path, gpus=1, processes=[GpuUse(4711, command=("python3", "train.py"))])

    assert (root / "proc/4711/cmdline").read_bytes() == b"python3\0train.py\0"
    assert "Name:\tpython3\n" in (root / "proc/4711/status").read_text()


def test_the_memory_of_a_gpu_is_that_of_its_processes(tmp_path: Path) -> None:
    """They and the driver's own; never more than there is."""
    uses = [GpuUse(1001, 0, 5 << 30), GpuUse(1002, 0, 2 << 30), GpuUse(1001, 1, 60 << 30)]
    root = write_host(tmp_path, gpus=2, processes=uses)

    full, over = (sample(device, root) for device in discover(root, {}) if device.backend == "rocm")

    assert (full.vram_used_bytes or 0) >> 30 == 7
    assert over.vram_used_bytes == over.vram_total_bytes


def test_processes_come_and_go_with_the_next_step(tmp_path: Path) -> None:
    """Whoever changes them sees it in the tree; the GPUs work as their pattern says."""
    live = Live(tmp_path, gpus=1, busy="90", processes=[])
    seen = [sorted(path.name for path in (tmp_path / KFD).iterdir())]

    for seconds, uses in ((1.0, [GpuUse(5), GpuUse(6)]), (2.0, [GpuUse(6)]), (3.0, [])):
        live.processes = uses
        live.step(seconds)
        seen.append(sorted(path.name for path in (tmp_path / KFD).iterdir()))

    assert seen == [[], ["5", "6"], ["6"], []]
    assert (tmp_path / KFD).is_dir()


def test_a_process_on_all_partitions_of_a_gpu(tmp_path: Path) -> None:
    """Each partition is a GPU of its own for HIP, and has its own queue."""
    root = write_host(
        tmp_path,
        profile="instinct",
        gpus=1,
        partition="dpx",
        processes=[GpuUse(7, gpu, (gpu + 1) << 30) for gpu in range(2)],
    )

    ids = [device.kfd_id for device in discover(root, {}) if device.backend == "rocm"]

    assert [int((root / KFD / f"7/vram_{kfd_id}").read_text()) >> 30 for kfd_id in ids] == [1, 2]
    assert sorted(path.name for path in (root / KFD / "7/queues").iterdir()) == ["0", "1"]


def test_a_vanished_gpu_takes_its_files_along(tmp_path: Path) -> None:
    """The process lives on, with what it has on the others."""
    live = Live(tmp_path, gpus=2, faults=["vanish:1:10"], processes=[GpuUse(7, 0), GpuUse(7, 1)])
    before = {path.name for path in (tmp_path / KFD / "7").glob("vram_*")}

    live.step(11.0)

    after = {path.name for path in (tmp_path / KFD / "7").glob("vram_*")}
    assert len(before) == 2
    assert len(after) == 1
    assert after < before


def test_the_mark_says_by_which_numbers_the_list_counts(tmp_path: Path) -> None:
    """Those of whoever wrote it: from another namespace of process ids they mean nothing. Others do not see them."""
    plain = write_host(tmp_path / "plain", gpus=1)
    listed = write_host(tmp_path / "listed", gpus=1, processes=[])
    mark = json.loads((listed / "rocmlab-simulated.json").read_text())

    assert "pid_namespace" not in json.loads((plain / "rocmlab-simulated.json").read_text())
    assert mark["pid_namespace"] == os.stat("/proc/self/ns/pid").st_ino
    assert not is_isolated(plain)
    assert not is_isolated(listed)

    (listed / "rocmlab-simulated.json").write_text(json.dumps({**mark, "pid_namespace": 1}))
    assert is_isolated(listed)
