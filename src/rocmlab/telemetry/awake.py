"""Which GPUs can be read each ten seconds without being woken, and without being kept awake by it.

Source: `power/control`, `runtime_status` and `autosuspend_delay_ms` of the PCI device (kernel power/runtime_pm docs).
The kernel answers these by itself: reading them neither wakes a GPU nor restarts the time until it sleeps.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rocmlab.devices import Device, sensors
from rocmlab.devices.discovery import ROCM, fingerprint
from rocmlab.devices.roots import read_integer, read_text

MAX_DELAY_MS = 6000  # until a GPU sleeps; amdgpu's is 5000. Readings are at least eight seconds apart


class Awake:
    """The GPUs of one host that are awake in any case. Its methods are for one thread at a time."""

    def __init__(self, root: Path) -> None:
        """Prepare; nothing is looked for yet."""
        self._root = root
        self._hardware: object = None  # changes when devices change
        self._folders: list[tuple[Device, Path]] = []

    def devices(self) -> Sequence[Device]:
        """Return those that may be read now. Devices are found again only where the host has others."""
        hardware = fingerprint(self._root)
        if hardware != self._hardware:
            self._folders = self._find()
            self._hardware = hardware
        return [device for device, folder in self._folders if may_be_read(folder)]

    def _find(self) -> list[tuple[Device, Path]]:
        """Return the GPUs of amdgpu, whose sleep is understood. NVIDIA's library is not opened: it may wake a GPU."""
        known = [device for device in ROCM.discover(self._root) if (device.driver or "").split()[:1] == ["amdgpu"]]
        folders = [(device, sensors.find_folder(device, self._root)) for device in known]
        return [(device, folder) for device, folder in folders if folder is not None]


def may_be_read(folder: Path) -> bool:
    """Return whether the GPU with this folder never sleeps, or is awake and falls asleep between two readings."""
    power = folder / "power"
    if read_text(power / "control") == "on":
        return True
    delay = read_integer(power / "autosuspend_delay_ms")
    return delay is not None and 0 <= delay <= MAX_DELAY_MS and read_text(power / "runtime_status") == "active"
