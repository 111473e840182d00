"""Where a run's jobs are run: this machine, or whatever offers the same few methods, such as a cluster."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Literal, Protocol

from rocmlab.notebook.outcome import Outcome
from rocmlab.runs.folder import RunFolder
from rocmlab.runs.jobs import Job
from rocmlab.runs.scheduling.place import Place
from rocmlab.runs.scheduling.placement import gigabytes
from rocmlab.runs.scheduling.usage import Meters
from rocmlab.runs.workers.supervisor import Event, Limits, Supervisor
from rocmlab.runs.workers.workers import Workers


class Supervised(Protocol):
    """One job, wherever it is run."""

    @property
    def job(self) -> Job:
        """The job."""

    @property
    def place(self) -> Place:
        """What it gets; its devices may be known only at the event `placed`."""

    async def run(self) -> Outcome:
        """Run it to its end."""

    def stop(self, why: Literal["timeout", "interrupted"]) -> None:
        """Have it saved and left."""

    def kill(self) -> None:
        """End all of its processes immediately."""


class Site(Protocol):
    """Where jobs are run: this machine (`Here`), or a cluster."""

    async def open(
        self, jobs: Sequence[Job], folder: RunFolder, warm: str, changed: Callable[[str | None], None]
    ) -> None:
        """Begin a run of these jobs; `changed` is called when there are more or fewer places, or none ever again."""

    def lack(self, job: Job) -> str:
        """Return what a job waits for when nothing runs and it cannot start."""

    def supervise(self, job: Job, place: Place, limits: Limits, see: Callable[[Event], None]) -> Supervised:
        """Return what runs a job there."""

    async def close(self) -> None:
        """End what the run has there."""


class Here:
    """This machine as the place where a run's jobs are run."""

    def __init__(self, workers: Workers, meters: Meters, expected_seconds: Mapping[str, float] | None = None) -> None:
        self.workers = workers
        self.meters = meters
        self._expected_seconds = expected_seconds or {}  # by the job's name, as far as it is known
        self._folder: RunFolder | None = None

    async def open(
        self, jobs: Sequence[Job], folder: RunFolder, warm: str, changed: Callable[[str | None], None]
    ) -> None:
        """Begin a run; nothing changes here, and `warm` is the workers' business."""
        self._folder = folder
        self.workers.expect(jobs)

    def lack(self, job: Job) -> str:
        """Return what a job waits for when nothing runs and it cannot start."""
        return f"a GPU has {gigabytes(job.vram_bytes)} free"

    def supervise(self, job: Job, place: Place, limits: Limits, see: Callable[[Event], None]) -> Supervisor:
        """Return what runs a job at a place of this machine."""
        assert self._folder is not None, "it is opened first"
        expected = self._expected_seconds.get(job.name)
        return Supervisor(job, place, self._folder, limits, see, self.workers, self.meters, expected)

    async def close(self) -> None:
        """End nothing: the workers are the run's."""
