"""Which versions a job's kernel has: written into the run folder once for each environment, not for each job."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path

from rocmlab.kernels import kernelspec
from rocmlab.packages import overlays, recorded
from rocmlab.runs.jobs import Job
from rocmlab.runs.spec import keys

log = logging.getLogger("rocmlab")


class Environments:
    """The environments of a run's kernels on this machine; those of a cluster's are not known here."""

    def __init__(self, folder: Path, environment: Mapping[str, str], *, is_here: bool) -> None:
        self.folder = folder
        self.environment = environment
        self.is_here = is_here
        self._image = keys.image()
        self._names: dict[tuple[str, str, Path | None], str] = {}

    def of(self, job: Job) -> str | None:
        """Return the file with the environment of a job that starts now; None where it is not known."""
        spec = job.kernelspec
        if not self.is_here or spec is None or not spec.is_local or spec.language != "python":
            return None
        try:
            own = kernelspec.interpreter(spec.specification)
            python, prefix = recorded.find(spec.specification, own, self.environment)
            key = (spec.name, overlays.key(python), prefix)
            if key not in self._names:
                found = recorded.content(spec.name, python, prefix, self._image)
                self._names[key] = recorded.write(found, self.folder)
            return self._names[key]
        except OSError:
            log.warning("the versions of the kernel %s are not recorded", spec.name, exc_info=True)
            return None
