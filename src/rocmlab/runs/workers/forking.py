"""The fork servers of a run: one for each kernelspec that several of its jobs use, which forks their kernels.

What is fixed when a framework is imported, such as the number of threads, has to be the same for all that one fork
server forks. A job without one starts its kernel cold.
"""

from __future__ import annotations

import functools
import itertools
import json
import logging
import tempfile
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Literal

from rocmlab.kernels import kernelspec, recipes
from rocmlab.kernels.fork_server import ForkServer
from rocmlab.kernels.fork_servers import ForkServers
from rocmlab.kernels.kernelspec import Kernelspec
from rocmlab.kernels.recipes import Recipe
from rocmlab.packages import overlays
from rocmlab.runs.jobs import Job, Request

log = logging.getLogger("rocmlab")

MIN_JOBS = 2  # the first waits for the fork server's import as it would for its own
MAX_RESTARTS = 2
MAX_EARLY_REQUESTS = 50  # that are read before they are examined

Group = tuple["str | None", "int | Literal['all'] | None"]  # kernel and GPUs: jobs with the same get the same threads


class JobForkServers:
    """Starts fork servers when the first job needs them, and ends them with the run."""

    def __init__(self) -> None:
        self._jobs: Counter[Group] = Counter()
        self._servers = ForkServers(MAX_RESTARTS)
        self._early: set[str] = set()  # keys of those that no job has requested yet

    def all(self) -> list[ForkServer]:
        """Return those that were started and not ended."""
        return self._servers.all()

    def expect(self, groups: Mapping[Group, int]) -> None:
        """Note how many jobs of each group are to come."""
        self._jobs.update(groups)

    def begin(self, requests: Iterable[Request], environment: Mapping[str, str]) -> None:
        """Start a fork server for the kernelspec that most of the first jobs will use, before they are examined.

        It imports while they are. A request that looks invalid is ignored: whoever examines it reports why.
        The environment is that of a job without requests for resources.
        """
        names = Counter(filter(None, map(_kernel_name, itertools.islice(requests, MAX_EARLY_REQUESTS))))
        for name, count in names.most_common(1):
            if count < MIN_JOBS:
                return
            try:
                spec = kernelspec.find(name)
                if kernelspec.gpus(spec.specification) not in (0, kernelspec.ONE):
                    return  # its jobs get the threads of several GPUs
                if recipe := recipe_of(spec, environment):
                    self._start(recipe)
                    self._early.add(recipe.key)
            except Exception:
                log.debug("no early fork server for %s", name, exc_info=True)

    def address(self, group: Group, recipe: Recipe) -> tuple[str | None, str | None]:
        """Return the address of a fork server, and, where one is missing that should be there, why."""
        if not self._servers.find(recipe.key):
            if self._jobs[group] < MIN_JOBS:
                return None, None
            while self._early:  # they are not what the jobs need
                self._servers.end(self._early.pop())
        self._early.discard(recipe.key)
        server = self._start(recipe)
        return (None, server.why) if server.why else (server.address, None)

    def _start(self, recipe: Recipe) -> ForkServer:
        return self._servers.get(recipe, Path(tempfile.gettempdir()))

    def close(self) -> None:
        """End all fork servers."""
        self._servers.close()


def group_of(job: Job) -> Group:
    """Return what jobs share that can have the same fork server."""
    return job.kernel, job.gpus


def recipe_of(spec: Kernelspec, environment: Mapping[str, str]) -> Recipe | None:
    """Return how a fork server for the kernel of a job is started; None if the kernel has to start cold."""
    if not spec.is_local:
        return None
    specification = overlays.applied(spec.specification, environment)
    return recipes.recipe(spec.name, specification, kernelspec.environment(specification, environment))


@functools.lru_cache(maxsize=MAX_EARLY_REQUESTS)
def _name_in(path: str) -> str | None:
    """Return the kernelspec that a notebook names, if it requests nothing else."""
    try:
        metadata = json.loads(Path(path).read_bytes())["metadata"]
        return None if "rocmlab" in metadata else str(metadata["kernelspec"]["name"])
    except (OSError, ValueError, TypeError, LookupError):
        return None


def _kernel_name(request: Request) -> str | None:
    if request.notebook is None or request.gpus is not None:
        return None
    return request.kernel or _name_in(request.notebook)
