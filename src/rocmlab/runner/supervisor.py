"""One job's process: started pinned to its devices, watched, and ended with everything it started."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import secrets
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from rocmlab.runner import processes
from rocmlab.runner.claim import Claim
from rocmlab.runner.folder import RunFolder, now
from rocmlab.runner.jobs import Job, Status
from rocmlab.runner.placement import Place
from rocmlab.runner.usage import Meters
from rocmlab.runner.workers import Workers

Event = dict[str, Any]


@dataclass(frozen=True)
class Limits:
    """How long a job may take."""

    notebook_seconds: float | None = None
    cell_seconds: int | None = None
    grace_seconds: float = 5.0  # to save, between being asked to stop and being killed


@dataclass
class Ending:
    """How a job's process ended."""

    status: Status
    message: str  # one sentence; empty where the notebook itself says it
    running_cell: int | None  # index of the cell that was running; None if none was
    warnings: list[str] = field(default_factory=list)
    started: str | None = None  # UTC, when its GPUs were leased; None if it never came to that
    seconds: float | None = None  # from then to its end
    usage: list[dict[str, Any]] = field(default_factory=list)  # by device, in their order; see `Meters.end`


class Supervisor:
    """Runs one job in a process of its own."""

    def __init__(
        self,
        job: Job,
        place: Place,
        folder: RunFolder,
        limits: Limits,
        see: Callable[[Event], None],
        workers: Workers,
        meters: Meters,
    ) -> None:
        self.job = job
        self.place = place
        self.folder = folder
        self.limits = limits
        self.workers = workers
        self.meters = meters
        self.mark = secrets.token_hex(8)
        self._see = see  # called with each event of the worker
        self._process: asyncio.subprocess.Process | None = None
        self._stopped: Literal["timeout", "interrupted"] | None = None
        self._killed_by_us = False
        self._running_cell: int | None = None
        self._ended: Event | None = None  # the worker's last word
        self._warnings: list[str] = []
        self._claim = Claim(job, place, folder, self._warnings)

    async def run(self) -> Ending:
        """Wait until the job's GPUs are leased, and run it to its end; afterwards none of its processes is left."""
        loop, started, begin = asyncio.get_running_loop(), None, 0.0
        timers: list[asyncio.TimerHandle] = []
        try:
            if not await self._claim.settled(lambda: bool(self._stopped)):
                return Ending("not run", "", None, self._warnings)
            started, begin = now(), time.monotonic()
            self.meters.begin(self.job.name, self.place.devices)
            with tempfile.TemporaryDirectory(prefix="rocmlab-job-", ignore_cleanup_errors=True) as scratch:
                self._process, events = await self._start(self.workers.environment, Path(scratch))
                if self.limits.notebook_seconds is not None:
                    timers.append(loop.call_later(self.limits.notebook_seconds, self.stop, "timeout"))
                if self._stopped:
                    self.stop(self._stopped)  # it came while the process was being started
                await events
                code = await self._process.wait()
                await self._end_processes()
        except BaseException:
            await self._end_processes()
            raise
        finally:
            self._claim.release()
            usage = self.meters.end(self.job.name)
            for timer in timers:
                timer.cancel()
        seconds = time.monotonic() - begin
        return replace(self._ending(code), started=started, seconds=seconds, usage=usage)

    async def _end_processes(self) -> None:
        grace_seconds = 0.0 if self._killed_by_us else 2.0
        left = await asyncio.to_thread(processes.end, self.mark, grace_seconds)
        if left:
            self._warnings.append(f"processes that could not be ended: {', '.join(map(str, left))}")

    async def _start(
        self, environment: Mapping[str, str], scratch: Path
    ) -> tuple[asyncio.subprocess.Process, asyncio.Task[None]]:
        read_end, write_end = os.pipe()
        description = scratch / "job.json"
        lease = self._claim.lease
        facts = {**self._description(write_end), "lease": lease.as_dict() if lease else None}
        description.write_text(json.dumps(facts), encoding="utf-8")
        log = self.folder.file(self.job.name, "log").open("ab")
        try:
            process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-u",
                "-m",
                "rocmlab.runner.leased" if lease else "rocmlab.runner.worker",
                str(description),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=self._environment(environment, scratch),
                pass_fds=(write_end, *(lease.descriptors if lease else ())),
                start_new_session=True,  # so that a Ctrl-C reaches the runner alone, which stops jobs in order
            )
        except BaseException:
            os.close(read_end)
            raise
        finally:
            os.close(write_end)
            log.close()
            self._claim.release()  # the worker has the lease, and gives it to the kernel
        return process, asyncio.create_task(self._listen(read_end))

    def _environment(self, environment: Mapping[str, str], scratch: Path) -> dict[str, str]:
        return {
            **self.place.environment(environment),
            "JUPYTER_RUNTIME_DIR": str(scratch),  # the kernel's connection file and sockets go when the job goes
            processes.MARK: self.mark,
        }

    def _description(self, progress_fd: int) -> dict[str, Any]:
        return {
            "notebook": self.job.notebook,
            "output": str(self.folder.file(self.job.name, "notebook")),
            "html": str(self.folder.file(self.job.name, "html")),
            "parameters": self.job.parameters,
            "kernel": self.job.kernel,
            "language": self.job.language,
            "cell_timeout_seconds": self.limits.cell_seconds,
            "progress_fd": progress_fd,
        }

    async def _listen(self, read_end: int) -> None:
        reader = asyncio.StreamReader()
        transport, _ = await asyncio.get_running_loop().connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(read_end, "rb")
        )
        try:
            async for line in reader:
                with contextlib.suppress(ValueError):  # a worker that is killed may leave half a line
                    self._take(json.loads(line))
        finally:
            transport.close()

    def _take(self, event: Event) -> None:
        kind = event["event"]
        if kind == "cell":
            self._running_cell = event["index"]
        elif kind == "cell done":
            self._running_cell = None
        elif kind == "warning":
            self._warnings.append(event["message"])
        elif kind == "ended":
            self._ended = event
        self._see(event)

    def stop(self, why: Literal["timeout", "interrupted"]) -> None:
        """Ask the worker to save and leave; kill it when it does not."""
        self._stopped = self._stopped or why
        if self._process is None or self._process.returncode is not None:
            return
        with contextlib.suppress(ProcessLookupError):
            self._process.terminate()
        asyncio.get_running_loop().call_later(self.limits.grace_seconds, self._kill_worker)

    def kill(self) -> None:
        """End all of the job's processes at once, without saving."""
        self._stopped = self._stopped or "interrupted"
        self._killed_by_us = True
        self._kill_worker()

    def _kill_worker(self) -> None:
        if self._process is not None and self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                self._process.kill()

    def _ending(self, code: int) -> Ending:
        status, message = self._judge(code)
        return Ending(status, message, self._running_cell, self._warnings)

    def _judge(self, code: int) -> tuple[Status, str]:
        if self._ended is not None and not self._stopped:
            return self._ended["status"], self._ended["message"]
        if self._ended is not None and self._ended["status"] == "ok":
            return "ok", ""  # it was asked to stop when it had just ended
        if self._stopped == "timeout":
            return "timeout", f"the notebook ran longer than {self.limits.notebook_seconds:g} s"
        if self._stopped == "interrupted":
            return "killed", "the run was interrupted"
        if code == -9:
            return "killed", "its worker was killed (SIGKILL), perhaps because the memory was full"
        if code < 0:
            return "killed", f"its worker was ended by signal {-code}"
        return "failed", f"its worker ended with exit code {code} before the notebook did; the log says why"
