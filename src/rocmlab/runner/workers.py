"""The processes of a run: a worker for each slot, which takes its jobs in turn, and one that converts notebooks."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Iterable, Mapping
from pathlib import Path

from rocmlab.runner.jobs import Job
from rocmlab.runner.link import Link
from rocmlab.runner.warmth import Warmth

WORKER = "rocmlab.runner.serving"
CONVERTER = "rocmlab.runner.converting"
ATTEMPTS = 2  # at a conversion; the process may have been killed for want of memory that others used


class Workers:
    """What the workers of a run have in common.

    Attributes:
        environment: what each process inherits; a job's own comes with the job.
        slots: how many jobs may run at once.
        warm: whether kernels may be forked from a process that has imported the framework; `auto` or `off`.
        engine: `rocmlab`, or `papermill` for the reference.
    """

    def __init__(
        self, environment: Mapping[str, str], slots: int, *, warm: str = "auto", engine: str = "rocmlab"
    ) -> None:
        self.environment = dict(environment)
        self.slots = slots
        self.warm = warm
        self.engine = engine
        self._warmth = Warmth()
        self._idle: list[Link] = []
        self._all: set[Link] = set()
        self._converter: Link | None = None
        self._conversion = asyncio.Lock()
        self._converts = True

    def expect(self, jobs: Iterable[Job]) -> None:
        """Note which jobs are to come: a warm parent is worth its start if several of them use it."""
        self._warmth.expect(jobs)

    def parent(self, job: Job, environment: Mapping[str, str]) -> tuple[str | None, str | None]:
        """Return the address of a warm parent for a job's kernel, and, where there should be one, why there is none.

        Args:
            job: that is to start.
            environment: of the job.
        """
        if self.warm == "off" or self.engine != "rocmlab":
            return None, None
        return self._warmth.address(job, environment)

    def take(self) -> Link:
        """Return a worker for a job: one that is idle, or a new one.

        Raises:
            OSError: no process could be started.
        """
        while self._idle:
            worker = self._idle.pop()
            if worker.is_alive:
                return worker
        worker = Link(WORKER, self.environment)
        self._all.add(worker)
        self._start_converter()  # ready when the first job has ended
        return worker

    def give_back(self, worker: Link) -> None:
        """Keep a worker for another job."""
        self._idle.append(worker)

    async def end(self, worker: Link) -> None:
        """End a worker that is not to have another job."""
        self._all.discard(worker)
        await worker.close()

    async def convert(self, notebook: Path, target: Path) -> str | None:
        """Convert a notebook to HTML, one at a time; return why there is none, None if there is."""
        why = "the run was ended"
        async with self._conversion:
            for _ in range(ATTEMPTS):
                if not self._converts:
                    break
                converter = self._start_converter()
                if converter.send({"notebook": str(notebook), "target": str(target)}):
                    event = await converter.event()
                    if event is not None:
                        message = event.get("message")
                        return None if message is None else str(message)
                code = await converter.exit_code()
                why = converter.fault or converter.last_words().strip() or f"its process ended with {code}"
                await self._end_converter()
        return why[-500:]

    def stop_converting(self) -> None:
        """Convert nothing any more: somebody is in a hurry."""
        self._converts = False
        if self._converter is not None:
            self._converter.signal(signal.SIGKILL)

    def _start_converter(self) -> Link:
        if self._converter is None or not self._converter.is_alive:
            self._converter = Link(CONVERTER, self.environment)
        return self._converter

    async def _end_converter(self) -> None:
        converter, self._converter = self._converter, None
        if converter is not None:
            await converter.close()

    async def close(self) -> None:
        """End what is left."""
        await asyncio.gather(
            asyncio.to_thread(self._warmth.close), self._end_converter(), *map(self.end, list(self._all))
        )
        self._idle.clear()
