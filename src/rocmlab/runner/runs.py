"""A run: jobs placed on devices, at most one per slot, with a journal and a truthful end for each."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import platform
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib import metadata
from pathlib import Path
from typing import Any, Protocol

from rocmlab import __version__
from rocmlab.runner import compare, executed, report, schema
from rocmlab.runner.folder import RunFolder, now
from rocmlab.runner.jobs import EXIT_CODES, Job, Result, not_run
from rocmlab.runner.placement import Place, Slots
from rocmlab.runner.supervisor import Ending, Event, Limits, Supervisor
from rocmlab.runner.usage import UNKNOWN, Meters
from rocmlab.runner.workers import Workers

BUILD_RECORD = Path("/etc/rocmlab-build.json")
ERROR_NAMES = {"timeout": "Timeout", "killed": "Killed", "kernel died": "KernelDied"}


class Display(Protocol):
    """What a person sees while the run goes on."""

    def started(self, job: Job, place: Place) -> None:
        """A job starts."""

    def event(self, job: Job, event: Event) -> None:
        """A job's worker says something."""

    def finished(self, result: Result) -> None:
        """A job has ended, or could not be run."""

    def mute(self) -> None:
        """Nobody looks any more: the terminal is gone."""


@dataclass
class Run:
    """What came of a run."""

    folder: RunFolder
    results: list[Result]
    started: str
    seconds: float
    is_interrupted: bool
    slots: int
    versions: dict[str, Any] = field(default_factory=dict)
    earlier: Mapping[str, Any] | None = None  # the run to compare with, by `compare.load`
    warnings: list[str] = field(default_factory=list)  # about the run as a whole

    @property
    def is_ok(self) -> bool:
        """Whether every notebook ran to its end without an error."""
        return not self.is_interrupted and all(result.is_ok for result in self.results)

    def as_dict(self) -> dict[str, Any]:
        """Return the content of `results.json`."""
        status = "interrupted" if self.is_interrupted else "ok" if self.is_ok else "failed"
        jobs = [result.as_dict() for result in self.results]
        compared = {} if self.earlier is None else {"comparison": compare.compare(jobs, self.earlier)}
        return {
            "schema": schema.VERSION,
            "run": {
                "name": self.folder.path.name,
                "folder": str(self.folder.path),
                "status": status,
                "started": self.started,
                "seconds": round(self.seconds, 3),
                "slots": self.slots,
            },
            "versions": self.versions,
            "simulated": any(result.simulated for result in self.results),
            "jobs": jobs,
            **compared,
        }

    def save(self) -> None:
        """Write `results.json`, `report.html` and `junit.xml`; a report that cannot be made does not cost the results.

        Raises:
            OSError: the folder cannot be written.
        """
        results = self.as_dict()
        self.folder.save_results(results)
        try:
            report.write(results, self.folder.path)
        except OSError:
            raise
        except Exception as err:
            self.warnings.append(f"no report: {type(err).__name__}: {err}")


def run(
    jobs: Sequence[Job],
    *,
    folder: RunFolder,
    slots: Slots,
    display: Display,
    limits: Limits | None = None,
    environment: Mapping[str, str] | None = None,
    earlier: Mapping[str, Any] | None = None,
) -> Run:
    """Run jobs, each in a process of its own, and write the folder's journal, results and report.

    SIGINT, SIGTERM and SIGHUP end the run: jobs that run are stopped and saved, the others are not run. A second
    signal ends everything at once.

    Args:
        jobs: named uniquely; those with a problem are reported and not run.
        folder: where everything goes.
        slots: the devices.
        display: what a person sees.
        limits: how long a job may take; None: as long as it wants.
        environment: what the workers inherit, by default this process's own.
        earlier: the run to compare with, by `compare.load`; None: with none.
    """
    base = dict(os.environ if environment is None else environment)
    runner = _Runner(jobs, folder, slots, display, limits or Limits(), base, earlier)
    return asyncio.run(runner.run())


class _Runner:
    def __init__(
        self,
        jobs: Sequence[Job],
        folder: RunFolder,
        slots: Slots,
        display: Display,
        limits: Limits,
        environment: Mapping[str, str],
        earlier: Mapping[str, Any] | None,
    ) -> None:
        self.earlier = earlier
        self.jobs = list(jobs)
        self.folder = folder
        self.slots = slots
        self.display = display
        self.limits = limits
        self.workers = Workers(environment, slots.count)
        self.meters = Meters()
        self.results: dict[str, Result] = {}
        self.waiting: list[Job] = []
        self.running: dict[asyncio.Task[None], Supervisor] = {}
        self.signals = 0

    async def run(self) -> Run:
        started, begin = now(), time.monotonic()
        names = [{"name": job.name, "notebook": job.notebook, "parameters": job.parameters} for job in self.jobs]
        self.folder.log("run started", run=self.folder.path.name, slots=self.slots.count, jobs=names)
        with self._signals():
            self._set_aside_the_impossible()
            try:
                await self._work()
            except BaseException:
                await self._end_all()
                raise
            finally:
                await self.workers.close()
                self.meters.close()
        for job in self.waiting:  # the run was interrupted
            self._finish(not_run(job))
        run = Run(
            folder=self.folder,
            results=[self.results[job.name] for job in self.jobs],
            started=started,
            seconds=time.monotonic() - begin,
            is_interrupted=self.signals > 0,
            slots=self.slots.count,
            versions=versions(),
            earlier=self.earlier,
        )
        run.save()
        self.folder.log("run finished", status=run.as_dict()["run"]["status"])
        return run

    def _set_aside_the_impossible(self) -> None:
        for job in self.jobs:
            problem = job.problem or self.slots.problem(job)
            if problem:
                self._finish(not_run(job, problem))
            else:
                self.waiting.append(job)

    async def _work(self) -> None:
        while True:
            while not self.signals and (taken := self.slots.take(self.waiting)):
                self._start(*taken)
            if not self.running:
                return
            done, _ = await asyncio.wait(self.running, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                del self.running[task]
                task.result()  # an error of ours must not be lost

    async def _end_all(self) -> None:
        """Leave nothing behind when this program itself fails."""
        for supervisor in self.running.values():
            supervisor.kill()
        await asyncio.gather(*self.running, return_exceptions=True)

    def _start(self, job: Job, place: Place) -> None:
        self.waiting.remove(job)
        see = self._viewer(job)
        supervisor = Supervisor(job, place, self.folder, self.limits, see, self.workers, self.meters)
        self.folder.log("job started", job=job.name, devices=_identify(place))
        self.display.started(job, place)
        self.running[asyncio.create_task(self._run_job(supervisor))] = supervisor

    def _viewer(self, job: Job) -> Callable[[Event], None]:
        return lambda event: self.display.event(job, event)

    async def _run_job(self, supervisor: Supervisor) -> None:
        job = supervisor.job
        try:
            ending = await supervisor.run()
        except OSError as err:  # no process, no pipe or no log could be had; the other jobs go on
            ending = Ending("failed", f"its worker could not be started: {err}", None)
        finally:
            self.slots.give_back(supervisor.place)
        if ending.status == "not run":  # it was interrupted while it waited
            self._finish(replace(not_run(job), warnings=ending.warnings))
            return
        if ending.message:  # it did not end by itself, or not well
            await asyncio.to_thread(self._repair, job, ending)
        self._finish(self._result(job, supervisor.place, ending))

    def _repair(self, job: Job, ending: Ending) -> None:
        """Correct the executed notebook of a job that was cut short, and convert it."""
        notebook = self.folder.file(job.name, "notebook")
        name = ERROR_NAMES.get(ending.status, "Error")
        executed.tell_truth(notebook, ending.running_cell, name, ending.message)
        if notebook.exists() and self.signals < 2:
            from rocmlab.runner import html

            try:
                html.write(notebook, self.folder.file(job.name, "html"))
            except Exception as err:
                ending.warnings.append(f"no HTML: {type(err).__name__}: {err}")

    def _result(self, job: Job, place: Place, ending: Ending) -> Result:
        notebook = executed.load(self.folder.file(job.name, "notebook"))
        said = executed.summarise(notebook) if notebook else None
        error = said.error if said else None
        recorded = said.recorded if said else {}
        usage = ending.usage or [UNKNOWN] * len(place.devices)
        if error is None and ending.status != "ok":
            error = {"name": ERROR_NAMES.get(ending.status, "Error"), "value": ending.message}
        return Result(
            name=job.name,
            notebook=job.notebook,
            parameters=job.parameters,
            kernel=job.kernel,
            status=ending.status,
            exit_code=EXIT_CODES[ending.status],
            started=ending.started,
            seconds=None if ending.seconds is None else round(ending.seconds, 3),
            cells_done=said.cells_done if said else None,
            cells_total=said.cells_total if said else None,
            devices=[identity | used for identity, used in zip(_identify(place), usage, strict=True)],
            recorded=recorded,
            error=error if ending.status != "ok" else None,
            files=self.folder.files(job.name),
            warnings=ending.warnings,
            simulated=any(device.simulated for device in place.devices) or recorded.get("simulated") is True,
        )

    def _finish(self, result: Result) -> None:
        self.results[result.name] = result
        self.folder.log("job finished", job=result.name, result=result.as_dict())
        self.display.finished(result)

    @contextlib.contextmanager
    def _signals(self) -> Iterator[None]:
        loop = asyncio.get_running_loop()
        numbers = [signal.SIGINT, signal.SIGTERM]
        if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # nohup wants the run to go on
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
        for supervisor in self.running.values():
            if self.signals == 1:
                supervisor.stop("interrupted")
            else:
                supervisor.kill()


def _identify(place: Place) -> list[dict[str, Any]]:
    names = ("backend", "index", "name", "gfx", "pci_address")
    return [{name: getattr(device, name) for name in names} for device in place.devices]


def versions() -> dict[str, Any]:
    """Return what ran the notebooks: packages, Python, and the image's build record (None outside of an image)."""
    try:
        image = json.loads(BUILD_RECORD.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        image = None
    packages: dict[str, str | None] = {}
    for name in ("papermill", "nbclient", "nbconvert"):
        try:
            packages[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            packages[name] = None
    return {
        "rocmlab": __version__,
        **packages,
        "python": platform.python_version(),
        "platform": f"{platform.system()} {platform.release()} {platform.machine()}",
        "executable": sys.executable,
        "image": image,
    }
