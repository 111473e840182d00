"""The devices of one host on demand: what they report, and the processes on them with their owners."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path

from rocmlab.base.background import BackgroundReader
from rocmlab.devices import Device
from rocmlab.telemetry.attribution import attribute
from rocmlab.telemetry.model import GpuProcess, Snapshot
from rocmlab.telemetry.sampler import Sampler

TYPE_CHECKING = False  # `typing` itself would cost milliseconds at each start
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any

    from rocmlab.telemetry.owners import Source

PROCESSES_SECONDS = 2.0  # for the processes to be found; a driver that hangs may never list them


class Observer:
    """Reads when it is asked; safe to use from several threads, and in a fork of the process that made it.

    Args:
        root: of the host.
        discover: returns the devices to read.
        sources: who knows owners, see `attribute`.
        discover_seconds: after which a reading discovers the devices again; None: only `find` does.
        fresh_seconds: how old an answer may be; several who ask at a time get the same one.
        clock: in seconds.
    """

    def __init__(
        self,
        root: Path,
        discover: Callable[[], Sequence[Device]],
        sources: Sequence[Source] = (),
        *,
        discover_seconds: float | None = None,
        fresh_seconds: float = 0.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.root = root
        self.devices: Sequence[Device] = ()  # as they were found last
        self._discover, self._sources = discover, sources
        self._discover_seconds, self._fresh_seconds, self._clock = discover_seconds, fresh_seconds, clock
        self._found_at = float("-inf")
        self._sampler: Sampler | None = None
        self._background = BackgroundReader(PROCESSES_SECONDS)
        self._pid = 0  # of the process that made these two, whose threads a fork does not have
        self._latest: dict[str, tuple[float, Any]] = {}
        self._lock = threading.RLock()

    def find(self) -> Sequence[Device]:
        """Find the devices that are there now; the counters of those that were there before continue."""
        with self._lock:
            self.devices = self._discover()
            self._found_at = self._clock()
            self._latest.clear()
            self._own_sampler().devices = self.devices
            return self.devices

    def samples(self) -> Snapshot:
        """Return what the devices report, without processes."""
        with self._lock:
            if self._discover_seconds is not None and self._clock() - self._found_at >= self._discover_seconds:
                self.find()
            if not self._is_fresh("samples"):
                snapshot = self._own_sampler().read()
                self._latest["samples"] = (self._clock(), snapshot)
            found: Snapshot = self._latest["samples"][1]
            return found

    def processes(self) -> list[GpuProcess] | None:
        """Return the processes on the devices; None where the driver does not list them in time.

        They are found in a thread and without the lock, so that the devices are read meanwhile.
        """
        with self._lock:
            self._own_sampler()
            background, devices = self._background, self.devices
            if self._is_fresh("processes"):
                kept: list[GpuProcess] | None = self._latest["processes"][1]
                return kept
        found = background.now("the processes on the GPUs", lambda: attribute(devices, self.root, self._sources))
        with self._lock:
            self._latest["processes"] = (self._clock(), found)
        return found

    def hanging(self) -> list[str]:
        """Return the devices, by `device_id`, whose reading has not come back."""
        return self._own_sampler().hanging

    def close(self) -> None:
        """Release what is kept open; the next reading opens it again."""
        with self._lock:
            if self._sampler is not None and self._pid == os.getpid():
                self._sampler.close()
            self._sampler = None
            self._latest.clear()

    def _own_sampler(self) -> Sampler:
        if self._pid != os.getpid():
            self._sampler, self._background, self._pid = None, BackgroundReader(PROCESSES_SECONDS), os.getpid()
        if self._sampler is None:
            self._sampler = Sampler(self.devices, self.root)
        return self._sampler

    def _is_fresh(self, name: str) -> bool:
        return name in self._latest and self._clock() - self._latest[name][0] < self._fresh_seconds
