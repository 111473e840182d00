"""The GPUs as a program that speaks NVML finds them: in HIP's order, each with what it reports now.

One reading serves all questions of the next half second: nvitop asks some thirty per GPU and refresh.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from rocmlab.devices import Device, Sample, discover, is_simulated, roots
from rocmlab.telemetry.model import GpuProcess, device_id

FRESH_SECONDS = 0.5
PID_LIMIT = 1 << 22  # no process has this number or a greater one (kernel PID_MAX_LIMIT)
PCI = "sys/bus/pci/devices"


class Gpus:
    """The AMD GPUs of the host below `root`; safe to use from several threads."""

    def __init__(self, root: Path, *, with_owners: bool = False, clock: Callable[[], float] = time.monotonic) -> None:
        """Remember where to look, and whether for notebooks of processes; nothing is read before `open`."""
        from rocmlab.telemetry.observer import Observer  # not needed to look whether there is a GPU
        from rocmlab.telemetry.owners import ProcSource

        self.root = root
        self.is_simulated = is_simulated(root)
        sources = [ProcSource(root)] if with_owners else []
        self._observer = Observer(root, self._discover, sources, fresh_seconds=FRESH_SECONDS, clock=clock)
        self._listed: tuple[list[GpuProcess], dict[int, GpuProcess]] = ([], {})  # the processes, also by number

    @property
    def devices(self) -> Sequence[Device]:
        """The GPUs, in HIP's order."""
        return self._observer.devices

    def open(self) -> None:
        """Find the GPUs that are there now; those that were there before keep their places."""
        self._observer.close()
        self._observer.find()

    def close(self) -> None:
        """Close what is kept open."""
        self._observer.close()

    def _discover(self) -> list[Device]:
        found = {device_id(device): device for device in amd_gpus(self.root)}
        kept = [found.pop(device_id(device), device) for device in self.devices]
        return [*kept, *found.values()]

    def sample(self, device: Device) -> Sample:
        """Return what a GPU reports; all is None where it cannot be read."""
        return self._observer.samples().samples.get(device_id(device)) or Sample(time.time())

    def is_lost(self, device: Device) -> bool:
        """Return whether a GPU that was found has left the bus since."""
        return device.pci_address is not None and not os.path.exists(self.root / PCI / device.pci_address)

    def processes(self, device: Device) -> list[GpuProcess]:
        """Return the compute processes on a GPU; none where the driver does not list them."""
        name = device_id(device)
        return [process for process in self._observer.processes() or () if process.device == name]

    def process(self, pid: int) -> GpuProcess | None:
        """Return a process by the number under which it is shown; None if it computes on no GPU."""
        found, by_pid = self._observer.processes() or [], self._listed[1]
        if found is not self._listed[0]:
            by_pid = {self.shown_pid(process): process for process in found}
            self._listed = (found, by_pid)
        return by_pid.get(pid)

    def shown_pid(self, process: GpuProcess) -> int:
        """Return the number under which a program may look a process up, and end it.

        That of this namespace; where the process is not visible from here, or its number is a guess, one that no
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
        parts = next((device.driver for device in self.devices if device.driver), "").split()
        if not parts[1:]:
            return None
        return f"{parts[1]} SIMULATED" if self.is_simulated else parts[1]

    @property
    def rocm_version(self) -> tuple[int, int] | None:
        """Major and minor version of the ROCm that is installed here. Source: `/opt/rocm/.info/version`."""
        numbers = (roots.read_text(self.root / "opt/rocm/.info/version") or "").split(".")
        major, minor = (roots.integer(number) for number in (*numbers, "", "")[:2])
        return None if major is None or minor is None else (major, minor)


def amd_gpus(root: Path) -> list[Device]:
    """Return the AMD GPUs of a host in HIP's order, regardless of masks; after them those that HIP does not list."""
    found = [
        device
        for device in discover(root, {})
        if device.backend == "rocm" and (device.driver or "").startswith("amdgpu")
    ]
    return sorted(found, key=lambda device: (device.index is None, device.index or 0))
