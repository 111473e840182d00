"""The loop of a run: which job starts when, what is retried, and how signals and failures end it."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import socket
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol

from rocmlab.devices import Device
from rocmlab.notebook.outcome import Outcome
from rocmlab.runs import space
from rocmlab.runs.folder import RunFolder, now
from rocmlab.runs.jobs import STOPPED, Job, Result, not_run
from rocmlab.runs.outcome import resume, retries
from rocmlab.runs.outcome.results import Run, identify, result_of, versions
from rocmlab.runs.scheduling.place import Place
from rocmlab.runs.scheduling.plan import Before, Queue, Rules, longest_first
from rocmlab.runs.scheduling.scheduler import Scheduler
from rocmlab.runs.scheduling.usage import Meters
from rocmlab.runs.workers.environments import Environments
from rocmlab.runs.workers.executor import Here, Site, Supervised
from rocmlab.runs.workers.supervisor import Event, Limits
from rocmlab.runs.workers.workers import Workers

log = logging.getLogger("rocmlab")

NO_HTML = "no HTML: "
CONVERT_TIMEOUT_SECONDS = 5.0  # for what is left to convert when the run was interrupted and its jobs have ended
POLL_SECONDS = 2.0  # between checks whether the memory that a job needs is free


class Display(Protocol):
    """What a user sees while the run continues."""

    def started(self, job: Job, place: Place) -> None:
        """A job starts."""

    def event(self, job: Job, event: Event) -> None:
        """A job's worker reports something, or the run does: that the job is retried."""

    def finished(self, result: Result) -> None:
        """A job has finished, or could not be run."""

    def mute(self) -> None:
        """Write nothing more: the terminal is closed."""


class Runner:
    """The loop of a run: it starts jobs while devices are free, and ends when all have finished."""

    def __init__(
        self,
        jobs: Sequence[Job],
        folder: RunFolder,
        slots: Scheduler,
        display: Display,
        limits: Limits,
        workers: Workers,
        meters: Meters,
        rules: Rules,
        before: Before,
        site: Site,
    ) -> None:
        self.site = site
        self.environments = Environments(folder.path, workers.environment, is_here=isinstance(site, Here))
        self.jobs = list(jobs)
        self.keys = {job.name: job.key for job in jobs}
        self.folder = folder
        self.slots = slots
        self.display = display
        self.limits = limits
        self.rules = rules
        self.before = before
        self.workers = workers
        self.meters = meters
        self.results: dict[str, Result] = dict(before.results)
        self.attempts: dict[str, list[dict[str, Any]]] = {name: list(each) for name, each in before.attempts.items()}
        self.repeats = retries.Repeats(rules.retries)
        self.gone: str | None = None  # why the cluster is lost
        self.full: str | None = None  # which disk is nearly full, so that no further job starts
        self.why_cpu: dict[str, str] = {}  # of jobs that waited too long for several GPUs
        self.notes: dict[tuple[Device, ...], str] = {}  # for the report: why a GPU rested the last time
        self.reported: set[str] = set()  # jobs of which was reported what they wait for
        self.waiting = Queue((), slots)
        self.running: dict[asyncio.Task[None], Supervised] = {}  # until their notebooks are converted
        self.finished: list[asyncio.Task[None]] = []  # of these
        self.unfinished: set[str] = set()  # jobs whose processes run
        self.freed = asyncio.Event()  # a job has released its place, or there are other places
        self.signals = 0
        self.failed: str | None = None  # the job for which `--fail-fast` stops the run

    async def run(
        self, earlier: Mapping[str, Any] | None, expected_seconds: Mapping[str, float], options: Mapping[str, Any]
    ) -> Run:
        """Run all jobs; the arguments are those of `runs.run.run`."""
        started, begin = now(), time.monotonic()
        self._log_start(options)
        with self._signals():
            try:
                await self._line_up(expected_seconds)
                earlier_ones = [self._convert_earlier(result) for result in self.before.results.values()]
                await asyncio.gather(self._work(), *earlier_ones)
            except BaseException:
                await self._end_all()
                raise
            finally:
                await asyncio.gather(self.workers.close(), self.site.close())
                self.meters.close()
        for job in self.waiting:  # the run was interrupted, or stopped
            self._finish(replace(not_run(job), warnings=self._why_not(), attempts=self.attempts.get(job.name, [])))
        run = Run(
            folder=self.folder,
            results=[self.results[job.name] for job in self.jobs],
            started=self.before.started or started,
            seconds=self.before.seconds + time.monotonic() - begin,
            is_interrupted=self.signals > 0,
            slots=self.slots.count,
            versions=versions(),
            earlier=earlier,
            notes=[*self.before.notes, *self.notes.values(), *self._how_to_resume()],
        )
        run.save()
        self.folder.log("run finished", status=run.as_dict()["run"]["status"])
        return run

    def _why_not(self) -> list[str]:
        if self.gone:
            return [f"not started: the cluster was lost: {self.gone}"]
        if self.full:
            return [f"not started: {self.full}"]
        return [f"not started: {self.failed} failed, and --fail-fast stops there"] if self.failed else []

    def _how_to_resume(self) -> list[str]:
        if self.full:
            return [f"{self.full}; when space is free: rocmlab run --resume {self.folder.path.name}"]
        if self.gone is None:
            return []
        return [f"the cluster was lost: {self.gone}; when it is back: rocmlab run --resume {self.folder.path.name}"]

    def _log_start(self, options: Mapping[str, Any]) -> None:
        who = {"pid": os.getpid(), "host": socket.gethostname(), "slots": self.slots.count}
        if self.before.started:
            skipped = list(self.before.results)
            self.folder.log("run resumed", run=self.folder.path.name, **who, skipped=skipped, notes=self.before.notes)
        else:
            jobs = [resume.described(job) for job in self.jobs]
            self.folder.log("run started", run=self.folder.path.name, **who, jobs=jobs, options=options)

    async def _line_up(self, expected_seconds: Mapping[str, float]) -> None:
        possible: list[Job] = []
        for job in self.jobs:
            if job.name in self.results:
                continue
            problem = job.problem or self.slots.problem(job)
            if problem:
                self._finish(replace(not_run(job, problem), attempts=self.attempts.get(job.name, [])))
            else:
                possible.append(job)
        self.waiting = Queue(longest_first(possible, expected_seconds), self.slots)
        await self.site.open(possible, self.folder, self.rules.warm, self._places_changed)

    def _places_changed(self, gone: str | None) -> None:
        self.gone = self.gone or gone
        self.freed.set()

    @property
    def _may_start(self) -> bool:
        return not (self.signals or self.failed or self.gone or self.full)

    async def _work(self) -> None:
        while True:
            self.slots.wake(is_idle=False)
            while self._may_start and self._start_next():
                pass
            while self.finished:
                task = self.finished.pop()
                del self.running[task]
                task.result()  # raises: our own error must not be lost
            self.freed.clear()
            if not self.running:
                if not self._may_start or not self.waiting:
                    return
                if self.slots.wake(is_idle=True):
                    continue
                self._report_waiting()
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self.freed.wait(), POLL_SECONDS if self.waiting else None)

    def _end_of(self, task: asyncio.Task[None]) -> None:
        self.finished.append(task)
        self.freed.set()

    def _report_waiting(self) -> None:
        """Report once why nothing runs: all GPUs are free, and none has the memory that the next job needs."""
        for job in self.waiting.heads():
            if job.name not in self.reported:
                self.folder.log("job waits", job=job.name, vram_bytes=job.vram_bytes, held=[])
                log.warning("%s waits until %s", job.name, self.site.lack(job))
                self.reported.add(job.name)

    async def _end_all(self) -> None:
        """End every process when this program itself fails."""
        self.workers.converter.stop()
        for supervisor in self.running.values():
            supervisor.kill()
        await asyncio.gather(*self.running, return_exceptions=True)

    def _start_next(self) -> bool:
        """Start the next job; return whether one could be started."""
        if self.waiting and (problem := space.lack(self.folder.share)):
            self.full = problem.what
            log.warning("no further job starts: %s; jobs that run continue", self.full)
            return False
        taken = self.waiting.take()
        if taken is None:
            return False
        job, place = taken
        limits = replace(self.limits, notebook_seconds=job.timeout_seconds or self.limits.notebook_seconds)
        supervisor = self.site.supervise(job, place, limits, self._viewer(job, place))
        if place.devices:
            self._report_started(job, place)
        self.unfinished.add(job.name)
        task = asyncio.create_task(self._run_job(supervisor))
        self.running[task] = supervisor
        task.add_done_callback(self._end_of)
        return True

    def _report_started(self, job: Job, place: Place) -> None:
        self.folder.log("job started", job=job.name, devices=identify(place))
        self.display.started(job, place)

    def _viewer(self, job: Job, place: Place) -> Callable[[Event], None]:
        def see(event: Event) -> None:
            if event["event"] == "placed":  # only now is it known where
                self._report_started(job, place)
            else:
                self.display.event(job, event)

        return see

    async def _run_job(self, supervisor: Supervised) -> None:
        job = supervisor.job
        environment = self.environments.of(job)  # as it is when the kernel starts
        try:
            outcome = await supervisor.run()
        except OSError as err:  # no process, pipe or log could be created; the other jobs continue
            outcome = Outcome("failed", f"its worker could not be started: {err}")
        except Exception as err:  # our own error must not end the others either
            log.debug("%s could not be run", job.name, exc_info=True)
            outcome = Outcome("failed", f"it could not be run: {type(err).__name__}: {err}")
        finally:
            self.slots.release(supervisor.place)
        self._note_end(supervisor.place, outcome)
        if outcome.status == "ok" or not self.rules.fail_fast:
            self.freed.set()  # the next job does not wait for the rest of this one
        if self._may_start and self._needs_another_place(job, supervisor.place, outcome):
            return
        attempts = self.attempts.get(job.name, [])
        if outcome.status == "not run":  # it was stopped while it waited
            result = replace(not_run(job), warnings=[*outcome.warnings, *self._why_not()], attempts=attempts)
        else:
            if self.failed and outcome.status == "killed":
                why = f"{STOPPED}{self.failed} failed, and --fail-fast stops there"
                outcome = replace(outcome, message=why, notebook=None)
            outcome = self._warned(job, outcome)
            result = await asyncio.to_thread(result_of, self.folder, job, supervisor.place, outcome, attempts)
            result = replace(result, environment=environment)
        if self._may_retry(result, outcome.is_lost):
            result = await self._converted(result)
        if self._may_retry(result, outcome.is_lost):  # the run was not interrupted meanwhile
            self._retry(job, supervisor.place, result, outcome.is_lost)
            return
        self._finish(result)
        self.freed.set()
        self.unfinished.discard(job.name)
        self._limit_conversions()
        self.results[job.name] = await self._converted(result)

    def _note_end(self, place: Place, outcome: Outcome) -> None:
        """Have a GPU rest on which one job after another dies."""
        if self._may_start and (why := self.slots.note_end(place, outcome)):
            self.folder.log("device rests", devices=identify(place), why=why)
            log.warning("%s", why)
            self.notes[place.devices] = why

    def _needs_another_place(self, job: Job, place: Place, outcome: Outcome) -> bool:
        """Put a job back that could not begin in its place; return whether it was."""
        if outcome.is_unplaced and self.repeats.left(job.name, "place") > 0:
            self.repeats.count(job.name, "place")
            self._put_back(job, place)
            return True
        if outcome.why_cpu:
            self.why_cpu[job.name] = outcome.why_cpu
            log.warning("%s gets the CPU: %s", job.name, outcome.why_cpu)
            self._put_back(replace(job, gpus=0, min_gpus=None), place)
            return True
        return False

    def _warned(self, job: Job, outcome: Outcome) -> Outcome:
        """Add why a job that needs several GPUs ran on the CPU; not needed where there is no GPU at all."""
        why = self.why_cpu.get(job.name)
        if self.slots.gpus and not job.takes_gpus_from_ray:
            why = why or self.slots.shortage(job)
        return replace(outcome, warnings=[*outcome.warnings, f"it ran on the CPU: {why}"]) if why else outcome

    async def _converted(self, result: Result) -> Result:
        """Convert an executed notebook to HTML, while other jobs run; return the result with that file."""
        notebook, html = self.folder.file(result.name, "notebook"), self.folder.file(result.name, "html")
        warnings = [each for each in result.warnings if not each.startswith(NO_HTML)]
        if not html.exists() and notebook.exists() and (why := await self.workers.converter.convert(notebook, html)):
            warnings.append(f"{NO_HTML}{why}")
        return replace(result, files=self.folder.files(result.name), warnings=warnings)

    async def _convert_earlier(self, result: Result) -> None:
        self.results[result.name] = await self._converted(result)

    def _limit_conversions(self) -> None:
        """Limit the time for conversions, if the run was interrupted and no job runs any more."""
        if self.signals and not self.unfinished:
            asyncio.get_running_loop().call_later(CONVERT_TIMEOUT_SECONDS, self.workers.converter.stop)

    def _may_retry(self, result: Result, is_lost: bool) -> bool:
        left = self.repeats.left(result.name, "move" if is_lost else "retry")
        return self._may_start and result.status in retries.MAY_PASS and left > 0

    def _retry(self, job: Job, place: Place, result: Result, is_lost: bool) -> None:
        kept = retries.attempt(result.as_dict(), retries.set_aside(self.folder, job.name))
        self.attempts.setdefault(job.name, []).append(kept)
        left = self.repeats.count(job.name, "move" if is_lost else "retry")
        self.folder.log("job retried", job=job.name, attempt=kept)
        self.display.event(job, {"event": "retried", **kept, "left": left})
        self._put_back(job, place)

    def _put_back(self, job: Job, place: Place) -> None:
        """Have a job placed again, before all others, and elsewhere than here if it can be."""
        self.unfinished.discard(job.name)
        self.waiting.put_first(job, place)
        self.freed.set()

    def _finish(self, result: Result) -> None:
        self.results[result.name] = result
        self.attempts.pop(result.name, None)
        self.folder.log("job finished", job=result.name, key=self.keys.get(result.name), result=result.as_dict())
        self.display.finished(result)
        if self.rules.fail_fast and not (result.is_ok or self.failed or self.signals):
            self.failed = result.name
            for supervisor in self.running.values():
                supervisor.stop("interrupted")

    @contextlib.contextmanager
    def _signals(self) -> Iterator[None]:
        loop = asyncio.get_running_loop()
        numbers = [signal.SIGINT, signal.SIGTERM]
        if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # nohup keeps the run going
            numbers.append(signal.SIGHUP)
        for number in numbers:
            loop.add_signal_handler(number, self._interrupt, number)
        try:
            yield
        finally:
            for number in numbers:
                loop.remove_signal_handler(number)

    def _interrupt(self, number: signal.Signals) -> None:
        self.signals += 1
        if number == signal.SIGHUP:
            self.display.mute()
        if self.signals > 1:
            self.workers.converter.stop()
        for supervisor in self.running.values():
            if self.signals == 1:
                supervisor.stop("interrupted")
            else:
                supervisor.kill()
        self._limit_conversions()
