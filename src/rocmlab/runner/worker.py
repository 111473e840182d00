"""One job in a process of its own: `python -m rocmlab.runner.worker JOB.json`.

The runner has set the environment, so that the device is pinned before anything is imported. What the notebook prints
goes to stdout, which is the job's log; what happens goes to the runner as JSON lines on a pipe of its own.
"""

from __future__ import annotations

import io
import json
import os
import re
import signal
import sys
import traceback
from pathlib import Path
from typing import Any

from rocmlab.runner.jobs import EXIT_CODES, Status


class Worker:
    """Executes one notebook and reports."""

    def __init__(self, job: dict[str, Any]) -> None:
        self.job = job
        self.pipe = int(job["progress_fd"])
        self.manager: Any = None  # papermill's, once the notebook runs
        os.set_inheritable(self.pipe, False)

    def report(self, event: str, **facts: object) -> None:
        """Tell the runner. A runner that is gone breaks the pipe, which ends the notebook: nobody waits for it."""
        os.write(self.pipe, (json.dumps({"event": event, **facts}) + "\n").encode())

    def stop(self, number: int, _frame: object) -> None:
        """Save what is there and leave at once; the runner ends the kernel."""
        try:
            if self.manager is not None:
                self.manager.save()
            sys.stdout.write(f"--- stopped by {signal.Signals(number).name}\n")
            sys.stdout.flush()
        finally:
            os._exit(128 + number)

    def run(self) -> int:
        """Execute, convert what came of it to HTML, and return the exit code."""
        signal.signal(signal.SIGTERM, self.stop)
        status, message = self._execute()
        if message:
            sys.stdout.write(f"--- {status}: {message}\n")
        if status in ("ok", "failed"):  # after any other end the runner corrects the notebook first
            self._convert()
        self.report("ended", status=status, message=message[:2000])
        return EXIT_CODES[status]

    def _execute(self) -> tuple[Status, str]:
        from nbclient.exceptions import CellTimeoutError, DeadKernelError
        from papermill.exceptions import PapermillExecutionError

        from rocmlab.runner.engine import KernelDied

        try:
            self._papermill()
        except PapermillExecutionError as err:
            sys.stdout.write(plain(str(err)) + "\n")
            return "failed", ""
        except CellTimeoutError:
            return "timeout", f"a cell ran longer than {self.job['cell_timeout_seconds']:g} s"
        except KernelDied as err:
            return "kernel died", str(err)
        except DeadKernelError:
            return "kernel died", "the kernel's process ended after the last cell"
        except Exception as err:
            traceback.print_exc(file=sys.stdout)
            if self.manager is not None and "Kernel d" in str(
                err
            ):  # nbclient's RuntimeErrors of a kernel that never answers
                return "kernel died", f"the kernel did not start: {err}"
            return "failed", f"{type(err).__name__}: {err}"
        return "ok", ""

    def _papermill(self) -> None:
        import papermill
        from papermill.engines import papermill_engines
        from papermill.iorw import papermill_io

        from rocmlab.runner import engine

        job = self.job
        papermill_engines.register("rocmlab-reporting", engine.engine(self.report, self._started))
        papermill_io.register(engine.in_folder(job["output"]), engine.AtomicHandler())
        papermill.execute_notebook(
            engine.escape(job["notebook"]),
            engine.escape(job["output"]),
            parameters=job["parameters"],
            engine_name="rocmlab-reporting",
            kernel_name=job["kernel"],
            language=job["language"],
            progress_bar=False,
            stdout_file=sys.stdout,
            stderr_file=sys.stdout,
            cwd=str(Path(job["notebook"]).parent),  # as JupyterLab does
            execution_timeout=job["cell_timeout_seconds"],
        )

    def _started(self, manager: object) -> None:
        self.manager = manager

    def _convert(self) -> None:
        from rocmlab.runner import html

        try:
            html.write(Path(self.job["output"]), Path(self.job["html"]))
        except Exception as err:  # the notebook itself is there; say it and go on
            traceback.print_exc(file=sys.stdout)
            self.report("warning", message=f"no HTML: {type(err).__name__}: {err}"[:500])


def plain(text: str) -> str:
    """Return text without the colours of a terminal."""
    return re.sub(r"\x1b\[[0-9;?]*[ -/]*[@-~]", "", text)


def main(arguments: list[str]) -> int:
    """Run the job that a file describes."""
    if isinstance(sys.stdout, io.TextIOWrapper):  # whatever the locale, a log is UTF-8 and takes any output
        sys.stdout.reconfigure(encoding="utf-8", errors="backslashreplace")
    return Worker(json.loads(Path(arguments[0]).read_text(encoding="utf-8"))).run()


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
