"""What a server of metrics says when it is asked: a sample of the devices and their processes, taken at that moment."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from rocmlab.devices import Device, discover
from rocmlab.telemetry import metrics
from rocmlab.telemetry.attribution import attribute
from rocmlab.telemetry.model import Snapshot, device_id
from rocmlab.telemetry.owners import ProcSource
from rocmlab.telemetry.sampler import Sampler

DISCOVERY_SECONDS = 10.0  # between two looks for cards that came or went
FRESH_SECONDS = 0.2  # two who ask at the same time get the same sample


class Feed:
    """Samples on demand, one at a time; cards that come and go do not disturb the others' counters.

    A card that was there once and is gone is reported as down as long as this object lives.
    """

    def __init__(self, root: Path, names: str = "rocmlab") -> None:
        self.root = root
        self.names = names
        self.devices: list[Device] = []  # as they were found last
        self._seen: dict[str, Device] = {}  # all there ever were
        self._sampler = Sampler((), root)
        self._sources = [ProcSource(root)]
        self._latest: Snapshot | None = None
        self._taken = self._discovered = float("-inf")  # monotonic
        self._lock = threading.Lock()

    def exposition(self, accept: str = "", names: str | None = None) -> tuple[bytes, str]:
        """Take a sample and return it as metrics, with their content type; names: None for those of the feed."""
        with self._lock:
            snapshot = self._read()
            present = {device_id(device) for device in self.devices}
            devices = [*self.devices, *(gone for name, gone in self._seen.items() if name not in present)]
        return metrics.exposition(snapshot, devices, names=names or self.names, accept=accept, root=self.root)

    def look(self) -> Sequence[Device]:
        """Find the devices that are there now; the counters of those that were there before go on."""
        self.devices = [device for device in discover(self.root) if device.backend != "cpu"]
        self._seen.update((device_id(device), device) for device in self.devices)
        self._sampler.devices = self.devices
        self._latest = None
        self._discovered = time.monotonic()
        return self.devices

    def close(self) -> None:
        """Give the sampler's descriptors back."""
        with self._lock:
            self._sampler.close()

    def _read(self) -> Snapshot:
        now = time.monotonic()
        if self._latest is not None and now - self._taken < FRESH_SECONDS:
            return self._latest
        if now - self._discovered > DISCOVERY_SECONDS:
            self.look()
        snapshot = self._sampler.read()
        processes = tuple(attribute(self.devices, self.root, self._sources))
        self._latest, self._taken = replace(snapshot, processes=processes), time.monotonic()
        return self._latest
