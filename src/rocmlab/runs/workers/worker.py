"""One job in a worker process.

What the notebook prints goes to stdout, which is the job's log; what happens goes to the runner as events. The workers
of a run take one job after another, see `rocmlab.runs.workers.serving`.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, cast

from rocmlab.base.formatting import ANSI
from rocmlab.kernels.leases import Lease
from rocmlab.notebook.outcome import Aborted, Executed, Outcome

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

    from rocmlab.kernels.kernel import Kernel
    from rocmlab.notebook.options import Options
    from rocmlab.runs.workers.job_spec import JobSpec

Report = Callable[..., None]  # called with the name of an event and its facts
MAX_SUMMARY_BYTES = 500_000  # of what is reported of a notebook; of more, the runner reads the file


class Worker:
    """Executes one notebook and reports."""

    starting = threading.Lock()  # held while a kernel is being started

    def __init__(self, job: JobSpec, report: Report) -> None:
        self.job = job
        self.report = report
        self.is_sound = True  # whether the process can be trusted with another job
        self.lease = Lease.inherited(job.lease) if job.lease else None

    def run(self) -> Outcome:
        """Execute, and return how it ended and why."""
        signal.signal(signal.SIGTERM, self._stop)
        self.report("begun")
        if self.job.warning:
            self._see("warning", message=self.job.warning)
        try:
            outcome = self._execute()
        finally:
            if self.lease:  # whichever kernel had it, it has ended
                self.lease.release()
        self.is_sound = self.is_sound and outcome.status in ("ok", "failed")
        if outcome.message:
            self._say(f"{outcome.status}: {outcome.message}")
            outcome.message = outcome.message[:2000]
        if why := lost_output():
            self.report("warning", message=f"its log is not complete: {why}")
        return outcome

    def _stop(self, number: int, _frame: object) -> None:
        """Leave immediately, before and after the notebook runs; the runner ends the kernel."""
        self._say(f"stopped by {signal.Signals(number).name}")
        os._exit(128 + number)

    def _say(self, text: str) -> None:
        sys.stdout.write(f"--- {text}\n")
        sys.stdout.flush()

    def _see(self, event: str, **facts: object) -> None:
        if event == "cell":
            self._say("cell {number} of {total}: {title}".format(**facts))
        elif event == "warning":
            self._say(f"warning: {facts['message']}")
        if event != "text done":
            self.report(event, **facts)

    def _execute(self) -> Outcome:
        from rocmlab.base.errors import RocmlabError

        try:
            return self._run_notebook()
        except RocmlabError as err:
            return Outcome("failed", str(err))
        except Exception as err:
            self.is_sound = False
            traceback.print_exc(file=sys.stdout)
            return Outcome("failed", f"{type(err).__name__}: {err}")

    def _run_notebook(self) -> Outcome:
        job = self.job
        folder = str(Path(job.notebook).parent)  # as JupyterLab does
        with self.starting:
            running = self._start_kernel(folder)
        try:  # the kernel starts while the notebook is read
            if job.masks:
                check_masks(running, job, job.masks)
            from rocmlab.notebook import notebooks
            from rocmlab.notebook.execution import Execution

            spec, output = job.kernelspec, Path(job.output)
            notebook = notebooks.prepare(job.notebook, job.output, job.parameters, spec.name, spec.language, job.source)
            execution = Execution(notebook, running, self._options(notebook), lambda: notebooks.save(notebook, output))
        except BaseException:
            running.destroy()
            raise
        try:
            is_ok = execution.run()
        except Aborted as aborted:
            is_saved = not execution.recorder.is_changed  # else the runner tries again
            return Outcome(aborted.status, aborted.message, notebook=summary(notebook) if is_saved else None)
        if is_ok and not notebooks.has_errors(notebook):
            return Outcome("ok", notebook=summary(notebook))
        marked, error = notebooks.mark_errors(notebook)
        if not error:
            return Outcome("ok", notebook=summary(notebook))  # such as sys.exit(0)
        notebooks.save(marked, output)
        sys.stdout.write(ANSI.sub("", error) + "\n")
        return Outcome("failed", notebook=summary(marked))

    def _start_kernel(self, folder: str) -> Kernel:
        from rocmlab.kernels import kernel
        from rocmlab.kernels.forked import Refused

        spec, why, memory = self.job.kernelspec, self.job.why_cold, self.job.memory_bytes
        if self.job.fork_server:
            try:
                return kernel.start(spec, folder, os.environ, self.lease, self.job.fork_server, memory)
            except Refused as err:
                why = str(err)
        if why:
            self._see("warning", message=f"cold start: {why}")
        return kernel.start(spec, folder, os.environ, self.lease, memory_bytes=memory)

    def _options(self, notebook: dict[str, Any]) -> Options:
        from rocmlab.notebook.options import Limits, Options
        from rocmlab.notebook.outputs import OverflowLog

        return Options(
            limits=Limits().with_metadata(notebook["metadata"], {"cell_seconds": self.job.cell_seconds}),
            stdout=sys.stdout,
            stderr=sys.stdout,
            kernel_output=sys.stdout.write,
            report=self._see,
            overflow=OverflowLog(None, f"{Path(self.job.output).stem}.log"),  # the job's log, which has everything
        )


def summary(notebook: dict[str, Any]) -> Executed | None:
    """Return what a result needs of an executed notebook; None where the runner is to read the file."""
    from rocmlab.notebook import executed

    with contextlib.suppress(Exception):
        found = executed.summarise(notebook)
        if len(json.dumps(asdict(found))) < MAX_SUMMARY_BYTES:
            return found
    return None


def check_masks(running: Kernel, job: JobSpec, masks: dict[str, str | None]) -> None:
    """Make sure that a kernel really has the masks that its job was given.

    Source: /proc/PID/environ of a kernel that was started cold; of a forked one, the requested variables.

    Raises:
        RocmlabError: it has others, such as its kernelspec's own.
    """
    from rocmlab.base.errors import RocmlabError
    from rocmlab.kernels import kernelspec
    from rocmlab.kernels.kernel import LocalKernel

    if isinstance(running, LocalKernel):
        has = running.environment()
    else:
        has = kernelspec.environment(job.kernelspec.specification, os.environ)
    for name, value in masks.items():
        if has.get(name) != value:
            raise RocmlabError(
                f"its kernel has {name}={has.get(name, '')}, and should have {value or 'none'}",
                f"the kernelspec {job.kernelspec.name} sets it, or what starts the kernel does",
                f"take {name} out of the `env` of that kernelspec on the node",
            )


class LogFile(io.RawIOBase):
    """A descriptor of a log, which is not worth a notebook: what a full disk does not take is dropped."""

    def __init__(self, descriptor: int) -> None:
        super().__init__()
        self.fault: OSError | None = None  # why something was dropped; None if nothing was
        self._descriptor = descriptor

    def writable(self) -> bool:
        """Return True: that is what it is for."""
        return True

    def fileno(self) -> int:
        """Return the descriptor."""
        return self._descriptor

    def write(self, data: ReadableBuffer, /) -> int:
        """Write all of it, or drop what cannot be written."""
        rest = memoryview(data).cast("B")
        size = len(rest)
        try:
            while rest:
                rest = rest[os.write(self._descriptor, rest) :]
        except OSError as err:
            self.fault = err
        return size


def set_up_output() -> None:
    """Let stdout and stderr, which are the job's log, be UTF-8 and take any output, whatever the locale or the disk."""
    for name, descriptor in (("stdout", 1), ("stderr", 2)):
        if isinstance(getattr(sys, name), io.TextIOWrapper):
            file = cast("BinaryIO", LogFile(descriptor))
            setattr(sys, name, io.TextIOWrapper(file, "utf-8", "backslashreplace", write_through=True))


def lost_output() -> str | None:
    """Return why something of the log was lost since the last time, None if nothing was."""
    why = None
    for stream in (sys.stdout, sys.stderr):
        file = getattr(stream, "buffer", None)
        if isinstance(file, LogFile) and file.fault:
            why, file.fault = file.fault.strerror, None
    return why
