"""One job: its lease, its worker, its time, and the end of everything it has started."""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from rocmlab.base import job_tokens, safe
from rocmlab.devices import visibility
from rocmlab.kernels.recipes import Recipe
from rocmlab.notebook.outcome import Outcome
from rocmlab.runs.folder import RunFolder, now
from rocmlab.runs.jobs import INTERRUPTED, Job
from rocmlab.runs.scheduling.place import Place
from rocmlab.runs.scheduling.usage import Meters
from rocmlab.runs.workers.channel import Event as Event
from rocmlab.runs.workers.channel import Link
from rocmlab.runs.workers.claim import Claim
from rocmlab.runs.workers.job_spec import JobSpec
from rocmlab.runs.workers.workers import Workers

LEASED = "ROCMLAB_LEASED"  # environment of a job: the runner has chosen, and leased, its devices
NOTEBOOK, RUN, NAME = "ROCMLAB_NOTEBOOK", "ROCMLAB_RUN", "ROCMLAB_JOB_NAME"  # for people
NOTE = "owner.json"  # the same in its scratch folder, whose name has its token: a forked kernel shows no environment
SOURCE = "notebook.ipynb"  # in its scratch folder: what is executed, whatever is saved over it meanwhile
ATTEMPTS = 3  # at giving a job to a worker; one may die while it has nothing to do
MAX_WARNINGS = 100


@dataclass(frozen=True)
class Limits:
    """How long a job may take, and how much memory."""

    notebook_seconds: float | None = None
    cell_seconds: float | None = None
    memory_bytes: int | None = None  # that its kernel may allocate
    grace_seconds: float = 5.0  # to save, between being asked to stop and being killed


class Supervisor:
    """Runs one job in a worker of the run."""

    def __init__(
        self,
        job: Job,
        place: Place,
        folder: RunFolder,
        limits: Limits,
        see: Callable[[Event], None],
        workers: Workers,
        meters: Meters,
        expected_seconds: float | None = None,
    ) -> None:
        self.job = job
        self.place = place
        self.folder = folder
        self.limits = limits
        self.workers = workers
        self.meters = meters
        self.token = job_tokens.new()
        self._see = see  # called with each event of the job
        self._worker: Link | None = None
        self._begin = 0.0  # when its GPUs were leased
        self._has_job = False  # the worker has it, and is to have no other before it has ended
        self._has_begun = False  # the worker reports it, and can be asked to stop
        self._fault: str | None = None  # why the worker could not be listened to
        self._stopped: Literal["timeout", "interrupted"] | None = None
        self._killed_by_us = False
        self._running_cell: int | None = None
        self._ended: Event | None = None  # the worker's last event
        self._warnings: list[str] = []
        self._claim = Claim(job, place, folder, self._warnings, see, expected_seconds)

    async def run(self) -> Outcome:
        """Wait until the job's GPUs are leased, and run it to its end; afterwards none of its processes is left.

        Raises:
            OSError: no worker could be started or no log opened.
        """
        started: str | None = None
        timer: asyncio.TimerHandle | None = None
        try:
            self._worker = self.workers.take()  # if it is new, it gets ready while the lease is awaited
            recipe = self.workers.recipe(self.job, self._environment())
            self.workers.fork_server(self.job, recipe)  # it also imports meanwhile
            if not await self._claim.settled(lambda: bool(self._stopped)) or self._stopped:
                if self._claim.failure and not self._stopped:
                    failure, is_gone = self._claim.failure, self._claim.is_gone
                    return Outcome("failed", failure, warnings=self._warnings, is_unplaced=is_gone)
                why_cpu = None if self._stopped else self._claim.why_not
                return Outcome("not run", warnings=self._warnings, why_cpu=why_cpu)
            started, self._begin = now(), time.monotonic()
            self.meters.begin(self.job.name, self.place.devices, self.folder.file(self.job.name, "samples"))
            if self.limits.notebook_seconds is not None:
                timer = asyncio.get_running_loop().call_later(self.limits.notebook_seconds, self.stop, "timeout")
            outcome = self._judge(await self._work(recipe))  # whoever stops it from now on is too late
            await self._end_processes()
        except BaseException:
            self._kill_worker()
            await self._end_processes()
            raise
        finally:
            self._claim.release()
            await self._let_worker_go()
            usage = self.meters.end(self.job.name)
            if timer:
                timer.cancel()
        outcome.running_cell, outcome.warnings = self._running_cell, [*self._warnings, *outcome.warnings]
        outcome.started, outcome.seconds, outcome.usage = started, time.monotonic() - self._begin, usage
        return outcome

    async def _end_processes(self) -> None:
        grace_seconds = 0.0 if self._killed_by_us else 2.0
        left = await asyncio.to_thread(job_tokens.end, self.token, grace_seconds)
        if left:
            self._warnings.append(f"processes that could not be ended: {', '.join(map(str, left))}")

    async def _work(self, recipe: Recipe | None) -> int:
        """Have a worker run the job, and return the exit code of one that ended over it, else 0."""
        prefix = f"rocmlab-job-{self.token}-"
        with tempfile.TemporaryDirectory(prefix=prefix, ignore_cleanup_errors=True) as scratch:
            description = Path(scratch, "job.json")
            content = self._spec(scratch, recipe).to_json()
            for _ in range(ATTEMPTS):
                Path(scratch).mkdir(
                    mode=0o700, exist_ok=True
                )  # a worker removes what it has read, or all when it fails
                description.write_text(content, encoding="utf-8")
                if self.job.content is not None:
                    Path(scratch, SOURCE).write_text(self.job.content, encoding="utf-8")
                Path(scratch, NOTE).write_text(json.dumps(self._note()), encoding="utf-8")
                self._worker = self._worker or self.workers.take()
                if self._give(self._worker, description):
                    await self._listen(self._worker)
                if self._ended:
                    return 0
                self._fault = self._worker.fault
                code = await self._worker.exit_code()
                if self._has_begun or self._stopped:
                    break
                self._write_down(self._worker.last_output())
                await self._let_worker_go()
        return code

    def _give(self, worker: Link, description: Path) -> bool:
        locks = self._claim.lease.descriptors if self._claim.lease else ()
        self._has_job = True
        with safe.append(self.folder.file(self.job.name, "log")) as log:
            return worker.send({"job": str(description)}, [log.fileno(), *locks])

    def _write_down(self, text: str) -> None:
        """Add to the job's log why it has no worker."""
        if not text:
            return
        path = self.folder.file(self.job.name, "log")
        with contextlib.suppress(OSError), safe.append(path) as log:  # the disk may be full
            log.write(f"--- a worker exited before the job began\n{text}".encode("utf-8", "backslashreplace"))

    def _spec(self, scratch: str, recipe: Recipe | None) -> JobSpec:
        assert self.job.kernelspec is not None, "a job without one has a problem, and is not run"
        lease = self._claim.lease
        address, why_cold = self.workers.fork_server(self.job, recipe)
        return JobSpec(
            notebook=self.job.notebook,
            output=str(self.folder.file(self.job.name, "notebook")),
            source=None if self.job.content is None else str(Path(scratch, SOURCE)),
            kernelspec=self.job.kernelspec,
            parameters=self.job.parameters,
            environment=self._environment() | {"JUPYTER_RUNTIME_DIR": scratch},  # it goes when the job goes
            cell_seconds=self.limits.cell_seconds,
            memory_bytes=self.limits.memory_bytes,
            lease=lease.as_dict() if lease else None,
            masks=visibility.child_environment(self.place.gpus) if self.place.node else None,
            fork_server=address,
            why_cold=why_cold,
            warning=self.job.warning,
        )

    def _environment(self) -> dict[str, str]:
        note = self._note()
        own = {NOTEBOOK: note["notebook"], RUN: note["run"], NAME: note["job"]}
        return {**self.place.environment(self.workers.environment), **own, job_tokens.NAME: self.token, LEASED: "1"}

    def _note(self) -> dict[str, str]:
        return {"notebook": self.job.notebook, "run": self.folder.path.name, "job": self.job.name}

    async def _listen(self, worker: Link) -> None:
        """Handle a worker's messages, until the job or the worker has ended."""
        while self._ended is None and (event := await worker.event()) is not None:
            self._take(event)

    def _take(self, event: Event) -> None:
        kind = event["event"]
        if kind == "begun":
            self._has_begun = True
            self._claim.release()  # the worker has the lease, and gives it to the kernel
            if self._stopped:
                self.stop(self._stopped)  # it came while the job was handed over
            return
        if kind == "cell":
            self._running_cell = event["index"]
            self.workers.converter.expect(event["number"], event["total"], time.monotonic() - self._begin)
        elif kind == "cell done":
            self._running_cell = None
        elif kind == "warning" and len(self._warnings) < MAX_WARNINGS:
            self._warnings.append(event["message"])
        elif kind == "ended":
            self._ended = event
        self._see(event)

    def stop(self, why: Literal["timeout", "interrupted"]) -> None:
        """Ask the worker to save and leave the notebook; kill it when it does not."""
        if self._ended:
            return
        is_news = why == "interrupted" and not self._stopped
        self._stopped = self._stopped or why
        if self._worker is not None:
            if self._has_begun:
                self._worker.signal(signal.SIGTERM)
            asyncio.get_running_loop().call_later(self.limits.grace_seconds, self._kill_worker)
        if is_news:  # only now: saving comes first
            self._see({"event": "stopping"})

    def kill(self) -> None:
        """End all of the job's processes immediately, without saving."""
        self._stopped = self._stopped or "interrupted"
        self._killed_by_us = True
        self._kill_worker()

    def _kill_worker(self) -> None:
        if self._worker is not None and self._ended is None:
            self._worker.signal(signal.SIGKILL)

    async def _let_worker_go(self) -> None:
        worker, self._worker = self._worker, None
        if worker is None:
            return
        is_sound = self._ended is not None and self._ended.get("is_sound") is True and not self._stopped
        if is_sound or not self._has_job:
            self._has_job = False
            self.workers.give_back(worker)
        else:
            self._has_job = False
            await self.workers.end(worker)

    def _judge(self, code: int) -> Outcome:
        own = Outcome.of_json(self._ended["outcome"]) if self._ended is not None else None
        # It may have ended by itself just when it was asked to stop.
        if own is not None and (not self._stopped or own.status in ("ok", "failed", "timeout")):
            return own
        if self._stopped == "timeout":
            return Outcome("timeout", f"the notebook ran longer than {self.limits.notebook_seconds:g} s")
        if self._stopped == "interrupted":
            return Outcome("killed", INTERRUPTED)
        if self._fault:
            return Outcome("failed", f"its worker was ended: {self._fault}")
        if code == -9:
            return Outcome("killed", "its worker was killed (SIGKILL), perhaps because the memory was full")
        if code < 0:
            return Outcome("killed", f"its worker was ended by signal {-code}")
        return Outcome("failed", f"its worker exited with code {code} before the notebook did; the log shows why")
