"""`%%profile_gpu rocprofv3`: a cell as a script of its own under AMD's profiler. See docs/cell-cost.md.

rocprofv3 has to be there when a process starts, so it cannot profile a kernel without ending it. Attaching (since ROCm
7.1) needs a variable in the kernel's environment at its start, and the right to trace it, which containers lack.

Source: ROCprofiler-SDK's documentation. Since ROCm 7 the default output is a database; CSV and Perfetto's format are
there since 6.2, so they are requested by name. Columns are found by their heads, which became more over time.
"""

from __future__ import annotations

import csv
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from datetime import datetime
from pathlib import Path

from rocmlab.base.errors import RocmlabError
from rocmlab.telemetry.profile import Profile, summarise
from rocmlab.telemetry.profiling import folder_of_traces

TYPE_CHECKING = False  # `typing` itself would cost milliseconds at each start
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from typing import Any

NAME = "rocprofv3"
OPTIONS = ("--kernel-trace", "--memory-copy-trace", "--hip-runtime-trace", "--output-format", "csv", "pftrace")
KERNELS, COPIES = "*kernel_trace.csv", "*memory_copy_trace.csv"
END_SECONDS = 10.0  # after an interrupt, in which the profiler may write what it has


def run(cell: str) -> Profile:
    """Run a cell as a script with what it prints, and return what its GPU kernels took.

    Raises:
        RocmlabError: there is no rocprofv3, the cell is no script, the script failed, or no kernel was seen.
    """
    program = _program()
    try:
        compile(cell, "<cell>", "exec")
    except SyntaxError as err:
        raise RocmlabError(f"the cell is not a script: {err}", f"{NAME} starts plain Python", "omit magics") from None
    with tempfile.TemporaryDirectory(prefix="rocmlab-profile-") as name:
        folder = Path(name)
        script, output = folder / "cell.py", folder / "output"
        script.write_text(cell, encoding="utf-8")
        begin = time.perf_counter()
        code = _execute([program, *OPTIONS, "-d", str(output), "--", sys.executable, "-u", str(script)])
        wall = time.perf_counter() - begin
        if code:
            what = f"the script ended with exit code {code}"
            raise RocmlabError(what, "a script has no variables of the notebook", "define in the cell what it uses")
        left = ", ".join(sorted({path.name for path in output.rglob("*.*")})) or "nothing"
        is_gpu, rows = summarise(_events(output))
        traces = _keep(output) if is_gpu else []
    if not traces:
        what = f"{NAME} has {'written no trace' if is_gpu else 'seen no GPU kernel'}"
        raise RocmlabError(what, f"it left {left}", "%%profile_gpu, with the framework's own profiler")
    return Profile(NAME, wall, is_gpu, rows, traces[0])


def _program() -> str:
    """Return where it is: on PATH, or in ROCm's folder."""
    rocm = os.environ.get("ROCM_PATH") or "/opt/rocm"
    if found := shutil.which(NAME) or shutil.which(NAME, path=f"{rocm}/bin"):
        return found
    why = f"it is neither on PATH nor in {rocm}/bin; it is a part of ROCm, the package rocprofiler-sdk"
    raise RocmlabError(f"{NAME} was not found", why, "%%profile_gpu, with the framework's own profiler")


def _execute(command: list[str]) -> int:
    """Run it with the GPUs of this kernel, and pass on what it prints; return its exit code."""
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace")
    assert process.stdout is not None
    try:
        with process.stdout as lines:
            for line in lines:
                sys.stdout.write(line)
        return process.wait()
    except BaseException:
        process.send_signal(signal.SIGINT)
        with suppress(subprocess.TimeoutExpired):
            process.wait(END_SECONDS)
        raise
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()


def _events(folder: Path) -> Iterator[Mapping[str, Any]]:
    """Yield what ran on GPUs as events of Chrome's format, of all processes of the script."""
    for pattern, category in ((KERNELS, "kernel"), (COPIES, "gpu_memcpy")):
        for path in sorted(folder.rglob(pattern)):
            with path.open(encoding="utf-8", errors="replace", newline="") as file:
                for row in csv.DictReader(file):
                    begin, end = int(row["Start_Timestamp"]), int(row["End_Timestamp"])  # nanoseconds
                    yield {
                        "ph": "X",
                        "cat": category,
                        "name": row["Kernel_Name"] if category == "kernel" else _copy(row["Direction"]),
                        "pid": path.name,
                        "tid": row.get("Queue_Id", ""),
                        "ts": begin / 1e3,
                        "dur": (end - begin) / 1e3,
                    }


def _copy(direction: str) -> str:
    """Return `copy host to device` of MEMORY_COPY_HOST_TO_DEVICE, or without that prefix, as in ROCm 6."""
    return f"copy {direction.removeprefix('MEMORY_COPY_').lower().replace('_', ' ')}"


def _keep(folder: Path) -> list[Path]:
    """Move the traces of the script's processes to where traces are kept; return them, the largest first."""
    found = sorted(folder.rglob("*.pftrace"), key=lambda path: -path.stat().st_size)
    kept, stem = folder_of_traces(), f"{datetime.now():profile-%Y%m%dT%H%M%S.%f}-{os.getpid()}"
    moved = []
    for number, path in enumerate(found):
        target = kept / f"{stem}{f'-{number}' if number else ''}.pftrace"
        shutil.move(path, target)
        moved.append(target)
    return moved
