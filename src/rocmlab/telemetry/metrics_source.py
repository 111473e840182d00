"""The content of a metrics server: a sample of the devices and their processes, taken at each request."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from rocmlab.devices import Device, discover
from rocmlab.telemetry import metrics
from rocmlab.telemetry.model import device_id
from rocmlab.telemetry.observer import Observer
from rocmlab.telemetry.owners import ProcSource

DISCOVERY_SECONDS = 10.0  # between two looks for cards that came or went
FRESH_SECONDS = 0.2  # two who ask at the same time get the same sample


class MetricsSource:
    """Metrics on demand; a card that was there once and is missing is reported as down as long as this object lives."""

    def __init__(self, root: Path, names: str = "rocmlab") -> None:
        self._names = names
        self._seen: dict[str, Device] = {}  # all there ever were
        self.observer = Observer(
            root,
            self._discover,
            [ProcSource(root)],
            discover_seconds=DISCOVERY_SECONDS,
            fresh_seconds=FRESH_SECONDS,
        )

    def exposition(self, accept: str = "", names: str | None = None) -> tuple[bytes, str]:
        """Take a sample and return it as metrics, with their content type; names: None for its own."""
        samples, processes = self.observer.samples(), self.observer.processes()
        snapshot = replace(samples, processes=None if processes is None else tuple(processes))
        there = {device_id(device): device for device in self.observer.devices}
        devices = list((there | {name: gone for name, gone in self._seen.items() if name not in there}).values())
        return metrics.exposition(snapshot, devices, names=names or self._names, accept=accept, root=self.observer.root)

    def _discover(self) -> list[Device]:
        devices = [device for device in discover(self.observer.root) if device.backend != "cpu"]
        self._seen = self._seen | {device_id(device): device for device in devices}
        return devices
