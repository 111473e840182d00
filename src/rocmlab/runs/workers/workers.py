"""The processes of a run: a worker for each slot, which takes its jobs in turn, and one that converts notebooks."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import Iterable, Mapping
from pathlib import Path

from rocmlab.base import confidential
from rocmlab.kernels import memory
from rocmlab.runs.jobs import Job
from rocmlab.runs.workers.channel import Link
from rocmlab.runs.workers.forking import JobForkServers

WORKER = "rocmlab.runs.workers.serving"
CONVERTER = "rocmlab.runs.workers.converting"
CONVERSION_SECONDS = 60.0  # for one notebook; then the process is killed
QUICK_SECONDS = 5.0  # a job that is past half of its cells in that time
ATTEMPTS = 2  # at a conversion; the process may have been killed for lack of memory that others used


class Workers:
    """What the workers of a run have in common.

    Attributes:
        environment: what each process inherits; a job's own comes with the job.
        slots: how many jobs may run at once.
        warm: whether kernels may be forked from a process that has imported the framework; `auto` or `off`.
        converts: whether executed notebooks become HTML here.
    """

    def __init__(
        self,
        environment: Mapping[str, str],
        slots: int,
        *,
        warm: str = "auto",
        fork_servers: JobForkServers | None = None,
        converts: bool = True,
    ) -> None:
        self.environment = confidential.without(environment)
        self.slots = slots
        self.warm = warm
        self._fork_servers = fork_servers or JobForkServers()
        self._idle: list[Link] = []
        self._all: set[Link] = set()
        self._ending: set[asyncio.Task[None]] = set()
        self._converter: Link | None = None
        self._conversion = asyncio.Lock()
        self._converts = converts

    def expect(self, jobs: Iterable[Job]) -> None:
        """Note which jobs are to come: a fork server is worth its start if several of them use it."""
        self._fork_servers.expect(jobs)

    def fork_server(self, job: Job, environment: Mapping[str, str]) -> tuple[str | None, str | None]:
        """Return the address of a fork server for a job's kernel, and, where there should be one, why there is none.

        Args:
            job: that is to start.
            environment: of the job.
        """
        if self.warm == "off":
            return None, None
        return self._fork_servers.address(job, environment)

    def take(self) -> Link:
        """Return a worker for a job: one that is idle, or a new one.

        Raises:
            OSError: no process could be started.
        """
        while self._idle:
            worker = self._idle.pop()
            if worker.is_alive:
                return worker
            ending = asyncio.get_running_loop().create_task(self.end(worker))
            self._ending.add(ending)
            ending.add_done_callback(self._ending.discard)
        worker = Link(WORKER, self.environment)
        memory.make_expendable(worker.process.pid)
        self._all.add(worker)
        return worker

    def expect_conversion(self, cell: int, cells: int, seconds: float) -> None:
        """Get ready to convert if a job may end soon; that takes half a second, and memory until the run is over.

        Args:
            cell: that begins, from 1.
            cells: of the notebook.
            seconds: for which the job has run. One that takes long may end half a second later.
        """
        is_quick = seconds < QUICK_SECONDS and 2 * cell > cells
        if self._converts and (is_quick or cell >= cells):
            with contextlib.suppress(OSError):  # said when there is something to convert
                self._start_converter()

    def give_back(self, worker: Link) -> None:
        """Keep a worker for another job."""
        self._idle.append(worker)

    async def end(self, worker: Link) -> None:
        """End a worker that is not to have another job."""
        self._all.discard(worker)
        await worker.close()

    async def convert(self, notebook: Path, target: Path) -> str | None:
        """Convert a notebook to HTML, one at a time; return why there is none, None if there is."""
        async with self._conversion:
            try:
                why = await self._convert({"notebook": str(notebook), "target": str(target)})
            except asyncio.TimeoutError:
                why = f"it took longer than {CONVERSION_SECONDS:g} s"
                await self._end_converter()
            except OSError as err:
                why = f"no process could be started for it: {err}"
        return None if why is None else why[-500:]

    async def _convert(self, order: dict[str, str]) -> str | None:
        why = ""
        for _ in range(ATTEMPTS):
            if not self._converts:
                break
            converter = self._start_converter()
            if converter.send(order):
                event = await asyncio.wait_for(converter.event(), CONVERSION_SECONDS)
                if event is not None:
                    return None if event.get("message") is None else str(event["message"])
            code = await converter.exit_code()
            why = converter.fault or converter.last_words().strip() or f"its process ended with {code}"
            await self._end_converter()
        return why if self._converts else "the run was ended"

    def stop_converting(self) -> None:
        """Convert nothing any more: somebody is in a hurry."""
        self._converts = False
        if self._converter is not None:
            self._converter.signal(signal.SIGKILL)

    def _start_converter(self) -> Link:
        if self._converter is None or not self._converter.is_alive:
            self._converter = Link(CONVERTER, self.environment)
            memory.make_expendable(self._converter.process.pid)
        return self._converter

    async def _end_converter(self) -> None:
        converter, self._converter = self._converter, None
        if converter is not None:
            await converter.close()

    async def close(self) -> None:
        """End what is left."""
        self._converts = False
        await asyncio.gather(
            asyncio.to_thread(self._fork_servers.close),
            self._end_converter(),
            *self._ending,
            *map(self.end, list(self._all)),
        )
        self._idle.clear()
