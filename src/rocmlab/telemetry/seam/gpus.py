"""The GPUs as a program that speaks NVML finds them: in HIP's order, each with what it reports now.

One reading serves all questions of the next half second: nvitop asks some thirty per GPU and refresh.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from rocmlab.devices import Device, Sample, discover, is_simulated, roots
from rocmlab.telemetry.model import GpuProcess, device_id

TYPE_CHECKING = False  # the sampler is not needed to look whether there is a GPU
if TYPE_CHECKING:
    from rocmlab.telemetry.owners import ProcSource
    from rocmlab.telemetry.sampler import Sampler

FRESH_SECONDS = 0.5
PID_LIMIT = 1 << 22  # no process has this number or a greater one (kernel PID_MAX_LIMIT)
PCI = "sys/bus/pci/devices"


@dataclass(frozen=True)
class Reading:
    """What all GPUs reported at one instant."""

    samples: Mapping[str, Sample]
    lost: frozenset[str]  # GPUs that have left the bus


class Gpus:
    """The AMD GPUs of the host below `root`; safe to use from several threads."""

    def __init__(self, root: Path, *, with_owners: bool = False, clock: Callable[[], float] = time.monotonic) -> None:
        """Remember where to look; nothing is read before `open`.

        Args:
            root: the host.
            with_owners: tell of processes whose notebooks they are.
            clock: in seconds.
        """
        self.root = root
        self.is_simulated = is_simulated(root)
        self.devices: list[Device] = []
        self._with_owners = with_owners
        self._clock = clock
        self._lock = threading.RLock()
        self._sampler: Sampler | None = None
        self._pid = 0  # of the process that started it
        self._sources: tuple[ProcSource, ...] = ()  # they remember what they have found
        self._reading: tuple[float, Reading] | None = None
        self._processes: tuple[float, dict[str, list[GpuProcess]], dict[int, GpuProcess]] | None = None

    def open(self) -> None:
        """Find the GPUs that are there now; those that were there before keep their places."""
        found = {device_id(device): device for device in amd_gpus(self.root)}
        with self._lock:
            kept = [found.pop(device_id(device), device) for device in self.devices]
            self.devices = [*kept, *found.values()]
            self._reading = self._processes = None
            if self._sampler is not None and self._pid == os.getpid():
                self._sampler.close()
            self._start()

    def _start(self) -> None:
        from rocmlab.telemetry.sampler import Sampler

        self._sampler, self._pid = Sampler(self.devices, self.root), os.getpid()

    def close(self) -> None:
        """Close what is kept open."""
        with self._lock:
            if self._sampler is not None and self._pid == os.getpid():
                self._sampler.close()
            self._sampler = None
            self._reading = self._processes = None

    def sample(self, device: Device) -> Sample:
        """Return what a GPU reports; all is None where it cannot be read."""
        return self._read().samples.get(device_id(device)) or Sample(time.time())

    def is_lost(self, device: Device) -> bool:
        """Return whether a GPU that was found has left the bus since."""
        return device_id(device) in self._read().lost

    def _read(self) -> Reading:
        with self._lock:
            if self._reading is None or self._clock() - self._reading[0] >= FRESH_SECONDS:
                if self._sampler and self._pid != os.getpid():
                    self._start()  # forked: the thread that reads has stayed behind
                samples = self._sampler.read().samples if self._sampler else {}
                lost = frozenset(device_id(device) for device in self.devices if not self._is_present(device))
                self._reading = (self._clock(), Reading(samples, lost))
            return self._reading[1]

    def _is_present(self, device: Device) -> bool:
        return device.pci_address is None or os.path.exists(self.root / PCI / device.pci_address)

    def processes(self, device: Device) -> list[GpuProcess]:
        """Return the compute processes on a GPU."""
        return self._look()[0].get(device_id(device), [])

    def process(self, pid: int) -> GpuProcess | None:
        """Return a process by the number under which it is shown; None if it computes on no GPU."""
        return self._look()[1].get(pid)

    def _look(self) -> tuple[dict[str, list[GpuProcess]], dict[int, GpuProcess]]:
        with self._lock:
            if self._processes is None or self._clock() - self._processes[0] >= FRESH_SECONDS:
                by_device: dict[str, list[GpuProcess]] = {}
                by_pid: dict[int, GpuProcess] = {}
                for process in self._find():
                    by_device.setdefault(process.device, []).append(process)
                    by_pid[self.shown_pid(process)] = process
                self._processes = (self._clock(), by_device, by_pid)
            return self._processes[1:]

    def _find(self) -> list[GpuProcess]:
        from rocmlab.telemetry import attribution, owners, processes

        if not self._with_owners:
            return processes.find(self.devices, self.root)
        self._sources = self._sources or (owners.ProcSource(self.root),)
        return attribution.attribute(self.devices, self.root, self._sources)

    def shown_pid(self, process: GpuProcess) -> int:
        """Return the number under which a program may look a process up, and end it.

        That of this namespace; where the process cannot be seen from here, or its number is a guess, one that no
        process has, so that none is taken for it.
        """
        return process.local_pid if process.local_pid and self.is_seen(process) else process.pid + PID_LIMIT

    def is_seen(self, process: GpuProcess) -> bool:
        """Return whether `/proc` of this machine certainly has it, and not a simulated host or the host outside."""
        if process.local_pid is None or process.is_estimated:
            return False
        return not (self.is_simulated and os.path.exists(self.root / "proc" / str(process.local_pid)))

    @property
    def driver_version(self) -> str | None:
        """The version of amdgpu, or of the kernel that it is part of."""
        words = next((device.driver for device in self.devices if device.driver), "").split()
        if not words[1:]:
            return None
        return f"{words[1]} SIMULATED" if self.is_simulated else words[1]

    @property
    def rocm_version(self) -> tuple[int, int] | None:
        """Major and minor version of the ROCm that is installed here. Source: `/opt/rocm/.info/version`."""
        numbers = (roots.read_text(self.root / "opt/rocm/.info/version") or "").split(".")
        major, minor = (roots.integer(number) for number in (*numbers, "", "")[:2])
        return None if major is None or minor is None else (major, minor)


def amd_gpus(root: Path) -> list[Device]:
    """Return the AMD GPUs of a host in HIP's order, whatever masks say; behind them those that HIP does not list."""
    found = [device for device in discover(root, {}) if device.backend == "rocm" and _has_driver(device)]
    return sorted(found, key=lambda device: (device.index is None, device.index or 0))


def _has_driver(device: Device) -> bool:
    return (device.driver or "").startswith("amdgpu")
