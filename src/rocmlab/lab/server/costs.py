"""What the notebooks of one server have taken of GPUs since it was started: hours and energy of their leases.

A lease is a GPU's exclusive right, so what the GPU uses meanwhile is its notebook's, idle draw included. Only leased
GPUs are read, every ten seconds, whether a page is open or not; between two readings a card's own count is believed.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

from rocmlab.base import background, live, prices
from rocmlab.base.errors import RocmlabError
from rocmlab.devices import Device
from rocmlab.telemetry import ticks
from rocmlab.telemetry.model import GpuProcess, Snapshot, device_id
from rocmlab.telemetry.sampler import Sampler

log = logging.getLogger("rocmlab")

LATE_SECONDS = 20.0  # after the start of a lease; where the first reading is later, its energy is more than was read
PROCESSES_SECONDS = 60.0  # between two looks at who else uses the leased GPUs: they cost more than all readings

Row = dict[str, Any]
Find = Callable[[Sequence[Device]], Awaitable[Sequence[GpuProcess]]]


@dataclass
class _Use:
    """One lease: of its kernel, which keeps it over restarts."""

    kernel_id: str
    notebook: str
    devices: tuple[Device, ...]
    started: float  # Unix time of the lease
    seen: float  # Unix time until when it was there
    before: dict[str, float] = field(default_factory=dict)  # joules that the sampler had counted when it began to read
    joules: dict[str, float | None] = field(default_factory=dict)  # in all, by device
    is_whole: bool = True  # whether that is all its GPUs used
    is_shared: bool = False  # others were seen on its GPUs

    @property
    def gpu_seconds(self) -> float:
        return max(0.0, self.seen - self.started) * len(self.devices)

    @property
    def energy_joules(self) -> float | None:
        """What is known of it; None where nothing is."""
        known = [joules for joules in self.joules.values() if joules is not None]
        return sum(known) if known else None


class Costs:
    """Follows the leases of one server's kernels."""

    def __init__(
        self,
        root: Path,
        leased: Callable[[], Awaitable[Sequence[Row]]],
        find: Find,
        keep: Callable[[Snapshot], None] = lambda snapshot: None,
    ) -> None:
        """Prepare; nothing is read yet.

        Args:
            root: of the host.
            leased: returns the kernels that have a lease now: kernel_id, notebook (None: it has none), kernel_name,
                since (when the lease began) and gpus, the Devices.
            find: returns the processes on these devices, with their owners.
            keep: gets each reading, for the history.
        """
        self.rows: list[Row] = []  # by notebook, those of the last reading
        self._leased, self._find, self._keep = leased, find, keep
        self._sampler = Sampler((), root, errors_seconds=math.inf)
        self._uses: dict[tuple[str, str], _Use] = {}  # by kernel and start of its lease
        self._ended: dict[str, Row] = {}  # by notebook, those that have ended
        self._looked = -math.inf
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Follow the leases from now on."""
        self._task = asyncio.ensure_future(self._run())

    async def close(self) -> None:
        """Stop, and close what is open."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
        await asyncio.wrap_future(background.start(self._sampler.close))  # which waits for a reading

    @property
    def reading(self) -> list[str]:
        """The GPUs, by `device_id`, that are leased, and read for that."""
        return [device_id(device) for use in self._uses.values() for device in use.devices]

    async def _run(self) -> None:
        while True:
            try:
                await self.read()
            except Exception:
                log.exception("what notebooks cost cannot be read")
            await asyncio.sleep(ticks.pause(time.time()))

    async def read(self) -> None:
        """Bring everything up to date."""
        now, kernels = time.time(), await self._leased()
        present = {(str(each["kernel_id"]), str(each["since"])): each for each in kernels}
        for key, each in present.items():
            self._note(key, each, now)
        for key in self._uses.keys() - present.keys():
            self._end(self._uses.pop(key))
        if self._uses:
            await self._read_energy()
            await self._look_for_others(now)
        elif self._sampler.devices:
            self._sampler.devices = ()
        self.rows = self._told()

    def _note(self, key: tuple[str, str], kernel: Mapping[str, Any], now: float) -> None:
        devices, notebook = tuple(kernel["gpus"]), kernel["notebook"] or kernel["kernel_name"] or "a kernel"
        use = self._uses.get(key)
        if use is None:
            started = datetime.fromisoformat(key[1].replace("Z", "+00:00")).timestamp()
            use = self._uses[key] = _Use(key[0], notebook, devices, started, now, is_whole=now - started < LATE_SECONDS)
        use.seen, use.notebook = now, notebook

    def _end(self, use: _Use) -> None:
        self._ended[use.notebook] = _added(self._ended.get(use.notebook), use)

    async def _read_energy(self) -> None:
        devices = {device_id(device): device for use in self._uses.values() for device in use.devices}
        if list(self._sampler.devices) != list(devices.values()):
            self._sampler.devices = list(devices.values())
        snapshot = await asyncio.wrap_future(background.start(self._sampler.read))
        self._keep(snapshot)
        for use in self._uses.values():
            for name in map(device_id, use.devices):
                joules = snapshot.energy_joules.get(name)
                before = use.before.setdefault(name, joules or 0.0)
                use.joules[name] = None if joules is None else joules - before
                use.is_whole = use.is_whole and self._sampler.is_whole(name)

    async def _look_for_others(self, now: float) -> None:
        """Note on whose GPUs other processes are: the energy is then not of the notebook alone."""
        young = ticks.EVERY_SECONDS  # until then drivers may list the processes of before
        settled = [use for use in self._uses.values() if now - use.started >= young]
        if now - self._looked < PROCESSES_SECONDS or not settled:
            return
        self._looked = now
        try:
            found = await self._find([device for use in settled for device in use.devices])
        except RocmlabError as err:
            log.debug("who else uses the leased GPUs is not known: %s", err)
            return
        for use in settled:
            names = set(map(device_id, use.devices))
            owners = [process.owner for process in found if process.device in names]
            if any(owner is None or owner.kernel_id != use.kernel_id for owner in owners):
                use.is_shared = True

    def _told(self) -> list[Row]:
        """Return a row for each notebook, those of kernels that work first."""
        rows = dict(self._ended)
        for use in self._uses.values():
            rows[use.notebook] = _added(rows.get(use.notebook), use, is_active=True)
        ordered = sorted(rows.values(), key=lambda row: (not row["kernel_ids"], row["notebook"]))
        money = _prices()
        return [{**row, **_amount(money, row)} for row in ordered]


def _added(row: Row | None, use: _Use, *, is_active: bool = False) -> Row:
    """Return what a notebook has taken with one more lease; unknown and not whole stay so."""
    before = row or {"since_seconds": use.started, "gpu_seconds": 0.0, "energy_joules": None, "kernel_ids": []}
    joules = [each for each in (before["energy_joules"], use.energy_joules) if each is not None]
    is_known = len(use.joules) == len(use.devices) and None not in use.joules.values()
    return {
        "notebook": use.notebook,
        "kernel_ids": [*before["kernel_ids"], use.kernel_id] if is_active else [],
        "since_seconds": min(before["since_seconds"], use.started),
        "gpu_seconds": round(before["gpu_seconds"] + use.gpu_seconds, 1),
        "energy_joules": round(sum(joules), 1) if joules else None,
        "is_whole": before.get("is_whole", True) and use.is_whole and is_known,
        "is_shared": before.get("is_shared", False) or use.is_shared,
    }


def _prices() -> prices.Prices | None:
    try:
        return prices.parse(live.values())
    except RocmlabError:
        return None  # the panel reports it


def _amount(money: prices.Prices | None, row: Mapping[str, Any]) -> Row:
    found = money and money.amount(row["energy_joules"], row["gpu_seconds"], row["is_whole"])
    return {
        "amount": found.value if found else None,
        "currency": found.currency if found else None,
        "is_amount_whole": found.is_whole if found else None,
    }
