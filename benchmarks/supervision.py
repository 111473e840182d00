"""What watching costs: the CPU of `rocmlab run` itself while eight notebooks run on eight simulated GPUs for a minute.

The runner, its workers and whatever else it keeps are counted, from when all eight notebooks run until they go on to
their last cell; the kernels, which do the work, are not. The notebooks sleep, print now and then, and go from cell to
cell. The run writes to a terminal, where it has more to do than elsewhere, because a user may look.

Not counted is what a run costs once, before and after that minute: the start of the runner and its workers, and that of
the process that converts notebooks (half a second), which comes with the last cell of a job that takes long.
"""

from __future__ import annotations

import contextlib
import os
import pty
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from benchmarks.environment import environment as environment_with
from benchmarks.environment import write_kernel, write_notebook
from rocmlab import simulation
from rocmlab.base.errors import RocmlabError

JOBS = 8
CELLS = 6  # that are counted
CELL_SECONDS = 10.0
MARGIN = 0.05  # of a cell, so that the last look is before anybody continues to what is not counted
START_SECONDS = 240.0  # until all notebooks run, at most
POLL_SECONDS = 0.1
BEGIN = """
import os, pathlib, time
folder = pathlib.Path({folder!r})
(folder / f"pid.{{os.getpid()}}.new").write_text(str(os.getpid()))
(folder / f"pid.{{os.getpid()}}.new").rename(folder / f"pid.{{os.getpid()}}")
while not (folder / "begin").exists():
    time.sleep(0.05)
begin = float((folder / "begin").read_text())
"""
WORK = """
# Work for a while
end = begin + {end}
while time.time() < end:
    time.sleep(max(0.0, min(2.5, end - time.time())))
    print("a step is done", time.time())
"""
END = """
while not (folder / "end").exists():
    time.sleep(0.05)
"""


def measure(runs: int, *, terminal: bool = True, cell_seconds: float = CELL_SECONDS) -> list[float]:
    """Return the CPU of the runner in percent of one core, once for each run.

    Args:
        runs: how often it is measured.
        terminal: whether the run writes to a terminal or to a file.
        cell_seconds: how long each of the six cells takes.

    Raises:
        RocmlabError: the notebooks did not run.
    """
    found = []
    for _ in range(runs):
        with tempfile.TemporaryDirectory(prefix="rocmlab-bench-") as folder:
            found.append(_once(Path(folder), terminal=terminal, cell_seconds=cell_seconds))
    return found


def _once(folder: Path, *, terminal: bool, cell_seconds: float) -> float:
    notebooks = [str(_write(folder, number, cell_seconds)) for number in range(JOBS)]
    command = [sys.executable, "-m", "rocmlab", "run", *notebooks]
    with _output(folder, terminal=terminal) as output:
        process = subprocess.Popen(
            command,
            env=_environment(folder),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
        try:
            kernels = _wait_for_kernels(process, folder)
            (folder / "begin.new").write_text(repr(time.time()))
            (folder / "begin.new").rename(folder / "begin")
            first, begin = _cpu_seconds(process.pid, kernels), time.monotonic()
            time.sleep(cell_seconds * (CELLS - MARGIN))
            if process.poll() is not None:
                raise _failed(folder)
            last, end = _cpu_seconds(process.pid, kernels), time.monotonic()
            (folder / "end").touch()
            if process.wait(START_SECONDS):
                raise _failed(folder)
        finally:
            if process.poll() is None:
                process.terminate()  # it ends its kernels
                process.wait()
    return 100 * (last - first) / (end - begin)


def _environment(folder: Path) -> dict[str, str]:
    """Return an environment with a plain kernel and eight busy simulated GPUs."""
    write_kernel(folder)
    simulation.write_host(folder / "host", gpus=JOBS, busy="training")
    return environment_with(
        JUPYTER_PATH=folder,
        IPYTHONDIR=folder / "ipython",
        ROCMLAB_ROOT=folder / "host",
        ROCMLAB_RUNTIME="native",
        ROCMLAB_BACKEND="rocm",
        ROCMLAB_SHARE=folder / "share",
        TERM="xterm-256color",
        COLUMNS=120,
        LINES=40,
    )


def _write(folder: Path, number: int, cell_seconds: float) -> Path:
    sources = [BEGIN.format(folder=str(folder))]
    sources += [WORK.format(end=cell_seconds * (cell + 1)) for cell in range(CELLS)]
    return write_notebook(folder / f"night_{number}.ipynb", (*sources, END))


@contextlib.contextmanager
def _output(folder: Path, *, terminal: bool) -> Iterator[int]:
    """Give a descriptor to write to: a file, or a terminal that a thread reads into that file."""
    with (folder / "output").open("wb") as file:
        if not terminal:
            yield file.fileno()
            return
        ours, theirs = pty.openpty()

        def drain() -> None:
            with contextlib.suppress(OSError):  # the last writer has exited
                while text := os.read(ours, 65536):
                    file.write(text)

        reader = threading.Thread(target=drain, daemon=True)
        reader.start()
        try:
            yield theirs
        finally:
            os.close(theirs)
            reader.join(5)
            os.close(ours)


def _wait_for_kernels(process: subprocess.Popen[bytes], folder: Path) -> set[int]:
    until = time.monotonic() + START_SECONDS
    while len(found := list(folder.glob("pid.*[0-9]"))) < JOBS:
        if process.poll() is not None or time.monotonic() > until:
            raise _failed(folder)
        time.sleep(POLL_SECONDS)
    return {int(path.read_text()) for path in found}


def _failed(folder: Path) -> RocmlabError:
    output = (folder / "output").read_bytes()[-1500:].decode("utf-8", "replace").strip()
    why = output or "no output"
    return RocmlabError("the notebooks of the benchmark did not run side by side", why, "pip install 'rocmlab[lab]'")


def _cpu_seconds(runner: int, kernels: set[int]) -> float:
    """Return what a process and those below it have used, kernels and those below them omitted.

    Children that have ended count as well: no kernel ends while this is measured.
    """
    import psutil

    below: list[psutil.Process] = [psutil.Process(runner)]
    total = 0.0
    while below:
        process = below.pop()
        if process.pid in kernels:
            continue
        with contextlib.suppress(psutil.NoSuchProcess):
            times = process.cpu_times()
            total += times.user + times.system + times.children_user + times.children_system
            below += process.children()
    return total
