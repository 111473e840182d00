"""What devices report, read every second or two: files stay open.

A full Reader fills the Samples of `rocmlab.devices.sample`, and adds the CPU's load, which takes two readings. Others
give busy share, VRAM and power by the same rules; the other fields are None. Both
have the device's count of its energy.
"""

from __future__ import annotations

import os
import threading
import time
from contextlib import ExitStack
from pathlib import Path

from rocmlab.devices import cpu, cuda, roots, sensors
from rocmlab.devices.card_reader import CardReader
from rocmlab.devices.kept_file import KeptFile
from rocmlab.devices.model import Device, Sample

TYPE_CHECKING = False  # `typing` itself would cost milliseconds at each start
if TYPE_CHECKING:
    from ctypes import c_void_p
    from typing import Protocol

    from rocmlab.devices.nvml import Nvml
else:
    Protocol = object

USE = ("busy_percent", "vram_used_bytes", "vram_total_bytes", "power_watts")  # what is read where not all is wanted


class Reader(Protocol):
    """Reads one device."""

    energy_joules: float | None  # counted by the device itself until the last reading; None where it does not

    def read(self) -> Sample:
        """Return what it reports now; a sleeping device is not woken."""

    def close(self) -> None:
        """Close what is kept open."""


class Readers:
    """Makes the Readers of one host; the driver's library, where one is needed, is opened once for all of them."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._is_simulated = roots.is_simulated(root)
        self._stack = ExitStack()
        self._library: Nvml | None = None
        self._is_asked = False  # for the library
        self._asking = threading.Lock()

    def open(self, device: Device, full: bool = False, errors_seconds: float = 0.0) -> Reader | None:
        """Return what reads a device; None where nothing can be known of it, as of the CPU's use.

        Args:
            device: one of this host.
            full: read all fields of a Sample.
            errors_seconds: how old counts of memory errors may be in a full reading of an AMD GPU.
        """
        if device.simulated != self._is_simulated:
            return None  # a device of another host
        if device.backend == "rocm":
            folder = sensors.find_folder(device, self._root)
            return CardReader(folder, self._root, errors_seconds, None if full else USE) if folder else None
        if device.backend == "cpu" and full:
            return _Processor(self._root)
        return self._open_cuda(device, full=full) if device.backend == "cuda" else None

    def _open_cuda(self, device: Device, *, full: bool) -> Reader | None:
        if self._is_simulated or not cuda.has_driver(self._root):
            return None
        from rocmlab.devices import nvml

        roots.announce_only("NVIDIA's driver (libnvidia-ml.so.1)")
        with self._asking:  # by several threads, where one hangs
            if not self._is_asked:
                self._is_asked = True
                self._library = self._stack.enter_context(nvml.session())
        library = self._library
        for _, handle in library.handles() if library else ():
            if library and library.text("nvmlDeviceGetUUID", handle) == device.unique_id:
                return _FullHandle(library, handle) if full else _Handle(library, handle)
        return None

    def close(self) -> None:
        """Give the driver's library back."""
        self._stack.close()


class _Handle:
    """Reads how much an NVIDIA GPU is used, and its energy: mJ since the driver was loaded (Volta and later)."""

    energy_joules: float | None = None

    def __init__(self, library: Nvml, handle: c_void_p) -> None:
        self._library, self._handle = library, handle

    def read(self) -> Sample:
        self._read_energy()
        return Sample(time.time(), **self._library.use(self._handle))

    def _read_energy(self) -> None:
        import ctypes

        energy = ctypes.c_ulonglong()
        has_energy = self._library.succeeds("nvmlDeviceGetTotalEnergyConsumption", self._handle, ctypes.byref(energy))
        self.energy_joules = energy.value / 1e3 if has_energy else None

    def close(self) -> None:
        """Keep nothing: the library is that of all Readers."""


class _FullHandle(_Handle):
    """Reads everything of an NVIDIA GPU."""

    def read(self) -> Sample:
        self._read_energy()
        return Sample(time.time(), **self._library.reading(self._handle))


class _Processor:
    """Reads the CPU: the host's memory, and the share of its processors' time that was not idle since the last reading.

    Source: `/proc/meminfo`; the first line of `/proc/stat`, where waiting for a disk counts as idle.
    """

    energy_joules: float | None = None

    def __init__(self, root: Path) -> None:
        self._files = [KeptFile(root / "proc" / name, roots.to_text) for name in ("meminfo", "stat")]
        self._is_simulated = roots.is_simulated(root)
        self._before: tuple[int, int] | None = None

    def read(self) -> Sample:
        now = time.time()
        for file in self._files:
            if self._is_simulated and file.handle >= 0 and not os.fstat(file.handle).st_nlink:
                file.close()  # another process has replaced that host
        memory, times = (roots.to_text(file.fetch(is_announced=True)) or "" for file in self._files)
        used, total = cpu.memory_in_use(memory)
        return Sample(now, busy_percent=self._busy(times), gtt_used_bytes=used, gtt_total_bytes=total)

    def _busy(self, times: str) -> float | None:
        fields = times.partition("\n")[0].split()
        if len(fields) < 6 or fields[0] != "cpu" or not all(word.isascii() and word.isdigit() for word in fields[1:9]):
            return None
        ticks = [
            int(word) for word in fields[1:9]
        ]  # user nice system idle iowait irq softirq steal; guests are in user
        idle, whole = ticks[3] + ticks[4], sum(ticks)
        before, self._before = self._before, (idle, whole)
        if before is None or whole <= before[1]:
            return None
        return max(0.0, min(100.0, 100 * (1 - (idle - before[0]) / (whole - before[1]))))

    def close(self) -> None:
        for file in self._files:
            file.close()
