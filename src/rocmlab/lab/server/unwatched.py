"""Keeps the history while no page is open: of the GPUs that are awake in any case, each ten seconds.

GPUs that a kernel of this server has leased are left to `costs`, which reads them awake or not.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Callable, Collection
from pathlib import Path

from rocmlab.base import background
from rocmlab.lab.server.telemetry import Telemetry
from rocmlab.lab.server.wire import failure
from rocmlab.telemetry import ticks
from rocmlab.telemetry.awake import Awake
from rocmlab.telemetry.model import Snapshot, device_id
from rocmlab.telemetry.sampler import Sampler

log = logging.getLogger("rocmlab")


class Unwatched:
    """Reads for one server's history what no one watches."""

    def __init__(self, root: Path, telemetry: Telemetry, others: Callable[[], Collection[str]]) -> None:
        """Prepare; nothing is read yet.

        Args:
            root: of the host.
            telemetry: of the server, which has the history.
            others: returns the devices, by `device_id`, that are read for something else.
        """
        self._telemetry, self._others = telemetry, others
        self._awake = Awake(root)
        self._sampler = Sampler((), root, errors_seconds=math.inf)
        self._task: asyncio.Task[None] | None = None
        self._reported = ""

    def start(self) -> None:
        """Read from now on."""
        self._task = asyncio.ensure_future(self._run())

    async def close(self) -> None:
        """Stop, and close what is open."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
        await asyncio.wrap_future(background.start(self._sampler.close))  # which waits for a reading

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(ticks.pause(time.time()))
            try:
                await self.read()
            except Exception as err:
                self._report(failure("the GPUs cannot be sampled", err)["why"])

    def _report(self, why: str) -> None:
        if why != self._reported:
            log.warning("the history is not kept while no page is open: %s", why)
        self._reported = why

    async def read(self) -> None:
        """Add a point to the history; not while GPUs are read for viewers, whose points are the better ones."""
        if (await self._telemetry.hub()).is_reading:
            return
        others = frozenset(self._others())
        snapshot = await asyncio.wrap_future(background.start(lambda: self._read(others)))
        if snapshot is not None:
            self._telemetry.keep(snapshot)

    def _read(self, others: Collection[str]) -> Snapshot | None:
        """Return what the GPUs report; None where there is none to read, or it is too late to read together."""
        devices = [device for device in self._awake.devices() if device_id(device) not in others]
        if list(self._sampler.devices) != devices:
            self._sampler.devices = devices
        return self._sampler.read() if devices and ticks.is_punctual(time.time()) else None
