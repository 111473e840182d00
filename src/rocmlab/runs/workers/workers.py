"""The processes of a run: a worker for each slot, which takes one job after another, and one for HTML."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Iterable, Mapping

from rocmlab.base import confidential
from rocmlab.kernels import memory
from rocmlab.kernels.recipes import Recipe
from rocmlab.runs.jobs import Job
from rocmlab.runs.workers.channel import Link
from rocmlab.runs.workers.converter import Converter
from rocmlab.runs.workers.forking import JobForkServers, group_of, recipe_of

log = logging.getLogger("rocmlab")

WORKER = "rocmlab.runs.workers.serving"


class Workers:
    """What the workers of a run have in common."""

    def __init__(
        self,
        environment: Mapping[str, str],
        *,
        warm: str = "auto",
        fork_servers: JobForkServers | None = None,
        converts: bool = True,
    ) -> None:
        self.environment = confidential.without(environment)  # of each process; a job's own comes with the job
        self.warm = warm  # `auto`: kernels may be forked from a process that has imported the framework; or `off`
        self._fork_servers = fork_servers or JobForkServers()
        self._idle: list[Link] = []
        self._all: set[Link] = set()
        self._ending: set[asyncio.Task[None]] = set()
        self.converter = Converter(self.environment, is_on=converts)

    def expect(self, jobs: Iterable[Job]) -> None:
        """Note which jobs are to come: a fork server is worth its start if several of them use it."""
        self._fork_servers.expect(Counter(map(group_of, jobs)))

    def recipe(self, job: Job, environment: Mapping[str, str]) -> Recipe | None:
        """Return how a fork server for a job's kernel is started; None if the kernel starts cold.

        Which GPUs the job's environment names does not matter.
        """
        return recipe_of(job.kernelspec, environment) if job.kernelspec and self.warm != "off" else None

    def fork_server(self, job: Job, recipe: Recipe | None) -> tuple[str | None, str | None]:
        """Return the address of a fork server for a job's kernel, and, where there should be one, why there is none."""
        if recipe is None:
            return None, None
        try:
            return self._fork_servers.address(group_of(job), recipe)
        except Exception as err:
            log.debug("no fork server for %s", job.name, exc_info=True)
            return None, f"{type(err).__name__}: {err}"

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

    def give_back(self, worker: Link) -> None:
        """Keep a worker for another job."""
        self._idle.append(worker)

    async def end(self, worker: Link) -> None:
        """End a worker that is not to have another job."""
        self._all.discard(worker)
        await worker.close()

    async def close(self) -> None:
        """End what is left."""
        await asyncio.gather(
            asyncio.to_thread(self._fork_servers.close),
            self.converter.close(),
            *self._ending,
            *map(self.end, list(self._all)),
        )
        self._idle.clear()
