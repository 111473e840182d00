"""One sampler for all who watch: read once a second while a viewer watches or records, and not at all otherwise.

All that touches the system happens in threads of its own: the readings, and what takes longer, which devices there are
and which processes use them. If one of them hangs, the event loop and the others continue.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from rocmlab.base import background
from rocmlab.base.errors import Problem
from rocmlab.devices import Device, survey
from rocmlab.devices.discovery import fingerprint
from rocmlab.devices.roots import hanging
from rocmlab.telemetry.history import History
from rocmlab.telemetry.model import GpuProcess, Snapshot, device_id
from rocmlab.telemetry.sampler import Sampler

log = logging.getLogger("rocmlab")

FIND_SECONDS = 2.0  # after which it is looked whether there are other devices
FIND_ALL_SECONDS = 60.0  # after which they are found again in any case: another user may use them now
ASLEEP_SECONDS = 2.0  # between readings while every GPU sleeps
FIRST_SECONDS = 10.0  # how long the first reading waits for the devices
LONG_SECONDS = 10.0  # after which looking for devices or processes is a problem; the processes of before are forgotten
SIDE = {
    "devices": "the devices",
    "processes": "the processes on the devices",
}  # found next to the readings
READINGS = "readings"

T = TypeVar("T")
Attribute = Callable[[Sequence[Device]], Sequence[GpuProcess]]


class Hub:
    """The devices of one host, for many viewers. Its methods belong to one event loop."""

    def __init__(
        self,
        root: Path,
        interval_seconds: float = 1.0,
        attribute: Attribute | None = None,
        processes_seconds: float = 2.0,
    ) -> None:
        """Prepare to watch; nothing is read before there is a viewer, and no processes without `attribute`."""
        self.history = History()
        self.latest: Snapshot | None = None
        self.devices: Sequence[Device] = ()
        self._root = root
        self._interval_seconds = interval_seconds
        self._attribute = attribute
        self._processes_seconds = processes_seconds
        self._processes: tuple[GpuProcess, ...] | None = None
        self._sampler = Sampler((), root)
        self._viewers: set[asyncio.Queue[Snapshot | None]] = set()
        self._keepers = 0
        self._running: asyncio.Task[None] | None = None
        self._side: dict[str, asyncio.Task[None]] = {}  # what runs in the threads next to the readings
        self._side_at: dict[str, float] = {}  # when it was begun
        self._troubles: dict[str, Problem] = {}  # with that, and with the readings
        self._seen: dict[str, Device] = {}  # all there ever were
        self._found_problems: Sequence[Problem] = ()  # of the devices
        self._hardware: object = None  # changes when devices change
        self._found_at = float("-inf")
        self._is_closed = False

    async def watch(self) -> AsyncGenerator[Snapshot, None]:
        """Yield each Snapshot as it is taken, the latest one immediately if it is fresh; a slow viewer misses some.

        Close it (`contextlib.aclosing`) when the viewer is gone: as long as it is open, devices are read.
        """
        if self._is_closed:
            return
        news: asyncio.Queue[Snapshot | None] = asyncio.Queue(maxsize=1)
        if self._running is not None and self.latest is not None:
            news.put_nowait(self.latest)
        self._viewers.add(news)
        self._start()
        try:
            while (snapshot := await news.get()) is not None:
                yield snapshot
        finally:
            self._viewers.discard(news)

    @contextmanager
    def keep(self) -> Iterator[None]:
        """Have the devices read, and the history grow, without a viewer."""
        self._keepers += 1
        self._start()
        try:
            yield
        finally:
            self._keepers -= 1

    @property
    def is_reading(self) -> bool:
        """Whether devices are read at present."""
        return self._running is not None

    @property
    def known(self) -> list[Device]:
        """All devices that there ever were as long as this object lives, those that are missing now too."""
        return list(self._seen.values())

    @property
    def failure(self) -> Problem | None:
        """Why the last reading failed; None if it did not. The next one follows."""
        return self._troubles.get(READINGS)

    @property
    def problems(self) -> Sequence[Problem]:
        """What is wrong with the devices, with reading and finding them, and with finding the processes on them."""
        return (*self._found_problems, *self._troubles.values())

    async def close(self) -> None:
        """End; viewers see their iteration end."""
        self._is_closed = True
        tasks = [task for task in (self._running, *self._side.values()) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for news in self._viewers:
            _offer(news, None)
        with suppress(RuntimeError):  # no thread can be started: its files are closed with the process
            background.start(self._sampler.close)  # which waits for a reading

    def _start(self) -> None:
        if self._running is None and not self._is_closed:
            self._running = asyncio.get_running_loop().create_task(self._run())
            self._running.add_done_callback(self._has_ended)

    def _has_ended(self, task: asyncio.Task[None]) -> None:
        self._running = None
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("the devices are no longer read", exc_info=error)
        elif self._is_wanted():
            self._start()  # a viewer came just as it ended

    def _is_wanted(self) -> bool:
        return bool(self._viewers or self._keepers) and not self._is_closed

    async def _run(self) -> None:
        """Read as long as there is a viewer or a recorder; a reading that fails is reported, and retried."""
        loop = asyncio.get_running_loop()
        due = loop.time()
        self._processes = None  # those of the last viewing may have ended
        if "processes" in self._side and self._side["processes"].done():
            self._side_at.pop("processes", None)  # they are looked for immediately
        self._begin("devices", FIND_SECONDS, self._find)
        await asyncio.wait([self._side["devices"]], timeout=FIRST_SECONDS)
        while self._is_wanted():
            await self._try(READINGS, "the devices could not be read", self._read)
            due = max(due + self._pause_seconds(), loop.time())
            await asyncio.sleep(due - loop.time())

    async def _read(self) -> None:
        self._begin("devices", FIND_SECONDS, self._find)
        if self._attribute is not None:
            self._begin("processes", self._processes_seconds, self._find_processes)
        self._tell_what_hangs()
        if list(self._sampler.devices) != list(self.devices):
            await _in_thread(partial(setattr, self._sampler, "devices", self.devices))
        self._publish(await _in_thread(self._sampler.read))

    def _pause_seconds(self) -> float:
        """Return how long to wait for the next reading: longer while there are only sleeping GPUs."""
        gpus = [sample for name, sample in self.latest.samples.items() if name != "cpu"] if self.latest else []
        is_idle = bool(gpus) and all(sample.is_asleep for sample in gpus)
        return max(self._interval_seconds, ASLEEP_SECONDS) if is_idle else self._interval_seconds

    def _publish(self, snapshot: Snapshot) -> None:
        self.history.add(snapshot)
        self.latest = replace(snapshot, processes=self._processes)
        for news in self._viewers:
            _offer(news, self.latest)

    def _begin(self, name: str, every_seconds: float, work: Callable[[], Any]) -> None:
        """Start one piece of what is done next to the readings if it is due, and not still running."""
        now = asyncio.get_running_loop().time()
        if name in self._side and not self._side[name].done():
            return
        if now >= self._side_at.get(name, float("-inf")) + every_seconds:
            self._side_at[name] = now
            what = f"{SIDE[name]} could not be found"
            self._side[name] = asyncio.get_running_loop().create_task(self._try(name, what, work))

    async def _try(self, name: str, what: str, work: Callable[[], Any]) -> None:
        """Do it, and report errors; the readings continue."""
        try:
            await work()
        except Exception as err:
            if name not in self._troubles:
                log.exception("%s", what)
            self._troubles[name] = Problem(
                what,
                f"{type(err).__name__}: {err}",
                "report it, with the lines of the server's log",
            )
            if name == "processes":
                self._processes = None
        else:
            self._troubles.pop(name, None)

    def _tell_what_hangs(self) -> None:
        now = asyncio.get_running_loop().time()
        for name, task in self._side.items():
            if task.done() or now - self._side_at[name] < LONG_SECONDS:
                continue
            problem = hanging(f"looking for {SIDE[name]} takes longer than {LONG_SECONDS:g} seconds")
            if name not in self._troubles:
                log.warning("%s", problem.what)
            self._troubles[name] = problem
            if name == "processes":
                self._processes = None

    async def _find(self) -> None:
        """Find the devices again if the host has changed."""
        now = asyncio.get_running_loop().time()
        hardware = await _in_thread(lambda: fingerprint(self._root))
        if hardware == self._hardware and now - self._found_at < FIND_ALL_SECONDS:
            return
        devices, problems = await _in_thread(lambda: survey(self._root))
        self._hardware, self._found_at = hardware, now
        gone = {device_id(device) for device in self.devices} - {device_id(device) for device in devices}
        if gone:
            log.warning("gone: %s", ", ".join(sorted(gone)))
        self._seen |= {device_id(device): device for device in devices}
        self.devices, self._found_problems = devices, problems

    async def _find_processes(self) -> None:
        attribute, devices, running = self._attribute, self.devices, self._running
        if attribute is None:
            return
        found = tuple(await _in_thread(lambda: attribute(devices)))
        if self._running is running:  # else they are those of a viewing that has ended
            self._processes = found


def _offer(news: asyncio.Queue[Snapshot | None], snapshot: Snapshot | None) -> None:
    """Give a viewer the newest Snapshot in place of one that it has not taken yet."""
    if news.full():
        news.get_nowait()
    news.put_nowait(snapshot)


async def _in_thread(work: Callable[[], T]) -> T:
    """Return what the work makes in a thread of its own, which is not waited for when the program ends."""
    return await asyncio.wrap_future(background.start(work))
