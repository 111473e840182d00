"""Which processes of this container the host's process ids stand for, where it does not share the host's numbers.

KFD lists numbers of the host; this container's `/proc` knows its own. Its processes that have opened `/dev/kfd` (on
a simulated host, whose GPUs no process can open, those that hold a lease) are compared with KFD's list, in this order:

1. The address space id: `pasid` in KFD's list and in `/proc/<pid>/fdinfo/*` of an open render node. It is exact;
   kernels since 6.15 say 0, and then it tells nothing.
2. The memory of a GPU in use, by KFD and by `drm-memory-vram` in fdinfo, if no other process has about as much.
3. One process on a GPU in both lists, or as many, by the order of their start: numbers of the host grow.

What 2 and 3 find is an estimate. Which GPUs a process here may be on follows from the locks of leases that it has open,
which are named by render node, else from HIP_VISIBLE_DEVICES.
"""

from __future__ import annotations

import os
import re
import time
from dataclasses import dataclass, field

from rocmlab.base import lease_folder
from rocmlab.devices import Device, roots
from rocmlab.telemetry.proc import Process, Table

TYPE_CHECKING = False  # `typing` itself would cost milliseconds at each start
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

# The lock of a lease, as rocmlab.kernels.leases names it: machine, backend, render node.
LOCK = re.compile(r"/[0-9a-f]{8}-(?:simulated-)?rocm-(?P<render>renderD\d+)\.lock$")
# The fork server, as this and earlier versions name it; its kernels have its environment, not their own.
FORK_SERVERS = ("/kernels/forkserver/server.py", "/runner/warm/parent.py")
AGAIN_SECONDS = 10.0  # after a search that found no more, if nothing has changed
NEAR_BYTES = 64 * 2**20
NEAR_SHARE = 0.1


@dataclass(frozen=True)
class Unseen:
    """A process of KFD's list that has another number here, or is in another container."""

    pid: int  # of the host
    pasid: int | None
    vram_bytes: Mapping[Device, int]


@dataclass(frozen=True)
class Pair:
    """What an unseen process is here."""

    process: Process
    is_estimated: bool


@dataclass
class Candidate:
    """A process of this namespace that has opened the driver."""

    process: Process
    pasids: set[int] = field(default_factory=set)
    vram_bytes: dict[str, int] = field(default_factory=dict)  # by PCI address
    devices: frozenset[Device] | None = None  # where it may be; None: that is not known

    def may_be_on(self, devices: Iterable[Device]) -> bool:
        """Return whether nothing speaks against all of these GPUs."""
        return self.devices is None or self.devices.issuperset(devices)


class Pairs:
    """Remembers what was found, and searches again only when something has changed."""

    def __init__(self, table: Table, root: Path) -> None:
        """Begin with none; `root` is of the host."""
        self._table = table
        # What a program of this machine opens to use a simulated GPU: its own driver, or another host's, is another.
        self._driver = os.path.realpath(root / "dev/kfd") if roots.is_simulated(root) else None
        # Where a lease stands for the use of a GPU that no process can open.
        self._leases = os.path.realpath(lease_folder.path({}, root)) if roots.is_simulated(root) else None
        self._found: dict[int, Pair] = {}
        self._candidates: list[Candidate] = []
        self._last: tuple[frozenset[int], float] = (frozenset(), 0.0)

    def find(self, unseen: Sequence[Unseen], devices: Sequence[Device]) -> dict[int, Pair | None]:
        """Return by number of the host what these processes are here, None for those that are unknown."""
        pids = {each.pid for each in unseen}
        self._found = {pid: pair for pid, pair in self._found.items() if pid in pids and _lives(pair.process)}
        missing = [each for each in unseen if each.pid not in self._found]
        if missing and not self._has_just_searched(frozenset(each.pid for each in missing)):
            candidates = list(_candidates(self._table, devices, self._driver, self._leases))
            taken = {pair.process.pid for pair in self._found.values()}
            free = [each for each in candidates if each.process.pid not in taken]
            self._found |= matched(missing, free)
            taken = {pair.process.pid for pair in self._found.values()}
            self._candidates = [each for each in candidates if each.process.pid not in taken]
        return {pid: self._found.get(pid) for pid in pids}

    def possible(self, device: Device) -> list[Process]:
        """Return what may be on a GPU and is not known to be anything in particular."""
        fitting = [each for each in self._candidates if each.may_be_on([device])]
        return [each.process for each in fitting if _lives(each.process)]

    def _has_just_searched(self, missing: frozenset[int]) -> bool:
        now = time.monotonic()
        if self._last[0] == missing and now - self._last[1] < AGAIN_SECONDS:
            return True
        self._last = (missing, now)
        return False


def matched(unseen: Sequence[Unseen], candidates: Sequence[Candidate]) -> dict[int, Pair]:
    """Compare two lists by the three methods; each process is used once."""
    found: dict[int, Pair] = {}
    for method, is_estimated in ((_by_pasid, False), (_by_memory, True), (_by_order, True)):
        taken = {pair.process.pid for pair in found.values()}
        left = [each for each in unseen if each.pid not in found]
        free = [each for each in candidates if each.process.pid not in taken]
        found |= {pid: Pair(candidate.process, is_estimated) for pid, candidate in method(left, free).items()}
    return found


def _by_pasid(unseen: Sequence[Unseen], candidates: Sequence[Candidate]) -> dict[int, Candidate]:
    by_pasid = {pasid: each for each in candidates for pasid in each.pasids}
    return {each.pid: by_pasid[each.pasid] for each in unseen if each.pasid in by_pasid}


def _by_memory(unseen: Sequence[Unseen], candidates: Sequence[Candidate]) -> dict[int, Candidate]:
    fits = {each.pid: [other for other in candidates if _has_as_much(each, other)] for each in unseen}
    wanted = [other.process.pid for others in fits.values() for other in others]
    return {
        pid: others[0] for pid, others in fits.items() if len(others) == 1 and wanted.count(others[0].process.pid) == 1
    }


def _has_as_much(unseen: Unseen, candidate: Candidate) -> bool:
    pairs = [
        (vram_bytes, candidate.vram_bytes.get(device.pci_address or "", 0))
        for device, vram_bytes in unseen.vram_bytes.items()
    ]
    return all(there and abs(here - there) <= max(NEAR_BYTES, here * NEAR_SHARE) for here, there in pairs)


def _by_order(unseen: Sequence[Unseen], candidates: Sequence[Candidate]) -> dict[int, Candidate]:
    found: dict[int, Candidate] = {}
    free = sorted(candidates, key=lambda each: (each.process.started_ticks or 0, each.process.pid))
    groups: dict[frozenset[Device], list[int]] = {}
    for each in sorted(unseen, key=lambda each: each.pid):
        groups.setdefault(frozenset(each.vram_bytes), []).append(each.pid)
    for devices, pids in sorted(groups.items(), key=lambda group: (len(group[0]), group[1])):
        others = [pid for other, more in groups.items() if other != devices for pid in more if pid not in found]
        fitting = [each for each in free if each.may_be_on(devices)]
        known = [each for each in fitting if each.devices is not None]
        chosen = known if len(known) == len(pids) else [] if others and len(known) < len(fitting) else fitting
        if len(chosen) == len(pids):
            found |= dict(zip(pids, chosen, strict=True))
            free = [each for each in free if each not in chosen]
    return found


def _candidates(table: Table, devices: Sequence[Device], driver: str | None, leases: str | None) -> Iterable[Candidate]:
    """Yield the processes of this namespace that have opened the driver, less those that only inherited that.

    `driver` is that of a simulated host, the only one that counts for a process of this machine. With a folder of
    leases, those that have a lock of it open too, less servers that keep the lease of their kernel.
    """
    opened, leasing = dict[int, Process](), dict[int, Process]()
    for process in table.all():
        names = process.files.values()
        if driver in names if driver and table.is_real(process) else any(name.endswith("/dev/kfd") for name in names):
            opened[process.pid] = process
        elif leases and any(name.endswith(".lock") and os.path.dirname(name) == leases for name in names):
            leasing[process.pid] = process
    for process in opened.values():
        parent = opened.get(process.parent_pid)
        if parent is None or parent.command != process.command:  # a fork that runs on has no context of its own
            yield _examined(process, devices)
    parents = {process.parent_pid for process in leasing.values()}
    for process in leasing.values():
        if process.pid not in parents:
            yield _examined(process, devices)


def _examined(process: Process, devices: Sequence[Device]) -> Candidate:
    found = Candidate(process, devices=_devices_of(process, devices))
    clients = set()
    for number, name in process.files.items():
        if "/dev/dri/renderD" not in name:
            continue
        text = roots.read_text(f"{process.folder}/fdinfo/{number}") or ""
        lines = {key: rest.strip() for key, _, rest in (line.partition(":") for line in text.splitlines())}
        found.pasids |= {roots.integer(lines.get("pasid")) or 0} - {0}
        address, client = lines.get("drm-pdev", ""), lines.get("drm-client-id")
        kibibytes = roots.integer(lines.get("drm-memory-vram", "").removesuffix("KiB").strip())
        if kibibytes and (address, client) not in clients:  # one client may have several descriptors
            clients.add((address, client))
            found.vram_bytes[address] = found.vram_bytes.get(address, 0) + kibibytes * 1024
    return found


def _devices_of(process: Process, devices: Sequence[Device]) -> frozenset[Device] | None:
    locks = {f"/dev/dri/{found['render']}" for name in process.files.values() if (found := LOCK.search(name))}
    if locks:
        return frozenset(device for device in devices if device.render_node in locks)
    if any(word.endswith(FORK_SERVERS) for word in process.command):
        return None
    indexes = [roots.integer(word.strip()) for word in process.environment.get("HIP_VISIBLE_DEVICES", "").split(",")]
    if None in indexes:
        return None
    return frozenset(device for device in devices if device.index in indexes)


def _lives(process: Process) -> bool:
    return Process(process.folder, process.pid).started_ticks == process.started_ticks
