"""The warm parents of a run: a process for each kernelspec that several of its jobs use, which forks their kernels.

What is fixed when a framework is imported, such as the number of threads, has to be the same for all that is forked
from one parent. A job for which there is no parent starts its kernel cold.
"""

from __future__ import annotations

import logging
import tempfile
from collections import Counter
from collections.abc import Hashable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from rocmlab.runner.engine import kernel
from rocmlab.runner.jobs import Job

if TYPE_CHECKING:
    from rocmlab.runner.warm import Parent

log = logging.getLogger("rocmlab")

LEAST_JOBS = 2  # the first waits for the parent's import as it would for its own
MOST_RESTARTS = 2


class Warmth:
    """Starts parents when the first job needs them, and ends them with the run."""

    def __init__(self) -> None:
        self._jobs: Counter[Hashable] = Counter()
        self._parents: dict[str, Parent] = {}
        self._restarts: Counter[str] = Counter()

    def expect(self, jobs: Iterable[Job]) -> None:
        """Note which jobs are to come."""
        self._jobs.update(map(_group, jobs))

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
        specification, _ = kernel.find(name)
        if not kernel.is_local(specification.get("metadata") or {}):
            return None, None
        from rocmlab.runner import warm

        modules = warm.modules_for(name, specification)
        if not modules:
            return None, None
        python = kernel.interpreter(specification)
        inherited = kernel.environment(specification, environment)
        key = warm.key(python, modules, inherited)
        parent = self._parents.get(key)
        if parent is None and self._jobs[_group(job)] < LEAST_JOBS:
            return None, None
        if parent is not None and parent.why and parent.seconds is not None and self._restarts[key] < MOST_RESTARTS:
            self._restarts[key] += 1  # it has served, and was killed since
            parent.close()
            parent = None
        if parent is None:
            parent = self._parents[key] = warm.start(python, modules, inherited, Path(tempfile.gettempdir()))
        return (None, parent.why) if parent.why else (parent.address, None)

    def close(self) -> None:
        """End all parents."""
        while self._parents:
            self._parents.popitem()[1].close()


def _group(job: Job) -> Hashable:
    """Return what jobs share that get the same kernel, and the same number of threads for it."""
    return job.kernel, job.gpus
