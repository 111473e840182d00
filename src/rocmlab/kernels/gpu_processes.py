"""Processes that use a GPU, as its driver lists them; those without a lease are unmanaged.

Source: `/sys/class/kfd/kfd/proc/<pid>/vram_<gpu_id>` (rocm), NVML's compute processes (cuda). KFD gives process ids of
the host, which inside a container mean nothing: there a process on a leased GPU is taken for the lease's own.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from rocmlab.base.background import DRIVERS
from rocmlab.base.safe import printable
from rocmlab.devices import Device, is_simulated, roots, system_root
from rocmlab.devices.nvml import UNKNOWN_BYTES as UNKNOWN_BYTES
from rocmlab.devices.processes import KFD_PROCESSES, MIN_BYTES
from rocmlab.kernels.leases import Holder

ATTEMPTS = 3  # a thread that asks NVML for other GPUs at the same moment may also give its answer to this one

if TYPE_CHECKING:
    from rocmlab.devices.nvml import Nvml


@dataclass(frozen=True)
class GpuProcess:
    """One process on one GPU."""

    pid: int  # as the driver counts
    vram_bytes: int | None
    name: str | None = None  # of its program; None if it is not visible from here
    numbers: frozenset[int] = frozenset()  # of the process and its session, in every namespace; empty if unseen

    def is_of(self, holder: Holder) -> bool:
        """Return whether it is the holder's kernel, was started in its session, or cannot be distinguished from it."""
        return not self.numbers or holder.pid is None or holder.pid in self.numbers

    def __str__(self) -> str:
        """Return it as one short line."""
        name = printable(self.name or "a program not seen from here")
        memory = f", {self.vram_bytes / 2**30:.1f} GiB" if self.vram_bytes else ""
        return f"process {self.pid} ({name}{memory})"


def unmanaged(seen: Sequence[GpuProcess], holder: Holder | None) -> list[GpuProcess]:
    """Return the processes on a device that do not belong to its lease; all of them if it has none."""
    return [each for each in seen if holder is None or not each.is_of(holder)]


def on_devices(devices: Sequence[Device], root: Path | None = None) -> dict[Device, list[GpuProcess]]:
    """Return the processes on each of these GPUs; empty where the driver lists none."""
    where = root or system_root()
    found: dict[Device, list[GpuProcess]] = {device: [] for device in devices}
    for device in devices:
        if device.backend == "rocm" and device.kfd_id is not None:
            found[device] = list(_of_kfd(device.kfd_id, where))
    nvidia = [device for device in devices if device.backend == "cuda"]
    if nvidia and not is_simulated(where) and not any(device.simulated for device in nvidia):
        from rocmlab.devices import nvml

        with nvml.session() as library:
            if library is not None:
                found |= of_nvml(library, nvidia, where)
    return found


def drivers(devices: Sequence[Device]) -> list[tuple[str, list[Device]]]:
    """Return the drivers to query for the processes on some GPUs, and for which: KFD by GPU, and NVML once."""
    found = [(f"the process list of {gpu.pci_address or gpu.name}", [gpu]) for gpu in devices if gpu.backend == "rocm"]
    others = [gpu for gpu in devices if gpu.backend != "rocm"]
    return [*found, *([("the process list of NVML", others)] if others else [])]


def in_time(devices: Sequence[Device]) -> dict[Device, list[GpuProcess]]:
    """Return the processes on each of these GPUs whose driver answers within a second; the others are omitted."""
    return _merged(_answer(who, some) for who, some in drivers(devices))


async def awaited(devices: Sequence[Device]) -> dict[Device, list[GpuProcess]]:
    """Return the same, while the event loop continues; the drivers are queried at the same time."""
    import asyncio  # not before `rocmlab run` has started what takes long

    return _merged(await asyncio.gather(*(asyncio.to_thread(_answer, who, some) for who, some in drivers(devices))))


def _merged(answers: Iterable[dict[Device, list[GpuProcess]]]) -> dict[Device, list[GpuProcess]]:
    return {device: seen for answer in answers for device, seen in answer.items()}


def _answer(who: str, some: Sequence[Device]) -> dict[Device, list[GpuProcess]]:
    read = partial(on_devices, some, system_root())
    answer: dict[Device, list[GpuProcess]] = {}
    for _ in range(ATTEMPTS):
        answer = DRIVERS.now(who, read) or {}
        if not answer or set(some) <= set(answer):
            break
    return {device: answer[device] for device in some if device in answer}


def _of_kfd(gpu_id: int, root: Path) -> Iterator[GpuProcess]:
    folder = root / KFD_PROCESSES
    for name in roots.list_names(folder):
        pid = roots.integer(name)
        vram_bytes = roots.read_integer(folder / name / f"vram_{gpu_id}") if pid else None
        if pid and vram_bytes and vram_bytes >= MIN_BYTES:  # every process lists every GPU
            yield _seen(pid, vram_bytes, root)


def of_nvml(library: Nvml, devices: Sequence[Device], root: Path) -> dict[Device, list[GpuProcess]]:
    """Return the compute processes of an initialised NVML, for the devices that it knows by their UUID."""
    by_id = {device.unique_id: device for device in devices if device.unique_id}
    found: dict[Device, list[GpuProcess]] = {}
    for _, handle in library.handles():
        device = by_id.get(library.text("nvmlDeviceGetUUID", handle) or "")
        if device is not None:
            found[device] = [_seen(pid, vram_bytes, root) for pid, vram_bytes in library.processes(handle)]
    return found


def _seen(pid: int, vram_bytes: int | None, root: Path) -> GpuProcess:
    """Add what `/proc` contains about a process; that of another container has no valid number here."""
    folder = root / "proc" / str(pid)
    status = roots.read_text(folder / "status")
    if status is None:
        return GpuProcess(pid, vram_bytes)
    numbers = {pid}
    for line in status.splitlines():
        label, _, rest = line.partition(":")
        if label in ("NSpid", "NSsid"):
            numbers |= {number for word in rest.split() if (number := roots.integer(word))}
    return GpuProcess(pid, vram_bytes, roots.read_text(folder / "comm"), frozenset(numbers))
