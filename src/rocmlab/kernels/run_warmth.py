"""The warm parents of a run: a process for each kernelspec that several of its jobs use, which forks their kernels.

What is fixed when a framework is imported, such as the number of threads, has to be the same for all that is forked
from one parent. A job for which there is no parent starts its kernel cold.
"""

from __future__ import annotations

import functools
import itertools
import json
import logging
import tempfile
from collections import Counter
from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from rocmlab.kernels import kernel, memory
from rocmlab.runs.jobs import Job, Request

if TYPE_CHECKING:
    from rocmlab.kernels.forkserver import Parent

log = logging.getLogger("rocmlab")

LEAST_JOBS = 2  # the first waits for the parent's import as it would for its own
MOST_RESTARTS = 2
LOOKED_AT = 50  # of the requests, before they are examined


class Warmth:
    """Starts parents when the first job needs them, and ends them with the run."""

    def __init__(self) -> None:
        self._jobs: Counter[Hashable] = Counter()
        self._parents: dict[str, Parent] = {}
        self._restarts: Counter[str] = Counter()
        self._early: set[str] = set()  # keys of parents that no job has asked for yet

    @property
    def parents(self) -> list[Parent]:
        """Return those that were started and not ended."""
        return list(self._parents.values())

    def expect(self, jobs: Iterable[Job]) -> None:
        """Note which jobs are to come."""
        self._jobs.update(map(_group, jobs))

    def begin(self, requests: Iterable[Request], environment: Mapping[str, str]) -> None:
        """Start a parent for the kernelspec that most of the first jobs will use, before they are examined.

        That takes as long as an import, and both go on at the same time. What looks as if it could not be run is left
        alone: whoever examines it says why.

        Args:
            requests: in the order in which they were asked for.
            environment: that of a job which asks for nothing in particular.
        """
        names = Counter(filter(None, map(_kernel_name, itertools.islice(requests, LOOKED_AT))))
        for name, count in names.most_common(1):
            if count < LEAST_JOBS:
                return
            try:
                self._begin(name, environment)
            except Exception:
                log.debug("no early warm parent for %s", name, exc_info=True)

    def _begin(self, name: str, environment: Mapping[str, str]) -> None:
        if recipe := _recipe(name, environment):
            self._parents[recipe.key] = recipe.start()
            self._early.add(recipe.key)

    def address(self, job: Job, environment: Mapping[str, str]) -> tuple[str | None, str | None]:
        """Return the address of a parent for a job's kernel, and, where there should be one, why there is none.

        Args:
            job: whose kernel is to start.
            environment: of its kernel.
        """
        if job.kernel is None:
            return None, None
        try:
            return self._address(job, job.kernel, environment)
        except Exception as err:  # such as a kernelspec that is gone: a job without a parent says itself what it lacks
            log.debug("no warm parent for %s", job.name, exc_info=True)
            return None, f"{type(err).__name__}: {err}"

    def _address(self, job: Job, name: str, environment: Mapping[str, str]) -> tuple[str | None, str | None]:
        recipe = _recipe(name, environment)
        if recipe is None:
            return None, None
        key = recipe.key
        parent = self._parents.get(key)
        if parent is None and self._jobs[_group(job)] < LEAST_JOBS:
            return None, None
        if parent is not None and parent.why and parent.seconds is not None and self._restarts[key] < MOST_RESTARTS:
            self._restarts[key] += 1  # it has served, and was killed since
            parent.close()
            parent = None
        self._early.discard(key)
        if parent is None:
            self._close_early()  # they were not what the jobs want
            parent = self._parents[key] = recipe.start()
        return (None, parent.why) if parent.why else (parent.address, None)

    def _close_early(self) -> None:
        while self._early:
            self._parents.pop(self._early.pop()).close()

    def close(self) -> None:
        """End all parents."""
        while self._parents:
            self._parents.popitem()[1].close()


@dataclass(frozen=True)
class _Recipe:
    """What a parent is started with."""

    key: str  # what differs whenever two kernels cannot have the same parent
    python: str
    modules: tuple[str, ...]
    environment: dict[str, str]

    def start(self) -> Parent:
        """Start it."""
        from rocmlab.kernels import forkserver

        parent = forkserver.start(self.python, self.modules, self.environment, Path(tempfile.gettempdir()))
        if parent.pid is not None:
            memory.make_expendable(parent.pid)
        return parent


def _recipe(name: str, environment: Mapping[str, str]) -> _Recipe | None:
    """Return how a parent for kernels of a kernelspec is started; None if they are to be started cold."""
    specification, _ = kernel.find(name)
    if not kernel.is_local(specification.get("metadata") or {}):
        return None
    from rocmlab.kernels import forkserver

    modules = forkserver.modules_for(name, specification)
    if not modules:
        return None
    python = kernel.interpreter(specification)
    inherited = kernel.environment(specification, environment)
    return _Recipe(forkserver.key(python, modules, inherited), python, modules, inherited)


@functools.lru_cache(maxsize=LOOKED_AT)
def _name_in(path: str) -> str | None:
    """Return the kernelspec that a notebook names, if it asks for nothing else."""
    try:
        metadata = json.loads(Path(path).read_bytes())["metadata"]
        return None if "rocmlab" in metadata else str(metadata["kernelspec"]["name"])
    except (OSError, ValueError, TypeError, LookupError):
        return None


def _kernel_name(request: Request) -> str | None:
    if request.notebook is None or request.gpus is not None:
        return None
    return request.kernel or _name_in(request.notebook)


def _group(job: Job) -> Hashable:
    """Return what jobs share that get the same kernel, and the same number of threads for it."""
    return job.kernel, job.gpus
