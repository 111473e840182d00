"""What running a notebook costs here, compared with papermill: whole processes, their kernels included.

Ours is the worker of `rocmlab run` without the conversion to HTML, which papermill does not do. Theirs is `papermill`
as its command line runs, in the same environment, with the slow import that JupyterLab's dependencies may bring
(`rfc3987_syntax`) already blocked. Both use one kernelspec, take turns, and start with warm files.

Warm kernels, whole queues and what watching costs are measured in modules of their own.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks import queues, supervision, warm_start
from benchmarks.environment import KERNEL, environment, write_kernel, write_notebook
from benchmarks.results import Results, check_names
from rocmlab.base.errors import RocmlabError
from rocmlab.devices import discover

POLL_SECONDS = 0.02
PLOT = """
import base64, os
from IPython.display import display
display({"image/png": base64.b64encode(os.urandom(300_000)).decode(), "text/plain": "a plot"}, raw=True)
"""
# One job in a worker that ends with it; its events go where a runner would read them.
WORKER = """
import json, os, sys
from rocmlab.kernels import kernelspec
from rocmlab.runs.workers import commands, job_spec, worker
worker.set_up_output()
commands.block_slow_import()
events = open(os.devnull, "w")
def report(event, **facts):
    print(json.dumps({"event": event, **facts}), file=events, flush=True)
with open(sys.argv[1], encoding="utf-8") as description:
    job = json.load(description)
spec = job_spec.JobSpec(job["notebook"], job["output"], kernelspec.find(job["kernel"]))
sys.exit(worker.Worker(spec, report).run().status != "ok")
"""
PRINT_200_MB = "line = 'x' * 999\nfor _ in range(200_000):\n    print(line)"


@dataclass(frozen=True)
class Cost:
    """What one process and all it waited for has cost."""

    wall_seconds: float
    cpu_seconds: float
    peak_bytes: int  # of all its processes together, looked at now and then


@dataclass(frozen=True)
class Work:
    """One row: a notebook and what counts of its cost."""

    cells: Sequence[str]
    unit: str
    value: Callable[[Cost], float]


WORKS = {
    "hundred_cells_cpu": Work([f"x = {number}" for number in range(100)], "s", lambda cost: cost.cpu_seconds),
    "plots_20mb_cpu": Work([PLOT] * 50, "s", lambda cost: cost.cpu_seconds),
    "output_200mb_memory": Work([PRINT_200_MB], "MB", lambda cost: cost.peak_bytes / 1e6),
    "empty_notebook": Work(["pass"], "s", lambda cost: cost.wall_seconds),
}
QUEUES = {"queue_vs_sequential": "sequential", "queue_vs_xargs": "xargs"}
SUPERVISION = "supervision_cpu_percent"
ROWS = (*WORKS, *warm_start.KERNELS, *QUEUES, SUPERVISION)


def measure(runs: int, names: Sequence[str] = ROWS) -> Results:
    """Measure rows, ours and theirs alternately.

    Args:
        runs: how often each is measured, at least 1.
        names: of the rows.

    Raises:
        RocmlabError: a notebook did not run, or there is no such row.
    """
    check_names(names, ROWS)
    results = Results(discover()[-1].name, simulated=False)
    if works := [name for name in names if name in WORKS]:
        _measure_notebooks(runs, works, results)
    for name in (name for name in names if name in warm_start.KERNELS):
        if why := warm_start.missing(name):
            results.skipped[name] = why
        else:
            results.extend(name, "s", *warm_start.measure(name, runs))
    if queued := [name for name in names if name in QUEUES]:
        _measure_queues(runs, queued, results)
    if SUPERVISION in names:
        results.extend(SUPERVISION, "percent", supervision.measure(runs))
    return results


def _measure_queues(runs: int, names: Sequence[str], results: Results) -> None:
    found = queues.measure(runs)
    for name in names:
        if found["ours"]:
            results.extend(name, "s", found["ours"], found[QUEUES[name]])
        else:
            results.skipped[name] = f"no kernelspec found: {queues.KERNEL}"


def _measure_notebooks(runs: int, names: Sequence[str], results: Results) -> None:
    with tempfile.TemporaryDirectory(prefix="rocmlab-bench-") as name:
        folder = Path(name)
        write_kernel(folder)
        variables = environment(JUPYTER_PATH=folder, IPYTHONDIR=folder / "ipython")
        for number in range(runs + 1):  # the first round warms the files, and does not count
            for row in names:
                work = WORKS[row]
                notebook = write_notebook(folder / f"{row}.ipynb", work.cells if number else ["pass"])
                ours, theirs = (work.value(run(notebook, variables)) for run in (_ours, _theirs))
                if number:
                    results.add(row, work.unit, ours, theirs)


def _ours(notebook: Path, environment: Mapping[str, str]) -> Cost:
    job = {"notebook": str(notebook), "output": str(notebook.with_suffix(".ours.ipynb")), "kernel": KERNEL}
    description = notebook.with_suffix(".json")
    description.write_text(json.dumps(job), encoding="utf-8")
    return _cost([sys.executable, "-c", WORKER, str(description)], environment, notebook.with_suffix(".log"))


def _theirs(notebook: Path, environment: Mapping[str, str]) -> Cost:
    output = str(notebook.with_suffix(".theirs.ipynb"))
    command = [sys.executable, "-c", queues.PAPERMILL, str(notebook), output, "--no-progress-bar"]
    return _cost(command, environment, notebook.with_suffix(".log"))


def _cost(command: Sequence[str], environment: Mapping[str, str], log: Path) -> Cost:
    """Run a command and return what it has cost.

    Raises:
        RocmlabError: it failed.
    """
    peak_bytes = 0
    with log.open("wb") as file:
        began = time.monotonic()
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=file, stderr=file, env=environment)
        while True:
            pid, status, usage = os.wait4(process.pid, os.WNOHANG)
            if pid:
                break
            peak_bytes = max(peak_bytes, _memory_bytes(process.pid))
            time.sleep(POLL_SECONDS)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        output = log.read_text(encoding="utf-8", errors="replace")[-600:]
        raise RocmlabError(
            f"a notebook of the benchmark ended with exit code {process.returncode}",
            output.strip() or "no output",
            "pip install 'rocmlab[lab]' ipykernel, where this command runs",
        )
    return Cost(time.monotonic() - began, usage.ru_utime + usage.ru_stime, peak_bytes)


def _memory_bytes(pid: int) -> int:
    import psutil

    try:
        process = psutil.Process(pid)
        return sum(each.memory_info().rss for each in (process, *process.children(recursive=True)))
    except psutil.Error:  # one of them has just ended
        return 0
