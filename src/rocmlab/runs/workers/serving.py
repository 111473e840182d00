"""A worker process of a run, which takes one job after another: `python -m rocmlab.runs.workers.serving DESCRIPTOR`.

A job gets nothing of the one before: environment, folder, log and signal handlers are its own, and each has a kernel of
its own. A process that is not as it was before a job reports it, and the runner takes a new one for the next.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import sys
import threading
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

from rocmlab.base import job_tokens
from rocmlab.kernels import kernel as kernel  # what every job needs first
from rocmlab.runs.workers import worker
from rocmlab.runs.workers.commands import Command, Commands, block_slow_import
from rocmlab.runs.workers.job_spec import JobSpec
from rocmlab.runs.workers.worker import Worker

MAX_JOBS = 200  # then the process is replaced; what a library keeps for each job does not add up
HANDLED = (signal.SIGINT, signal.SIGTERM)


class Server:
    """The worker's side of a run."""

    def __init__(self, descriptor: int) -> None:
        self.token: str | None = None  # of the job that runs or ran last
        self.scratch: Path | None = None  # its folder, which the runner removes, if it is there
        self.jobs = 0
        self.commands = Commands(descriptor, self._leave)

    def serve(self) -> int:
        """Take jobs until the runner is gone, or this process should not take another."""
        signal.signal(signal.SIGTERM, lambda *_: None)  # between two jobs there is nothing to stop
        if not self.commands.is_waiting():
            import_ahead()
        before = None  # at first much is imported, with or after the job
        while (command := self.commands.take()) is not None and self._run(*command, before):
            before = belongings()
        return 0

    def _run(self, command: Command, descriptors: list[int], before: object) -> bool:
        """Run a job, and return whether another may follow.

        The descriptors are of the job's log and of the locks of its lease; `before` is what this process had before
        the job, None if that does not matter.
        """
        log, *locks = descriptors
        description = Path(command["job"])
        self.scratch = description.parent
        job = JobSpec.from_json(description.read_text(encoding="utf-8"))
        description.unlink()  # it has the job's whole environment
        if job.lease:
            job.lease["descriptors"] = locks
        self.jobs += 1
        self.token = job.environment.get(job_tokens.NAME)
        with surroundings(job.environment, log):
            work = Worker(job, self.commands.report)
            outcome = work.run()
        self.scratch = None  # the token stays: a runner that exits now has not ended yet what the job left
        import_ahead()
        is_sound = work.is_sound and self.jobs < MAX_JOBS and (before is None or belongings() == before)
        self.commands.report("ended", outcome=asdict(outcome), is_sound=is_sound)
        return is_sound

    def _leave(self) -> None:
        """The runner is gone: end the kernel and all that the job has started."""
        Worker.starting.acquire(timeout=1.0)  # a kernel that is being started can be found when it has started
        self.remove_scratch()  # before the kernel's end, which may end this process
        if self.token:
            job_tokens.end(self.token, grace_seconds=0.0)

    def remove_scratch(self) -> None:
        """Remove the folder of the job that runs: no one else will."""
        if self.scratch:
            shutil.rmtree(self.scratch, ignore_errors=True)


@contextlib.contextmanager
def surroundings(environment: dict[str, str], log: int) -> Iterator[None]:
    """Give a job its environment and its log, and take everything back afterwards."""
    variables, folder = dict(os.environ), os.getcwd()
    handlers = {number: signal.getsignal(number) for number in HANDLED}
    streams = [os.dup(number) for number in (1, 2)]
    for number in (1, 2):
        os.dup2(log, number)
    os.close(log)
    os.environ.clear()
    os.environ.update(environment)
    try:
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
        sys.stdout.flush()
        sys.stderr.flush()
        for number, stream in zip((1, 2), streams, strict=True):
            os.dup2(stream, number)
            os.close(stream)
        os.environ.clear()
        os.environ.update(variables)
        os.chdir(folder)


def import_ahead() -> None:
    """Import what a job needs after its kernel has been started, while there is nothing else to do."""
    import psutil
    import zmq

    from rocmlab.notebook import execution, notebooks, outputs

    _ = psutil, zmq, execution, notebooks, outputs


def belongings() -> object:
    """Return what a job could leave behind: open files, threads, the mask of new files."""
    mask = os.umask(0o077)
    os.umask(mask)
    try:
        files = len(os.listdir("/proc/self/fd"))
    except OSError:
        files = 0
    return files, threading.active_count(), mask


def main(arguments: list[str]) -> int:
    """Serve the runner at the other end of a socket."""
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})  # Ray's workers block it and hand that on
    worker.set_up_output()
    block_slow_import()
    server = Server(int(arguments[0]))
    try:
        return server.serve()
    finally:
        server.remove_scratch()


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
