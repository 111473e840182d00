"""Real processes that pretend to use the GPUs of a simulated host, and what rocmlab makes of them."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from rocmlab.devices import Device, discover
from rocmlab.simulation import GpuUse, write_host
from rocmlab.telemetry.attribution import attribute
from rocmlab.telemetry.model import GpuProcess
from rocmlab.telemetry.owners import ProcSource, Source

WAIT_SECONDS = 60.0
READER = "import sys; sys.stdin.read()"


def gpus(root: Path) -> list[Device]:
    """Return the simulated GPUs."""
    return [device for device in discover(root, {}) if device.backend == "rocm"]


def attributed(root: Path, *pids: int, sources: Sequence[Source] | None = None) -> list[GpuProcess]:
    """Write a host with one GPU that these processes use, and return them with their owners, in this order."""
    write_host(root, gpus=1, processes=[GpuUse(pid) for pid in pids])
    found = {each.pid: each for each in attribute(gpus(root), root, sources or [ProcSource(root)])}
    return [found[pid] for pid in pids]


@contextlib.contextmanager
def reader(*command: str, **more: object) -> Iterator[subprocess.Popen[bytes]]:
    """A process that waits for the end of its input; it is ended."""
    words = command or (sys.executable, "-c", READER)
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, **more) as process:  # type: ignore[call-overload]
        try:
            yield process
        finally:
            process.kill()


def until(holds: Callable[[], object], what: str) -> None:
    """Wait until something is true."""
    end = time.monotonic() + WAIT_SECONDS
    while not holds():
        assert time.monotonic() < end, what
        time.sleep(0.02)
