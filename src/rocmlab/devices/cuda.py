"""NVIDIA GPUs, through the driver's own library NVML (`libnvidia-ml.so.1`)."""

from __future__ import annotations

import ctypes
import glob
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rocmlab.devices.model import Device
from rocmlab.devices.roots import is_simulated

NVML_SUCCESS = 0


class _PciInfo(ctypes.Structure):
    """`nvmlPciInfo_t` of nvml.h."""

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
    """`nvmlMemory_t` of nvml.h, in bytes."""

    _fields_ = (("total", ctypes.c_ulonglong), ("free", ctypes.c_ulonglong), ("used", ctypes.c_ulonglong))


@contextmanager
def _nvml() -> Iterator[ctypes.CDLL | None]:
    try:
        library = ctypes.CDLL("libnvidia-ml.so.1")
    except OSError:
        library = None
    if library is None or library.nvmlInit_v2() != NVML_SUCCESS:
        yield None
        return
    try:
        yield library
    finally:
        library.nvmlShutdown()


def has_device_nodes(root: Path) -> bool:
    """Tell whether the NVIDIA driver made device nodes (`/dev/nvidia0` …) on the host below `root`."""
    return bool(glob.glob(str(root / "dev/nvidia[0-9]*")))


class Cuda:
    """NVIDIA GPUs."""

    name = "cuda"

    def discover(self, root: Path) -> list[Device]:
        """Return the GPUs that NVML lists, in its order (PCI order, the order of CUDA_DEVICE_ORDER=PCI_BUS_ID)."""
        if is_simulated(root):
            return []
        with _nvml() as library:
            return [] if library is None else list(_listed(library))


def _listed(library: ctypes.CDLL) -> Iterator[Device]:
    count = ctypes.c_uint()
    if library.nvmlDeviceGetCount_v2(ctypes.byref(count)) != NVML_SUCCESS:
        return
    for index in range(count.value):
        handle = ctypes.c_void_p()
        if library.nvmlDeviceGetHandleByIndex_v2(index, ctypes.byref(handle)) != NVML_SUCCESS:
            continue
        pci, memory = _PciInfo(), _Memory()
        has_pci = library.nvmlDeviceGetPciInfo_v3(handle, ctypes.byref(pci)) == NVML_SUCCESS
        has_memory = library.nvmlDeviceGetMemoryInfo(handle, ctypes.byref(memory)) == NVML_SUCCESS
        yield Device(
            backend="cuda",
            index=index,
            name=_text(library.nvmlDeviceGetName, handle) or "NVIDIA GPU",
            is_usable=True,
            pci_address=f"{pci.domain:04x}:{pci.bus:02x}:{pci.device:02x}.0" if has_pci else None,
            unique_id=_text(library.nvmlDeviceGetUUID, handle),
            vram_bytes=memory.total if has_memory else None,
        )


def _text(call: ctypes._CFuncPtr, handle: ctypes.c_void_p) -> str | None:  # type: ignore[name-defined, unused-ignore]
    buffer = ctypes.create_string_buffer(96)
    return buffer.value.decode() if call(handle, buffer, len(buffer)) == NVML_SUCCESS else None
