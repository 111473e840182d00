"""The processes on each GPU: what KFD and NVML list, with their facts from `/proc`."""

from __future__ import annotations

import getpass
import json
import os
import pwd
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import hosts
import pytest
from pretenders import gpus, reader

from rocmlab.devices import roots
from rocmlab.devices.nvml import UNKNOWN_BYTES, Nvml
from rocmlab.simulation import GpuUse, Live, write_host
from rocmlab.telemetry import processes
from rocmlab.telemetry.model import device_id
from rocmlab.telemetry.proc import Process, Table
from rocmlab.telemetry.processes import Finder, finder, of_nvml

GIB = 1 << 30
FREE = 2**22 + 7  # beyond every process id of Linux


def test_a_real_process_on_a_simulated_gpu_is_found_with_its_name(tmp_path: Path) -> None:
    """KFD says what it uses, the real `/proc` what it is."""
    with reader() as process:
        use = GpuUse(process.pid, 1, 5 * GIB, cu_occupancy=48, sdma_seconds=2.5, evicted_seconds=0.25)
        root = write_host(tmp_path, gpus=2, processes=[use])
        second = gpus(root)[1]

        (found,) = finder(root).find(gpus(root))

        assert (found.device, found.pid, found.local_pid) == (device_id(second), process.pid, process.pid)
        assert (found.vram_bytes, found.sdma_seconds, found.evicted_seconds) == (5 * GIB, 2.5, 0.25)
        assert found.compute_units_percent == pytest.approx(100 * 48 / (second.compute_units or 0))
        assert found.name
        assert found.name.startswith("python")
        assert "sys.stdin.read" in (found.command or "")
        assert found.user == pwd.getpwuid(os.getuid()).pw_name == getpass.getuser()
        assert time.time() - 600 < (found.started_seconds or 0) < time.time() + 5
        assert found.owner is None
        assert not found.is_estimated
        json.dumps(found.as_dict())


def test_the_simulated_proc_is_looked_at_first(tmp_path: Path) -> None:
    """A made-up process may have the number of a real one; it is not a process of this namespace."""
    root = write_host(tmp_path, gpus=1, processes=[GpuUse(os.getpid(), command=("python3", "made-up.py"))])

    (found,) = finder(root).find(gpus(root))

    assert found.command == "python3 made-up.py"
    assert found.local_pid is None


def test_a_made_up_process_is_of_no_user_of_this_machine(tmp_path: Path) -> None:
    """Its number means another user, or none, wherever it is shown."""
    root = write_host(tmp_path, gpus=1, processes=[GpuUse(FREE, command=("python3", "made-up.py"))])
    hosts.write(root / f"proc/{FREE}/status", f"Name:\tpython3\nPPid:\t1\nUid:\t{os.getuid()}\t{os.getuid()}\t0\t0\n")

    (found,) = finder(root).find(gpus(root))

    assert (found.name, found.user) == ("python3", None)


def test_the_end_of_the_interpreter_is_silent(tmp_path: Path) -> None:
    """Descriptors that are still kept then are closed silently, whatever is already gone."""
    root = write_host(tmp_path, gpus=1, processes=[GpuUse(os.getpid())])
    source = (
        "import string, sys\n"
        "from pathlib import Path\n"
        "from rocmlab.devices import discover\n"
        "from rocmlab.telemetry import processes\n"
        "root = Path(sys.argv[1])\n"
        "gpus = [each for each in discover(root, {}) if each.backend == 'rocm']\n"
        "print(len(processes.finder(root).find(gpus)))\n"
        "kept = processes._File.kept\n"
        "string.kept = processes, processes.finder(root)\n"  # what was imported first is emptied last
        "sys.kept = string\n"
        "assert kept > 0\n"
    )

    done = subprocess.run(
        [sys.executable, "-c", source, str(root)], capture_output=True, text=True, timeout=60, check=True
    )

    assert (done.stdout, done.stderr) == ("1\n", "")


def test_few_descriptors_are_kept_however_many_processes_there_are(tmp_path: Path) -> None:
    """Many systems allow 1,024 in all; what is not kept open is read all the same, and the next time again."""
    uses = [GpuUse(1000 + number, 0, GIB + number) for number in range(100)]
    root = write_host(tmp_path, gpus=1, processes=uses)
    source = (
        "import os, resource, sys\n"
        "from pathlib import Path\n"
        "resource.setrlimit(resource.RLIMIT_NOFILE, (1024, 1024))\n"
        "from rocmlab.devices import discover\n"
        "from rocmlab.telemetry import processes\n"
        "root = Path(sys.argv[1])\n"
        "gpus = [each for each in discover(root, {}) if each.backend == 'rocm']\n"
        "before = len(os.listdir('/proc/self/fd'))\n"
        "found = [processes.finder(root).find(gpus) for _ in range(2)]\n"
        "kept = len(os.listdir('/proc/self/fd')) - before\n"
        "print(*(len({each.vram_bytes for each in once}) for once in found), kept)\n"
    )

    done = subprocess.run(
        [sys.executable, "-c", source, str(root)], capture_output=True, text=True, timeout=60, check=True
    )

    first, second, kept = map(int, done.stdout.split())
    assert (first, second) == (100, 100)
    assert 0 < kept <= 128


def test_a_process_that_is_nowhere_is_still_listed(tmp_path: Path) -> None:
    """Its memory is in use, whoever it is: unknown is None."""
    root = write_host(tmp_path, gpus=1, processes=[GpuUse(FREE, vram_bytes=GIB)])

    (found,) = finder(root).find(gpus(root))

    assert (found.vram_bytes, found.name, found.command, found.user, found.local_pid) == (GIB, None, None, None, None)


def test_gpus_that_a_process_merely_sees_are_left_out(tmp_path: Path) -> None:
    """KFD lists every process for every GPU; less than 64 MiB is no use of one."""
    uses = [GpuUse(7, 0, GIB), GpuUse(7, 1, (64 << 20) - 1), GpuUse(7, 2, 64 << 20), GpuUse(8, 1, 4 << 20)]
    root = write_host(tmp_path, gpus=4, processes=uses)
    devices = gpus(root)

    found = finder(root).find(devices)

    assert [(each.pid, each.device) for each in found] == [(7, device_id(devices[0])), (7, device_id(devices[2]))]
    assert [each.device for each in finder(root).find(devices[2:])] == [device_id(devices[2])]


def test_what_changes_is_seen_the_next_time(tmp_path: Path) -> None:
    """Memory, occupancy, copying, evictions, other GPUs, processes that come, go, or have an earlier one's number."""
    live = Live(tmp_path, gpus=2, processes=[GpuUse(FREE, 0, GIB, 10)])
    devices, finder = gpus(tmp_path), Finder(tmp_path)

    def seen(*uses: GpuUse) -> list[tuple[Any, ...]]:
        live.processes = uses
        live.step(live._states[0].seconds + 1)
        found = finder.find(devices)
        index = {device_id(device): device.index for device in devices}
        return [
            (each.pid, index[each.device], each.vram_bytes, each.sdma_seconds, each.evicted_seconds, each.name)
            for each in found
        ]

    assert seen(GpuUse(FREE, 0, GIB, 10)) == [(FREE, 0, GIB, 0.0, 0.0, None)] == seen(GpuUse(FREE, 0, GIB, 10))
    assert seen(GpuUse(FREE, 0, 2 * GIB, 10, 3.5, 0.5)) == [(FREE, 0, 2 * GIB, 3.5, 0.5, None)]
    assert seen(GpuUse(FREE, 0, 2 * GIB), GpuUse(FREE, 1, GIB)) == [
        (FREE, 0, 2 * GIB, 0.0, 0.0, None),
        (FREE, 1, GIB, 0.0, 0.0, None),
    ]
    assert seen(GpuUse(FREE, 1, GIB), GpuUse(FREE + 2, 0, GIB)) == [
        (FREE + 2, 0, GIB, 0.0, 0.0, None),
        (FREE, 1, GIB, 0.0, 0.0, None),
    ]
    assert seen(GpuUse(FREE, 1, GIB, command=("other",))) == [(FREE, 1, GIB, 0.0, 0.0, "other")]
    assert seen() == []


@pytest.mark.slow
def test_with_hundreds_of_processes_other_gpus_are_seen_within_some_rounds(tmp_path: Path) -> None:
    """What a round costs is bounded; nothing is overlooked for ever."""
    uses = [GpuUse(1000 + number, number % 8, GIB) for number in range(200)]
    live = Live(tmp_path, profile="instinct", gpus=8, processes=uses)
    devices, finder = gpus(tmp_path), Finder(tmp_path)
    assert len(finder.find(devices)) == 200

    live.processes = [*uses, GpuUse(1000, 5, GIB)]
    live.step(1.0)

    rounds = 1 + 200 * 9 // processes.MAX_OTHER_READS + 1
    assert any(len(finder.find(devices)) == 201 for _ in range(rounds))


def kept_descriptors() -> int:
    """Count what all finders of this process keep open."""
    targets = [os.path.realpath(f"/proc/self/fd/{name}") for name in os.listdir("/proc/self/fd")]
    return sum("/kfd/kfd/proc/" in target for target in targets)


def test_descriptors_are_kept_in_bounds_and_given_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Many processes do not use up what this process may open, and values are right with and without a descriptor."""
    live = Live(tmp_path, gpus=1, processes=[GpuUse(pid, 0, GIB, 3) for pid in range(100, 120)])
    before, finder = len(os.listdir("/proc/self/fd")), Finder(tmp_path)
    monkeypatch.setattr(processes, "MAX_KEPT", 5 + kept_descriptors())  # other finders of this process have some
    finder.find(gpus(tmp_path))

    during = len(os.listdir("/proc/self/fd"))
    live.processes = [GpuUse(pid, 0, 2 * GIB, 4) for pid in range(100, 120)]
    live.step(1.0)
    changed = finder.find(gpus(tmp_path))
    live.processes = []
    live.step(2.0)

    assert finder.find(gpus(tmp_path)) == []
    assert before < during <= before + 10  # of forty
    assert {each.vram_bytes for each in changed} == {2 * GIB}
    assert len(os.listdir("/proc/self/fd")) <= before


def test_a_file_that_fails_is_unknown_and_the_rest_is_there(tmp_path: Path) -> None:
    """EIO on one value of one process takes nothing else along."""
    root = write_host(tmp_path, gpus=1, processes=[GpuUse(7, 0, GIB, 10, 2.0), GpuUse(8, 0, GIB, 10, 2.0)])
    kfd_id = gpus(root)[0].kfd_id
    proc = "sys/devices/virtual/kfd/kfd/proc"
    faults = {f"{proc}/7/stats_{kfd_id}/cu_occupancy": "EIO", f"{proc}/8/sdma_{kfd_id}": "EBUSY"}
    (root / roots.FAULTS_FILE).write_text(json.dumps(faults))

    first, second = finder(root).find(gpus(root))

    assert (first.compute_units_percent, first.sdma_seconds) == (None, 2.0)
    assert (second.compute_units_percent is None, second.sdma_seconds) == (False, None)


@pytest.mark.parametrize("damage", ["", "many", "-5", "9" * 25, "9" * 40, "\0\0"])
def test_damaged_files_are_unknown(tmp_path: Path, damage: str) -> None:
    """Whatever stands where a number should."""
    root = write_host(tmp_path, gpus=1, processes=[GpuUse(7, 0, GIB, 10)])
    kfd_id = gpus(root)[0].kfd_id
    folder = root / "sys/class/kfd/kfd/proc"
    (folder / f"7/sdma_{kfd_id}").write_text(damage)
    (folder / "not-a-number").mkdir()
    (folder / "8").mkdir()

    (found,) = finder(root).find(gpus(root))

    assert found.pid == 7
    assert found.sdma_seconds is None


def test_there_are_no_processes_without_a_driver(tmp_path: Path) -> None:
    """Nor for the CPU."""
    root = write_host(tmp_path, faults=["no-driver"])

    assert finder(root).find(gpus(root)) == []
    assert finder(root).find([hosts.device(0, backend="cpu")]) == []


# -- /proc


def test_a_programs_name_may_hold_anything(tmp_path: Path) -> None:
    """Brackets and spaces in `stat`, line ends and markup in the command: all is text."""
    folder = tmp_path / "proc/7"
    hosts.write(folder / "stat", "7 (a) b (c) S 1 7 7 0 -1 0 " + "0 " * 12 + "4711 0\n")
    hosts.write(folder / "status", "Name:\t<script>\nPPid:\t1\nUid:\t4294967294\t4294967294\t0\t0\nNSpid:\t7\t3\n")
    hosts.write(folder / "cmdline", "python\0a\nb\0" + "x" * 10000 + "\0")
    (tmp_path / "rocmlab-simulated.json").write_text("{}")

    found = Table(tmp_path).by_driver(7)

    assert found
    assert (found.started_ticks, found.name, found.user) == (4711, "<script>", "4294967294")
    assert found.command[1] == "a\nb"
    assert len(found.shown_command or "") == 400


def test_parents_come_from_the_same_proc(tmp_path: Path) -> None:
    """A made-up process has no real parents, and a circle of parents ends."""
    for pid, parent in ((7, 8), (8, 7), (9, 1)):
        hosts.write(tmp_path / f"proc/{pid}/status", f"Name:\tx\nPPid:\t{parent}\n")
    table = Table(tmp_path)

    made_up = table.by_driver(9)
    circle = table.by_driver(7)
    real = table.by_driver(os.getpid())

    assert made_up and circle and real  # noqa: PT018
    assert [each.pid for each in table.lineage(made_up)] == [9]
    assert len(list(table.lineage(circle))) == 64
    assert [each.pid for each in table.lineage(real)][:2] == [os.getpid(), os.getppid()]


def test_a_container_is_known_by_its_control_group(tmp_path: Path) -> None:
    """As Docker, Podman and Kubernetes name them, on both versions of control groups."""
    name = "0123456789abcdef" * 4
    groups = {
        1: f"0::/system.slice/docker-{name}.scope",
        2: f"0::/user.slice/libpod-{name}.scope/container",
        3: f"12:cpuset:/kubepods/burstable/pod1234/cri-containerd-{name}.scope\n1:name=x:/",
        4: f"4:memory:/docker/{name}",
        5: "0::/user.slice/user-1000.slice/session-2.scope",
    }
    for pid, text in groups.items():
        hosts.write(tmp_path / f"proc/{pid}/cgroup", text + "\n")

    found = [Process(str(tmp_path / f"proc/{pid}"), pid).container for pid in groups]

    assert found == ["0123456789ab"] * 4 + [None]


# -- NVML


class Library:
    """NVML with one GPU and four processes: one computes and draws, of one nothing is known."""

    def __init__(self, *missing: str) -> None:
        self._missing = missing

    def __getattr__(self, name: str) -> Any:
        """Give what this driver has."""
        function = vars(type(self)).get(f"give_{name}")
        if function is None or name in self._missing:
            raise AttributeError(name)
        return lambda *arguments: function(self, *arguments)

    def give_nvmlDeviceGetCount_v2(self, count: Any) -> int:
        """Count."""
        count._obj.value = 1
        return 0

    def give_nvmlDeviceGetHandleByIndex_v2(self, _index: object, _handle: object) -> int:
        """Give a handle."""
        return 0

    def give_nvmlDeviceGetUUID(self, _handle: object, buffer: Any, _size: object) -> int:
        """Give the UUID."""
        buffer.value = b"GPU-1"
        return 0

    def _list(self, count: Any, found: Any, *processes: tuple[int, int]) -> int:
        for place, (pid, used_bytes) in zip(found, processes, strict=False):
            place.pid, place.used_bytes = pid, used_bytes
        count._obj.value = len(processes)
        return 0

    def give_nvmlDeviceGetComputeRunningProcesses_v3(self, _handle: object, count: Any, found: Any) -> int:
        """List those that compute."""
        return self._list(count, found, (os.getpid(), 5 * GIB), (2**22 + 12, UNKNOWN_BYTES), (2**22 + 13, GIB))

    def give_nvmlDeviceGetGraphicsRunningProcesses_v3(self, _handle: object, count: Any, found: Any) -> int:
        """List those that draw."""
        return self._list(count, found, (os.getpid(), UNKNOWN_BYTES), (2**22 + 14, GIB))

    def give_nvmlDeviceGetProcessUtilization(self, _handle: object, found: Any, count: Any, since: Any) -> int:
        """Give samples, an older and a newer one."""
        assert time.time() - 60 < since.value / 1e6 < time.time()
        for place, (moment, load) in zip(found, ((200, 71), (100, 13)), strict=False):
            place.pid, place.time_microseconds, place.multiprocessors = os.getpid(), moment, load
        count._obj.value = 2
        return 0


def test_nvml_lists_processes_with_their_load(tmp_path: Path) -> None:
    """Each once, by its GPU's UUID; what the driver does not tell is None."""
    gpu = hosts.device(0, backend="cuda", unique_id="GPU-1")

    found = of_nvml(Nvml(Library()), [gpu, hosts.device(1, backend="cuda", unique_id="GPU-2")], Table(tmp_path))

    assert [(each.pid - 2**22, each.vram_bytes, each.compute_units_percent) for each in found[1:]] == [
        (12, None, None),
        (13, GIB, None),
        (14, GIB, None),
    ]
    assert (found[0].pid, found[0].vram_bytes, found[0].compute_units_percent) == (os.getpid(), 5 * GIB, 71.0)
    assert found[0].command
    assert {each.device for each in found} == {device_id(gpu)}


def test_an_older_nvml_tells_no_load(tmp_path: Path) -> None:
    """What it lacks is unknown."""
    gpu = hosts.device(0, backend="cuda", unique_id="GPU-1")
    library = Library("nvmlDeviceGetProcessUtilization", "nvmlDeviceGetGraphicsRunningProcesses_v3")

    found = of_nvml(Nvml(library), [gpu], Table(tmp_path))

    assert [each.compute_units_percent for each in found] == [None, None, None]
