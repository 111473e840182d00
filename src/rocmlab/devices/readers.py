"""How much devices are used, for whoever asks every few seconds: busy share, VRAM and power; what is read stays open.

These are the same fields, by the same rules, as in the Samples of `rocmlab.devices.sample`; the others are None.
"""

from __future__ import annotations

import time
from contextlib import ExitStack
from pathlib import Path

from rocmlab.devices import cuda, gpu_metrics, roots, sampling
from rocmlab.devices.model import Device, Sample
from rocmlab.devices.roots import KeptFile

TYPE_CHECKING = False  # `typing` itself would cost milliseconds at each start
if TYPE_CHECKING:
    from ctypes import c_void_p
    from typing import Protocol

    from rocmlab.devices.nvml import Nvml
else:
    Protocol = object

CHANGING = ("gpu_busy_percent", "mem_info_vram_used", "power1_average", "power1_input")
TOTAL = "mem_info_vram_total"


class Reader(Protocol):
    """Reads one device."""

    def read(self) -> Sample:
        """Return what it reports now; a sleeping device is not woken."""

    def close(self) -> None:
        """Give back what is kept open."""


class Readers:
    """Makes the Readers of one host; the driver's library, where one is needed, is opened once for all of them."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._is_simulated = roots.is_simulated(root)
        self._stack = ExitStack()
        self._library: Nvml | None = None
        self._is_asked = False  # for the library

    def open(self, device: Device) -> Reader | None:
        """Return what reads a device; None where nothing can be known of it, as of the CPU."""
        if device.simulated != self._is_simulated:
            return None  # a device of another host
        if device.backend == "rocm":
            folder = sampling.find_folder(device, self._root)
            return None if folder is None else _Files(folder)
        return self._open_cuda(device) if device.backend == "cuda" else None

    def _open_cuda(self, device: Device) -> Reader | None:
        if self._is_simulated or not cuda.has_driver(self._root):
            return None
        from rocmlab.devices import nvml

        if not self._is_asked:
            self._is_asked = True
            self._library = self._stack.enter_context(nvml.session())
        library = self._library
        for _, handle in library.handles() if library else ():
            if library and library.text("nvmlDeviceGetUUID", handle) == device.unique_id:
                return _Handle(library, handle)
        return None

    def close(self) -> None:
        """Give the driver's library back."""
        self._stack.close()


class _Files:
    """Reads an AMD GPU through descriptors that stay open."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._status = KeptFile(folder / "power/runtime_status")
        self._texts: dict[str, KeptFile] = {}  # none before the device was seen awake
        self._metrics: KeptFile | None = None
        self._total: str | None = None  # stays the same

    def read(self) -> Sample:
        now = time.time()
        if self._status.read_text() in sampling.ASLEEP:
            return Sample(now, is_asleep=True)
        if not self._texts:
            self._find()
        texts = {name: text for name, file in self._texts.items() if (text := file.read_text())}
        if not texts:
            self.close()  # the card is gone; if it comes back, its sensors may have another number
            return Sample(now)
        if self._total:
            texts[TOTAL] = self._total
        use = sampling.use(texts, None)
        if self._metrics and None in (use["busy_percent"], use["power_watts"]):
            table = self._metrics.read_bytes()
            use = sampling.use(texts, gpu_metrics.parse(table) if table else None)
        return Sample(now, **use)

    def _find(self) -> None:
        files = sampling.find_files(self._folder)
        self._texts = {name: KeptFile(files.texts[name]) for name in CHANGING if name in files.texts}
        self._metrics = KeptFile(files.metrics)
        self._total = roots.read_text(files.texts[TOTAL])

    def close(self) -> None:
        for file in (self._status, self._metrics, *self._texts.values()):
            if file is not None:
                file.close()
        self._texts, self._metrics = {}, None


class _Handle:
    """Reads an NVIDIA GPU."""

    def __init__(self, library: Nvml, handle: c_void_p) -> None:
        self._library, self._handle = library, handle

    def read(self) -> Sample:
        return Sample(time.time(), **self._library.use(self._handle))

    def close(self) -> None:
        """Keep nothing: the library is that of all Readers."""
