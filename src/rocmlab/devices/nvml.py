"""NVIDIA's management library NVML (`libnvidia-ml.so.1`): the few calls that identity and one sample need.

Source: nvml.h of CUDA 12. Every call that fails gives None. Imported only where there is an NVIDIA driver.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Protocol

SUCCESS = 0
GIGATRANSFERS = {1: 2.5, 2: 5.0, 3: 8.0, 4: 16.0, 5: 32.0, 6: 64.0}  # per second and lane, by PCIe generation
CORES_OF_A_MULTIPROCESSOR = {  # CUDA programming guide, throughput of 32-bit floats by compute capability
    (5, 0): 128, (5, 2): 128, (5, 3): 128, (6, 0): 64, (6, 1): 128, (6, 2): 128, (7, 0): 64, (7, 2): 64, (7, 5): 64,
    (8, 0): 64, (8, 6): 128, (8, 7): 128, (8, 9): 128, (9, 0): 128, (10, 0): 128, (10, 3): 128, (12, 0): 128,
}  # fmt: skip
UNKNOWN_BYTES = 2**64 - 1  # of a process, where the driver does not tell, as in WSL2
MAX_PROCESSES = 512
TEMPERATURE_GPU = 0
THRESHOLD_SLOWDOWN = 1
CLOCK_GRAPHICS, CLOCK_MEMORY = 0, 2


Argument = Any  # whatever ctypes passes on: a number, a handle, a pointer


class Library(Protocol):
    """What has NVML's functions as attributes: a `ctypes.CDLL`."""

    def __getattr__(self, name: str, /) -> Callable[..., int]:
        """Return a function, or raise AttributeError."""


class _PciInfo(ctypes.Structure):
    """`nvmlPciInfo_t`."""

    _fields_ = (
        ("bus_id_legacy", ctypes.c_char * 16),
        ("domain", ctypes.c_uint),
        ("bus", ctypes.c_uint),
        ("device", ctypes.c_uint),
        ("pci_device_id", ctypes.c_uint),
        ("pci_subsystem_id", ctypes.c_uint),
        ("bus_id", ctypes.c_char * 32),
    )


class _Memory(ctypes.Structure):
    """`nvmlMemory_t`, in bytes."""

    _fields_ = (("total", ctypes.c_ulonglong), ("free", ctypes.c_ulonglong), ("used", ctypes.c_ulonglong))


class _MemoryWithoutReserve(ctypes.Structure):
    """`nvmlMemory_v2_t`, in bytes; what the driver keeps for itself is not in `used`, as in nvidia-smi."""

    _fields_ = (
        ("version", ctypes.c_uint),
        ("total", ctypes.c_ulonglong),
        ("reserved", ctypes.c_ulonglong),
        ("free", ctypes.c_ulonglong),
        ("used", ctypes.c_ulonglong),
    )


class _Utilization(ctypes.Structure):
    """`nvmlUtilization_t`, in percent."""

    _fields_ = (("gpu", ctypes.c_uint), ("memory", ctypes.c_uint))


class _Process(ctypes.Structure):
    """`nvmlProcessInfo_t` since driver 455."""

    _fields_ = (
        ("pid", ctypes.c_uint),
        ("used_bytes", ctypes.c_ulonglong),
        ("gpu_instance", ctypes.c_uint),
        ("compute_instance", ctypes.c_uint),
    )


class _ProcessLoad(ctypes.Structure):
    """`nvmlProcessUtilizationSample_t`: percent, over the driver's last sampling period."""

    _fields_ = (
        ("pid", ctypes.c_uint),
        ("time_microseconds", ctypes.c_ulonglong),
        ("multiprocessors", ctypes.c_uint),
        ("memory", ctypes.c_uint),
        ("encoder", ctypes.c_uint),
        ("decoder", ctypes.c_uint),
    )


@contextmanager
def session() -> Iterator[Nvml | None]:
    """Give the initialised library, or None where there is none or its driver does not answer."""
    try:
        library = Nvml(ctypes.CDLL("libnvidia-ml.so.1"))
    except OSError:
        library = None
    if library is None or not library.succeeds("nvmlInit_v2"):
        yield None
        return
    try:
        yield library
    finally:
        library.succeeds("nvmlShutdown")


class Nvml:
    """The library; any object with functions of the same names will do."""

    def __init__(self, library: Library) -> None:
        self._library = library

    def succeeds(self, call: str, *arguments: Argument) -> bool:
        """Call a function and return whether it is there and succeeded."""
        function = getattr(self._library, call, None)
        return function is not None and function(*arguments) == SUCCESS

    def number(self, call: str, *arguments: Argument) -> int | None:
        """Return what a function writes into its last argument, an unsigned int."""
        found = ctypes.c_uint()
        return found.value if self.succeeds(call, *arguments, ctypes.byref(found)) else None

    def text(self, call: str, *arguments: Argument) -> str | None:
        """Return what a function writes into a buffer."""
        buffer = ctypes.create_string_buffer(96)
        if not self.succeeds(call, *arguments, buffer, ctypes.c_uint(len(buffer))):
            return None
        return buffer.value.decode("ascii", "replace") or None

    def handles(self) -> Iterator[tuple[int, ctypes.c_void_p]]:
        """Yield index and handle of every GPU, in NVML's order, which is that of PCI addresses."""
        for index in range(self.number("nvmlDeviceGetCount_v2") or 0):
            handle = ctypes.c_void_p()
            if self.succeeds("nvmlDeviceGetHandleByIndex_v2", ctypes.c_uint(index), ctypes.byref(handle)):
                yield index, handle

    def identity(self, handle: ctypes.c_void_p) -> dict[str, Any]:
        """Return the fields of a Device that NVML knows."""
        pci, memory = _PciInfo(), _Memory()
        has_pci = self.succeeds("nvmlDeviceGetPciInfo_v3", handle, ctypes.byref(pci))
        has_memory = self.succeeds("nvmlDeviceGetMemoryInfo", handle, ctypes.byref(memory))
        driver = self.text("nvmlSystemGetDriverVersion")
        return {
            "name": self.text("nvmlDeviceGetName", handle) or "NVIDIA GPU",
            "pci_address": f"{pci.domain:04x}:{pci.bus:02x}:{pci.device:02x}.0" if has_pci else None,
            "pci_id": f"{pci.pci_device_id & 0xFFFF:04x}:{pci.pci_device_id >> 16:04x}" if has_pci else None,
            "unique_id": self.text("nvmlDeviceGetUUID", handle),
            "serial": self.text("nvmlDeviceGetSerial", handle),
            "vram_bytes": memory.total if has_memory else None,
            "compute_units": self.multiprocessors(handle),
            "link_width": self.number("nvmlDeviceGetCurrPcieLinkWidth", handle),
            "link_width_max": self.number("nvmlDeviceGetMaxPcieLinkWidth", handle),
            "link_speed_gts": GIGATRANSFERS.get(self.number("nvmlDeviceGetCurrPcieLinkGeneration", handle) or 0),
            "link_speed_max_gts": GIGATRANSFERS.get(self.number("nvmlDeviceGetMaxPcieLinkGeneration", handle) or 0),
            "driver": f"nvidia {driver}" if driver else "nvidia",
        }

    def multiprocessors(self, handle: ctypes.c_void_p) -> int | None:
        """Return the number of multiprocessors: NVML counts cores, which each has a fixed number of."""
        cores = self.number("nvmlDeviceGetNumGpuCores", handle)
        major, minor = ctypes.c_int(), ctypes.c_int()
        if not cores or not self.succeeds(
            "nvmlDeviceGetCudaComputeCapability", handle, ctypes.byref(major), ctypes.byref(minor)
        ):
            return None
        per_unit = CORES_OF_A_MULTIPROCESSOR.get((major.value, minor.value))
        return cores // per_unit if per_unit else None

    def reading(self, handle: ctypes.c_void_p) -> dict[str, Any]:
        """Return the fields of a Sample that NVML knows, in base units."""
        generation = self.number("nvmlDeviceGetCurrPcieLinkGeneration", handle)
        return {
            **self.use(handle),
            "power_cap_watts": _scaled(self.number("nvmlDeviceGetEnforcedPowerLimit", handle), 1e-3),
            "edge_celsius": _scaled(self.number("nvmlDeviceGetTemperature", handle, TEMPERATURE_GPU), 1.0),
            "edge_critical_celsius": _scaled(
                self.number("nvmlDeviceGetTemperatureThreshold", handle, THRESHOLD_SLOWDOWN), 1.0
            ),
            "core_clock_hertz": self._hertz("nvmlDeviceGetClockInfo", handle, CLOCK_GRAPHICS),
            "core_clock_max_hertz": self._hertz("nvmlDeviceGetMaxClockInfo", handle, CLOCK_GRAPHICS),
            "memory_clock_hertz": self._hertz("nvmlDeviceGetClockInfo", handle, CLOCK_MEMORY),
            "memory_clock_max_hertz": self._hertz("nvmlDeviceGetMaxClockInfo", handle, CLOCK_MEMORY),
            "fan_percent": _scaled(self.number("nvmlDeviceGetFanSpeed", handle), 1.0),
            "link_width": self.number("nvmlDeviceGetCurrPcieLinkWidth", handle),
            "link_speed_gts": GIGATRANSFERS.get(generation or 0),
            "pcie_replays": self.number("nvmlDeviceGetPcieReplayCounter", handle),
        }

    def use(self, handle: ctypes.c_void_p) -> dict[str, Any]:
        """Return only the fields of a GPU's use."""
        load = _Utilization()
        used, total = self._memory(handle)
        has_load = self.succeeds("nvmlDeviceGetUtilizationRates", handle, ctypes.byref(load))
        return {
            "busy_percent": float(load.gpu) if has_load else None,
            "memory_busy_percent": float(load.memory) if has_load else None,
            "vram_used_bytes": used,
            "vram_total_bytes": total,
            "power_watts": _scaled(self.number("nvmlDeviceGetPowerUsage", handle), 1e-3),  # milliwatts
        }

    def processes(self, handle: ctypes.c_void_p, kind: str = "Compute") -> list[tuple[int, int | None]]:
        """Return process ids and bytes in use of the Compute, Graphics or MPSCompute processes of a GPU."""
        found = (_Process * MAX_PROCESSES)()
        for version in ("_v3", "_v2"):
            count = ctypes.c_uint(MAX_PROCESSES)
            if self.succeeds(f"nvmlDeviceGet{kind}RunningProcesses{version}", handle, ctypes.byref(count), found):
                return [
                    (each.pid, None if each.used_bytes == UNKNOWN_BYTES else each.used_bytes)
                    for each in found[: count.value]
                ]
        return []

    def process_load(self, handle: ctypes.c_void_p, since_microseconds: int = 0) -> dict[int, float]:
        """Return by process id its newest share of the multiprocessors in percent, of samples since that Unix time."""
        found = (_ProcessLoad * MAX_PROCESSES)()
        count = ctypes.c_uint(MAX_PROCESSES)
        since = ctypes.c_ulonglong(since_microseconds)
        if not self.succeeds("nvmlDeviceGetProcessUtilization", handle, found, ctypes.byref(count), since):
            return {}
        samples = sorted(found[: count.value], key=lambda sample: sample.time_microseconds)
        return {sample.pid: float(sample.multiprocessors) for sample in samples if sample.pid}

    def _memory(self, handle: ctypes.c_void_p) -> tuple[int | None, int | None]:
        """Return used and total bytes; drivers before 510 count their own reserve as used."""
        memory = _MemoryWithoutReserve(version=ctypes.sizeof(_MemoryWithoutReserve) | 2 << 24)
        if self.succeeds("nvmlDeviceGetMemoryInfo_v2", handle, ctypes.byref(memory)):
            return memory.used, memory.total
        older = _Memory()
        if self.succeeds("nvmlDeviceGetMemoryInfo", handle, ctypes.byref(older)):
            return older.used, older.total
        return None, None

    def _hertz(self, call: str, handle: ctypes.c_void_p, clock: int) -> int | None:
        megahertz = self.number(call, handle, clock)
        return None if megahertz is None else megahertz * 1_000_000


def _scaled(number: int | None, factor: float) -> float | None:
    return None if number is None else number * factor
