"""The one sampler of this server, created at the first request for it.

Everything of `rocmlab.telemetry` but its model is imported here and late: a server starts as fast with us as without,
and where telemetry cannot work, each view shows why, and the rest of the lab is not affected.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rocmlab.base.errors import Problem, RocmlabError
from rocmlab.devices import Device
from rocmlab.lab.server.paths import Shown
from rocmlab.lab.server.shared_reader import SharedReader
from rocmlab.lab.server.wire import WrongRequestError
from rocmlab.telemetry.model import GpuProcess, Snapshot, device_id

if TYPE_CHECKING:
    from rocmlab.telemetry.hub import Hub

INTERVAL_SECONDS = 1.0
PROCESSES_SECONDS = 2.0
START_SECONDS = 20.0
ANSWER_SECONDS = 10.0  # for one snapshot; one hanging card delays no other

Row = dict[str, Any]


class Telemetry:
    """What devices report, for all views of one server."""

    def __init__(self, root: Path, kernels: Callable[[], Sequence[Row]], shown: Shown) -> None:
        self.root = root
        self._shown = shown
        self._kernels = kernels
        self._hub: Hub | None = None
        self._attribute: Callable[[Sequence[Device]], Sequence[GpuProcess]] | None = None
        self._start: SharedReader[tuple[Hub, Any]] = SharedReader("the GPUs", START_SECONDS)
        self._processes: SharedReader[Sequence[GpuProcess]] = SharedReader("the processes on the GPUs", ANSWER_SECONDS)
        self._one: asyncio.Task[Snapshot] | None = None

    @property
    def devices(self) -> Sequence[Device]:
        """Those of the last reading; empty before the first."""
        return self._hub.devices if self._hub else ()

    @property
    def known(self) -> Sequence[Device]:
        """All that there ever were since the server was started, those that are missing now too."""
        return self._hub.known if self._hub else ()

    @property
    def problems(self) -> list[Problem]:
        """What the sampler found wrong in the host's description of its devices."""
        return list(self._hub.problems) if self._hub else []

    async def hub(self) -> Hub:
        """Return the sampler, which does nothing by itself; the error explains why it cannot be created."""
        if self._hub is None:
            hub, attribute = await self._start.do(lambda: _hub_of(self.root, self._kernels, self._shown))
            if self._hub is None:
                self._hub, self._attribute = hub, attribute
        return self._hub

    async def watch(self) -> AsyncIterator[Snapshot]:
        """Give a snapshot each second, while it is read."""
        hub = await self.hub()
        async with aclosing(hub.watch()) as snapshots:
            async for snapshot in snapshots:
                yield snapshot

    async def now(self) -> Snapshot:
        """Return a snapshot that is not older than a second: the watched one, else one that is taken for this alone."""
        hub = await self.hub()
        latest = hub.latest
        if latest is not None and 0 <= time.time() - latest.time_seconds <= INTERVAL_SECONDS:
            return latest
        if self._one is None or self._one.done():
            self._one = asyncio.ensure_future(self._next())
        done, _ = await asyncio.wait([self._one], timeout=ANSWER_SECONDS)
        if not done:
            raise self.silence(f"there was no sample within {ANSWER_SECONDS:g} seconds")
        return self._one.result()

    def silence(self, what: str) -> RocmlabError:
        """Return why there is no sample: the sampler's own error if it has one, else that a driver hangs."""
        failed = self._hub.failure if self._hub else None
        if failed is not None:
            return RocmlabError.of(failed)
        return RocmlabError(what, "a driver does not answer", "on the host: make doctor")

    async def _next(self) -> Snapshot:
        """Take one snapshot with the current processes; a sampler that has just started has none yet, or old ones."""
        requested_at = time.time()
        async with aclosing(self.watch()) as snapshots:  # type: ignore[type-var]
            async for snapshot in snapshots:
                if snapshot.time_seconds >= requested_at:
                    break
            else:
                raise RocmlabError("there was no sample", "the server is shutting down", "reload the page")
        devices, attribute = self.devices, self._attribute
        if attribute is None:
            return snapshot
        processes = await self._processes.do(lambda: attribute(devices))
        return replace(snapshot, processes=tuple(processes))

    async def processes(self, devices: Sequence[Device]) -> Sequence[GpuProcess]:
        """Return the processes on these devices, with their owners; the devices are not read for this."""
        await self.hub()
        attribute = self._attribute
        return await self._processes.do(lambda: attribute(devices)) if attribute else ()

    def keep(self, snapshot: Snapshot) -> None:
        """Take a reading that was not for a viewer into the history, where none is taken for viewers at present."""
        if self._hub is not None and not self._hub.is_reading:
            self._hub.history.add_sparse(snapshot)

    async def close(self) -> None:
        """Stop, and close what is open."""
        if self._one is not None:
            self._one.cancel()
        hub, self._hub = self._hub, None
        if hub is not None:
            await hub.close()


def _hub_of(
    root: Path, kernels: Callable[[], Sequence[Row]], shown: Shown
) -> tuple[Hub, Callable[[Sequence[Device]], Sequence[GpuProcess]]]:
    """Import what is needed, on a thread; return a Hub, and what joins its processes with the current kernels."""
    from rocmlab.telemetry.attribution import attribute
    from rocmlab.telemetry.hub import Hub
    from rocmlab.telemetry.owners import LabSource, ProcSource

    sources = (LabSource(kernels, root), ProcSource(root))
    lock = threading.Lock()  # the sources remember

    def processes(devices: Sequence[Device]) -> Sequence[GpuProcess]:
        with lock:
            return shown.of_processes(attribute(devices, root, sources))

    return Hub(root, INTERVAL_SECONDS, processes, PROCESSES_SECONDS), processes


Times = dict[str, list[float]]
Series = dict[str, dict[str, list[float | None]]]


async def history(hub: Hub, seconds: float, metrics: Sequence[str]) -> tuple[Times, Series]:
    """Return times and series of each device, of these metrics or of all; an error if there is no such metric.

    They may be a million numbers, so others have their turn between.
    """
    from rocmlab.telemetry.history import METRICS

    if unknown := [name for name in metrics if name not in METRICS]:
        raise WrongRequestError(
            f"unknown metric {unknown[0][:64]!r}",
            "it is not a number of a sample",
            f"one of {', '.join(METRICS)}",
        )
    wanted = [name for name in METRICS if not metrics or name in metrics]
    times: Times = {}
    series: Series = {}
    for name in map(device_id, hub.devices) if hub.devices else hub.history.names:  # no one has watched yet
        for metric in wanted:
            instants, values = hub.history.series(name, metric, seconds)
            if any(value is not None for value in values):
                times[name] = instants
                series.setdefault(name, {})[metric] = values
        await asyncio.sleep(0)
    return times, series


def check_names(names: str) -> None:
    """Raise WrongRequestError unless there are such names of metrics."""
    from rocmlab.telemetry.metrics import NAMES

    if names not in NAMES:
        raise WrongRequestError(
            f"unknown metric names: {names[:64]!r}",
            "the names are a choice of the address, or of the setting GPU_METRICS_NAMES",
            f"metrics?names={NAMES[0]}, or another of {', '.join(NAMES)}",
        )


def exposition(
    snapshot: Snapshot,
    devices: Sequence[Device],
    names: str,
    accept: str,
    leases: Sequence[Row] | None,
    root: Path,
    lab: Mapping[str, str],
) -> tuple[bytes, str]:
    """Return the metrics as Prometheus reads them, and their content type."""
    from rocmlab.telemetry import metrics

    held = None if leases is None else [(lease["device"], lease["notebook"]) for lease in leases]
    return metrics.exposition(snapshot, devices, names=names, accept=accept, leases=held, root=root, lab=lab)
