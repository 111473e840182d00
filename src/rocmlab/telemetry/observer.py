"""The devices of one host on demand: what they report, and the processes on them with their owners."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path

from rocmlab.devices import Device
from rocmlab.telemetry.attribution import attribute
from rocmlab.telemetry.model import GpuProcess, Snapshot
from rocmlab.telemetry.sampler import Sampler

TYPE_CHECKING = False  # `typing` itself would cost milliseconds at each start
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any

    from rocmlab.telemetry.owners import Source


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
        self._pid = 0  # of the process that made the sampler, whose threads a fork does not have
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
            found: Snapshot = self._fresh("samples", lambda: self._own_sampler().read())
            return found

    def processes(self) -> list[GpuProcess]:
        """Return the processes on the devices."""
        with self._lock:
            found: list[GpuProcess] = self._fresh(
                "processes", lambda: attribute(self.devices, self.root, self._sources)
            )
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
        if self._sampler is None or self._pid != os.getpid():
            self._sampler, self._pid = Sampler(self.devices, self.root), os.getpid()
        return self._sampler

    def _fresh(self, name: str, read: Callable[[], object]) -> Any:  # noqa: ANN401
        """Return the latest answer if it is not too old, else a new one."""
        if name not in self._latest or self._clock() - self._latest[name][0] >= self._fresh_seconds:
            answer = read()
            self._latest[name] = (self._clock(), answer)
        return self._latest[name][1]
