"""The mark of a job in the memory that a process got its environment in, and every process that carries it.

`/proc/PID/environ` shows the memory in which a process got its environment, whatever it has made of it since. A fork
inherits it. So a forked kernel writes its own job's mark over the placeholder that its parent was started with; what it
starts gets the mark in the ordinary way.
"""

from __future__ import annotations

import ctypes
import os
import re
import select
import signal
from collections.abc import Collection
from pathlib import Path

NAME = "ROCMLAB_JOB"  # as in rocmlab.kernels.job_processes, which an interpreter without rocmlab cannot import
PLACEHOLDER = "-" * 16
PATTERN = re.compile(r"[0-9a-f]{16}")
ROUNDS = 5  # a process may start another while it is looked for
KILL_SECONDS = 0.5
ENV_START = 50  # the field of /proc/PID/stat, counted from 1


def write(mark: str) -> None:
    """Write this process's mark over its placeholder.

    Raises:
        OSError: the memory is not where the system says, or there is no placeholder.
    """
    block = Path("/proc/self/environ").read_bytes()
    found = re.search(rb"(?:^|\0)" + NAME.encode() + b"=([^\0]{16})(?:\0|$)", block)
    start = int(Path("/proc/self/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[ENV_START - 3])
    if not found or not start:
        raise OSError(f"no placeholder for {NAME} in the first environment of this process")
    ctypes.memmove(start + found.start(1), mark.encode("ascii"), len(PLACEHOLDER))
    if not _carries(os.getpid(), mark):
        raise OSError(f"{NAME} could not be written into the first environment of this process")


def kill(mark: str, spared: Collection[int] = ()) -> None:
    """Kill every process that carries a mark, but for this one and those to be spared."""
    spared = {os.getpid(), *spared}
    for _ in range(ROUNDS):
        killed = [pid for pid in _processes() if pid not in spared and _kill(pid, mark)]
        if not killed:
            return


def _kill(pid: int, mark: str) -> bool:
    """Kill a process if it carries a mark, and wait until it is gone or hangs in a driver."""
    if not _carries(pid, mark):
        return False
    try:
        descriptor = os.pidfd_open(pid)
    except OSError:
        return False
    try:
        if not _carries(pid, mark):  # the number was another's a moment ago
            return False
        signal.pidfd_send_signal(descriptor, signal.SIGKILL)
        poll = select.poll()
        poll.register(descriptor, select.POLLIN)
        return bool(poll.poll(KILL_SECONDS * 1000))
    except (ProcessLookupError, PermissionError):
        return False
    finally:
        os.close(descriptor)


def _processes() -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]


def _carries(pid: int, mark: str) -> bool:
    try:
        block = Path(f"/proc/{pid}/environ").read_bytes()  # empty once the process has ended
    except OSError:
        return False
    return f"{NAME}={mark}".encode() in block.split(b"\0")
