"""The processes on each GPU, as its driver lists them, with their facts from `/proc`.

Source: `/sys/class/kfd/kfd/proc/<pid>/{vram_<gpu_id>,sdma_<gpu_id>,stats_<gpu_id>/*}` (rocm), NVML (cuda).

KFD lists every process under every GPU, so eight GPUs have eight files for one process and one use of a GPU. What a
process has on the GPUs it is known to use is read each time. All else (other GPUs, copying, evictions, its name) is
read by rounds, at most `MAX_OTHER_READS` files each: with a few processes that is all of it, with hundreds it is seen
some rounds later. New processes are read whole.
"""

from __future__ import annotations

import functools
import os
import threading
import time
from pathlib import Path

from rocmlab.devices import Device, is_simulated, roots
from rocmlab.devices.processes import KFD_PROCESSES, MIN_BYTES
from rocmlab.telemetry import isolated
from rocmlab.telemetry.isolated import Unseen
from rocmlab.telemetry.model import GpuProcess, Owner, device_id
from rocmlab.telemetry.proc import Process, Table

TYPE_CHECKING = False  # `typing` itself would cost milliseconds at each start
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from typing import Any, TypeVar

    from rocmlab.devices.nvml import Nvml

    Data = TypeVar("Data", GpuProcess, Owner)

MAX_OTHER_READS = 64  # files in one round
MAX_DESCRIBED = 2  # processes whose name and so on is read again in one round
MAX_KEPT = 1024  # descriptors of all processes together: two for each use of a GPU
KEPT_SHARE = 8  # part of what this process may open: kernels, connections and other readers need the rest
LOAD_SECONDS = 3.0  # how old NVML's word on a process may be


@functools.lru_cache(maxsize=8)
def finder(root: Path) -> Finder:
    """Return what remembers the processes of a host, so that a look at hundreds of processes is cheap."""
    return Finder(root)


def changed(data: Data, **values: object) -> Data:
    """Return a copy with other values; `dataclasses.replace` takes ten times as long, and there may be hundreds."""
    copy: Data = object.__new__(type(data))
    copy.__dict__.update(data.__dict__, **values)
    return copy


class _File:
    """A file with one number, whose descriptor is kept while there are not too many."""

    __slots__ = ("_handle", "_name")
    kept = 0  # descriptors of all of them

    def __init__(self, name: str) -> None:
        self._name = name
        self._handle: int | None = None

    def read(self) -> int | None:
        """Return its number; None if it cannot be read."""
        try:
            found = self._opened() if self._handle is None else int(os.pread(self._handle, 32, 0))
        except (OSError, ValueError):
            self.close()
            return None
        return found if 0 <= found < roots.INTEGER_LIMIT else None

    def _opened(self) -> int:
        handle = os.open(self._name, os.O_RDONLY | os.O_CLOEXEC)
        try:
            return int(os.pread(handle, 32, 0))
        finally:
            if _File.kept < _most_kept():
                self._handle = handle
                _File.kept += 1
            else:
                os.close(handle)

    def close(self, close: Callable[[int], None] = os.close) -> None:  # both names are None at the very end
        """Give the descriptor back."""
        handle, self._handle = self._handle, None
        if handle is not None:
            close(handle)
            type(self).kept -= 1

    def __del__(self) -> None:
        self.close()


class _FaultyFile(_File):
    """The same on a simulated host with faults, or while a watchdog watches what is read: never kept."""

    __slots__ = ()

    def read(self) -> int | None:
        """Return its number; None if it cannot be read."""
        return roots.read_integer(self._name)


class _Use:
    """What one process has on one GPU; what is read each time and what in rotation."""

    __slots__ = ("cu_occupancy", "cu_occupancy_file", "evicted_ms", "sdma_microseconds", "shown", "vram_bytes")

    def __init__(self, cu_occupancy_file: _File) -> None:
        self.cu_occupancy_file = cu_occupancy_file
        self.vram_bytes = 0
        self.cu_occupancy: int | None = None
        self.sdma_microseconds: int | None = None
        self.evicted_ms: int | None = None
        self.shown: GpuProcess | None = None  # as long as nothing changes


class _Known:
    """One process of KFD's list."""

    __slots__ = ("details", "file", "folder", "inode", "pid", "template", "uses", "vram_files")

    def __init__(self, pid: int, inode: int, folder: str, file: type[_File]) -> None:
        self.pid = pid
        self.inode = inode  # of its folder: another process of the same number has another
        self.folder = folder
        self.file = file
        self.uses: dict[int, _Use] = {}  # by gpu_id
        self.vram_files: dict[int, _File] = {}
        self.describe({})

    def look_at(self, gpu_id: int) -> None:
        """Read whether it uses a GPU, and what it computes there."""
        use = self.uses.get(gpu_id)
        file = self.vram_files.get(gpu_id) or self.file(f"{self.folder}/vram_{gpu_id}")
        vram_bytes = file.read()
        if vram_bytes is None or vram_bytes < MIN_BYTES:
            if use is not None:
                del self.uses[gpu_id], self.vram_files[gpu_id]
            return
        if use is None:
            use = self.uses[gpu_id] = _Use(self.file(f"{self.folder}/stats_{gpu_id}/cu_occupancy"))
            self.vram_files[gpu_id] = file
        cu_occupancy = use.cu_occupancy_file.read()
        if vram_bytes != use.vram_bytes or cu_occupancy != use.cu_occupancy:
            use.vram_bytes, use.cu_occupancy, use.shown = vram_bytes, cu_occupancy, None

    def look_further(self, gpu_ids: Iterable[int]) -> int:
        """Read all that is not read each time but its name; return how many files that were."""
        files = 0
        for gpu_id in gpu_ids:
            if gpu_id not in self.uses:
                self.look_at(gpu_id)
                files += 1
            if use := self.uses.get(gpu_id):
                sdma = self.file(f"{self.folder}/sdma_{gpu_id}")
                evicted = self.file(f"{self.folder}/stats_{gpu_id}/evicted_ms")
                found = sdma.read(), evicted.read()
                if found != (use.sdma_microseconds, use.evicted_ms):
                    (use.sdma_microseconds, use.evicted_ms), use.shown = found, None
                files += 2
        return files

    def describe(self, details: dict[str, Any]) -> None:
        """Read its facts from `/proc`."""
        self.details = details
        self.template = GpuProcess("", self.pid, **details)
        for use in self.uses.values():
            use.shown = None

    def shown(self, gpu_id: int, name: str, units: int | None) -> GpuProcess:
        """Return it on one GPU."""
        use = self.uses[gpu_id]
        if use.shown is None:
            share = 100 * use.cu_occupancy / units if use.cu_occupancy is not None and units else None
            use.shown = changed(
                self.template,
                device=name,
                vram_bytes=use.vram_bytes,
                compute_units_percent=None if share is None else min(100.0, share),
                sdma_seconds=None if use.sdma_microseconds is None else use.sdma_microseconds * 1e-6,
                evicted_seconds=None if use.evicted_ms is None else use.evicted_ms * 1e-3,
            )
        return use.shown


class Finder:
    """Finds the processes on GPUs again and again."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.table = Table(root)
        self._folder = os.fspath(root / KFD_PROCESSES)
        self._known: dict[int, _Known] = {}
        self._turn = 0  # which process is looked at further next
        self._pairs = isolated.Pairs(self.table, root)
        self._lock = threading.Lock()

    def find(self, devices: Sequence[Device]) -> list[GpuProcess]:
        """Return the processes on these GPUs, by GPU and process id; their owners are not looked for."""
        with self._lock:
            rocm = {device.kfd_id: device for device in devices if device.backend == "rocm" and device.kfd_id}
            found = self._of_kfd(rocm) if rocm else []
            nvidia = [device for device in devices if device.backend == "cuda" and not device.simulated]
            if nvidia and not is_simulated(self.root):
                found += self._of_nvidia(nvidia)
            return found

    def possible(self, device: Device) -> list[Process]:
        """Return the processes of this namespace that may be those on a GPU whose numbers mean nothing here."""
        return self._pairs.possible(device)

    # -- rocm ------------------------------------------------------------------------------------------------------

    def _of_kfd(self, devices: Mapping[int, Device]) -> list[GpuProcess]:
        fresh = self._list()
        for known in self._known.values():
            for gpu_id in tuple(known.uses):
                if gpu_id in devices:
                    known.look_at(gpu_id)
        for known in fresh:
            known.look_further(devices)
            if known.uses:
                self._describe(known)
        self._look_around(devices)
        if self.table.is_isolated:
            self._pair(devices)
        return [
            known.shown(gpu_id, name, device.compute_units)
            for gpu_id, name, device in [(gpu_id, device_id(device), device) for gpu_id, device in devices.items()]
            for known in self._known.values()
            if gpu_id in known.uses
        ]

    def _list(self) -> list[_Known]:
        """Learn which processes there are; return those that are new."""
        try:
            roots.announce(self._folder)
            with os.scandir(self._folder) as entries:
                listed = {int(entry.name): entry.inode() for entry in entries if entry.name.isdigit()}
        except OSError:
            listed = {}
        file = _FaultyFile if roots.on_read or os.path.exists(self.root / roots.FAULTS_FILE) else _File
        before, fresh = self._known, []
        self._known = {}
        for pid, inode in sorted(listed.items()):
            known = before.get(pid)
            if known is None or known.inode != inode or known.file is not file:
                known = _Known(pid, inode, f"{self._folder}/{pid}", file)
                fresh.append(known)
            self._known[pid] = known
        return fresh

    def _look_around(self, devices: Mapping[int, Device]) -> None:
        """Look further at some processes, in rotation."""
        pids, files, described = list(self._known), 0, 0
        for _ in range(len(pids)):
            self._turn = (self._turn + 1) % len(pids)
            known = self._known[pids[self._turn]]
            files += known.look_further(devices)
            if known.uses and described < MAX_DESCRIBED:
                self._describe(known)
                described += 1
            if files >= MAX_OTHER_READS:
                return

    def _describe(self, known: _Known) -> None:
        """Read a process's name and so on, if it can be seen."""
        process = self.table.by_driver(known.pid)
        details = _details(process, self.table) if process else {}
        if process and details != known.details:
            known.describe(details)

    def _pair(self, devices: Mapping[int, Device]) -> None:
        """Find the processes of this namespace that the host's numbers stand for."""
        unseen = [
            Unseen(
                pid=known.pid,
                pasid=roots.read_integer(f"{known.folder}/pasid") or None,
                vram_bytes={devices[gpu_id]: use.vram_bytes for gpu_id, use in known.uses.items() if gpu_id in devices},
            )
            for known in self._known.values()
            if known.uses.keys() & devices.keys() and self.table.by_driver(known.pid) is None
        ]
        for pid, pair in self._pairs.find(unseen, list(devices.values())).items():
            details: dict[str, Any] = {}
            if pair:
                own = {"local_pid": pair.process.pid, "is_estimated": pair.is_estimated}
                details = {**_details(pair.process, self.table), **own}
            if details != self._known[pid].details:
                self._known[pid].describe(details)

    # -- cuda ------------------------------------------------------------------------------------------------------

    def _of_nvidia(self, devices: Sequence[Device]) -> list[GpuProcess]:
        from rocmlab.devices import cuda, nvml

        if not cuda.has_driver(self.root):
            return []
        roots.announce_only("NVIDIA's driver (libnvidia-ml.so.1)")
        with nvml.session() as library:
            return of_nvml(library, devices, self.table) if library else []


def of_nvml(library: Nvml, devices: Sequence[Device], table: Table) -> list[GpuProcess]:
    """Return the processes that an initialised NVML lists for these GPUs, which it knows by their UUID."""
    by_id = {device.unique_id: device for device in devices if device.unique_id}
    found = []
    for _, handle in library.handles():
        device = by_id.get(library.text("nvmlDeviceGetUUID", handle) or "")
        if device is None:
            continue
        used: dict[int, int | None] = {}
        for kind in ("Compute", "MPSCompute", "Graphics"):
            for pid, vram_bytes in library.processes(handle, kind):
                used[pid] = max((used.get(pid), vram_bytes), key=lambda number: -1 if number is None else number)
        load = library.process_load(handle, int((time.time() - LOAD_SECONDS) * 1e6)) if used else {}
        for pid, vram_bytes in sorted(used.items()):
            process = _of_nvidia_number(pid, table)
            found.append(
                GpuProcess(
                    device=device_id(device),
                    pid=pid,
                    vram_bytes=vram_bytes,
                    compute_units_percent=load.get(pid),
                    **(_details(process, table) if process else {}),
                )
            )
    return found


def _of_nvidia_number(pid: int, table: Table) -> Process | None:
    """Return the process that NVML means: some drivers give a container its own numbers, others those of the host."""
    process = table.here(pid)
    if process is None or not table.is_isolated:
        return process
    return process if any(name.startswith("/dev/nvidia") for name in process.files.values()) else None


def _details(process: Process, table: Table) -> dict[str, Any]:
    """Return the facts of a process from `/proc`; a simulated one has no user of this machine."""
    is_real = table.is_real(process)
    return {
        "local_pid": process.pid if is_real else None,
        "name": process.name,
        "command": process.shown_command,
        "user": process.user if is_real else None,
        "started_seconds": process.started_seconds,
    }


def _most_kept() -> int:
    """Return how many descriptors may be kept; the files beyond are opened for each reading."""
    import resource

    most = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return MAX_KEPT if most < 0 else min(MAX_KEPT, most // KEPT_SHARE)
