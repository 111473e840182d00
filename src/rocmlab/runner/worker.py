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
from typing import TYPE_CHECKING, Any

from rocmlab.runner.jobs import EXIT_CODES, Status

if TYPE_CHECKING:
    from rocmlab.runner.engine.execution import Stage

ENGINE = "ROCMLAB_ENGINE"  # environment: `rocmlab`, or `papermill` for the reference


class Worker:
    """Executes one notebook and reports."""

    def __init__(self, job: dict[str, Any]) -> None:
        self.job = job
        self.pipe = int(job["progress_fd"])
        os.set_inheritable(self.pipe, False)

    def report(self, event: str, **facts: object) -> None:
        """Tell the runner. A runner that is gone breaks the pipe, which ends the notebook: nobody waits for it."""
        os.write(self.pipe, (json.dumps({"event": event, **facts}) + "\n").encode())

    def run(self) -> int:
        """Execute, convert what came of it to HTML, and return the exit code."""
        signal.signal(signal.SIGTERM, self._stop)
        status, message = self._execute()
        if message:
            self._say(f"{status}: {message}")
        if status in ("ok", "failed"):  # after any other end the runner looks at the notebook first
            self._convert()
        self.report("ended", status=status, message=message[:2000])
        return EXIT_CODES[status]

    def _stop(self, number: int, _frame: object) -> None:
        """Leave at once, before and after the notebook runs; the runner ends the kernel."""
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

    def _execute(self) -> tuple[Status, str]:
        if os.environ.pop(ENGINE, "rocmlab") == "papermill":
            from rocmlab.runner import reference

            return reference.execute(self.job, self.report)
        from rocmlab.errors import RocmlabError
        from rocmlab.runner.engine.ends import Cut

        try:
            return self._run_notebook()
        except Cut as cut:
            return cut.status, cut.message
        except RocmlabError as err:
            return "failed", str(err)
        except Exception as err:
            traceback.print_exc(file=sys.stdout)
            return "failed", f"{type(err).__name__}: {err}"

    def _run_notebook(self) -> tuple[Status, str]:
        from rocmlab.runner.engine import kernel

        job = self.job
        folder = str(Path(job["notebook"]).parent)  # as JupyterLab does
        running = kernel.start(job["kernel"], folder, os.environ)
        try:  # the kernel starts while the notebook is read
            from rocmlab.runner.engine import notebooks
            from rocmlab.runner.engine.execution import Execution

            notebook = notebooks.prepare(
                job["notebook"], job["output"], job["parameters"], job["kernel"], job["language"]
            )
            output = Path(job["output"])
            execution = Execution(notebook, running, self._stage(notebook), lambda: notebooks.save(notebook, output))
        except BaseException:
            running.destroy()
            raise
        is_ok = execution.run()
        if is_ok and not notebooks.has_errors(notebook):
            return "ok", ""
        marked, said = notebooks.mark_errors(notebook)
        if not said:
            return "ok", ""  # such as sys.exit(0)
        notebooks.save(marked, output)
        sys.stdout.write(plain(said) + "\n")
        return "failed", ""

    def _stage(self, notebook: dict[str, Any]) -> Stage:
        from rocmlab.runner.engine.execution import Stage
        from rocmlab.runner.engine.limits import Limits
        from rocmlab.runner.engine.outputs import SideLog

        given = {**self.job.get("limits", {})}
        given.setdefault("cell_seconds", self.job["cell_timeout_seconds"])
        return Stage(
            limits=Limits().with_metadata(notebook["metadata"], given),
            stdout=sys.stdout,
            stderr=sys.stdout,
            kernel_output=sys.stdout.write,
            see=self._see,
            side=SideLog(None, f"{Path(self.job['output']).stem}.log"),  # the job's log, which has everything
        )

    def _convert(self) -> None:
        if not self.job["html"]:
            return
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
