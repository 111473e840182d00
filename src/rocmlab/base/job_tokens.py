"""Everything that a job started ends with it, however it was started: a token in its environment identifies it.

A kernel has a session of its own, and what a cell starts may leave every process group and outlive its parent. Its
first environment cannot be lost by accident, so each job's contains a token. `/proc/PID/environ` shows the memory in
which a process received its environment, whatever it changed since, and a fork inherits it: a forked kernel writes its
own token over the placeholder with which its fork server was started.

The fork server loads this file by its path, under an interpreter that may not have rocmlab.
"""

from __future__ import annotations

import os
import re
import secrets
import signal
import sys
import time
from collections.abc import Collection
from pathlib import Path

NAME = "ROCMLAB_JOB"
PLACEHOLDER = "-" * 16
PATTERN = re.compile(r"[0-9a-f]{16}")
HAS_PROC = sys.platform == "linux"
ROUNDS = 5  # a process may start another during the search
KILL_SECONDS = 1.0  # for killed processes to exit; one that hangs in a driver does not
LOOK_SECONDS = 0.005 if HAS_PROC else 0.2  # where each look starts `ps`
THREADS, ENV_START = 20, 50  # fields of /proc/PID/stat, counted from 1


def new() -> str:
    """Return a token that no other job has."""
    return secrets.token_hex(8)


def carries(pid: int, token: str, name: str = NAME) -> bool:
    """Return whether a process carries a token in its first environment; a zombie has none (Linux)."""
    try:
        block = Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:  # exited, or another user's
        return False
    return f"{name}={token}".encode() in block.split(b"\0")


def find(token: str, name: str = NAME) -> list[int]:
    """Return all processes that carry a token, except this one."""
    if not HAS_PROC:
        return [pid for pid in _listed(token, name) if pid != os.getpid()]
    pids = [int(entry) for entry in os.listdir("/proc") if entry.isdigit()]
    return [pid for pid in pids if pid != os.getpid() and carries(pid, token, name)]


def _listed(token: str, name: str) -> list[int]:
    """Return the processes that carry a token, as macOS lists them."""
    import subprocess

    command = ["ps", "-A", "-E", "-ww", "-o", "pid=,command="]
    output = subprocess.run(command, capture_output=True, text=True, errors="replace", env={}, check=False).stdout
    rows = [line.split() for line in output.splitlines()]
    return [int(row[0]) for row in rows if f"{name}={token}" in row]


def end(token: str, grace_seconds: float = 2.0) -> list[int]:
    """End all processes of a job: SIGTERM, wait, then SIGKILL.

    Returns:
        Those that did not exit, such as one that hangs in a driver.
    """
    pids = find(token)
    if pids and grace_seconds > 0:
        for pid in pids:
            _send(pid, token, signal.SIGTERM)
            _send(pid, token, signal.SIGCONT)  # a stopped process receives SIGTERM when it continues
        _wait(pids, token, grace_seconds)
    for _ in range(ROUNDS):
        if not find(token):
            return []
        kill(token)
    return find(token)


def kill(token: str, spared: Collection[int] = ()) -> None:
    """Kill all processes that carry a token, except this one and those in `spared`."""
    passed = set(spared)
    for _ in range(ROUNDS):
        pids = [pid for pid in find(token) if pid not in passed and _send(pid, token, signal.SIGKILL)]
        if not pids:
            return
        passed |= _wait(pids, token, KILL_SECONDS)


def _wait(pids: Collection[int], token: str, seconds: float) -> set[int]:
    """Wait until processes have exited, and return those that have not."""
    left = set(pids)
    deadline = time.monotonic() + seconds
    while left := {pid for pid in left if not _has_exited(pid)} if HAS_PROC else left & set(find(token)):
        if time.monotonic() > deadline:
            break
        time.sleep(LOOK_SECONDS)
    return left


def _has_exited(pid: int) -> bool:
    """Return whether a process has closed its files and locks; its environment is gone long before that."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return True
    fields = text.rpartition(")")[2].split()
    return fields[0] in "ZX" and int(fields[THREADS - 3]) <= 1  # its other threads may still be in a driver


def _send(pid: int, token: str, number: signal.Signals) -> bool:
    """Send a signal to a process that still carries a token; its number may have been reused."""
    try:
        descriptor = os.pidfd_open(pid)  # type: ignore[attr-defined,unused-ignore]
    except ProcessLookupError:
        return False
    except (AttributeError, OSError):  # macOS, or a container that forbids it
        descriptor = None
    try:
        if HAS_PROC and not carries(pid, token):
            return False
        if descriptor is None:
            os.kill(pid, number)
        else:
            signal.pidfd_send_signal(descriptor, number)  # type: ignore[attr-defined,unused-ignore]
    except (ProcessLookupError, PermissionError):
        return False
    finally:
        if descriptor is not None:
            os.close(descriptor)
    return True


def write(token: str) -> None:
    """Write this process's token over its placeholder.

    Raises:
        OSError: the memory is not where the system reports it, or contains no placeholder.
    """
    import ctypes

    block = Path("/proc/self/environ").read_bytes()
    found = re.search(rb"(?:^|\0)" + NAME.encode() + b"=([^\0]{16})(?:\0|$)", block)
    start = int(Path("/proc/self/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[ENV_START - 3])
    if not found or not start:
        raise OSError(f"no placeholder for {NAME} in the first environment of this process")
    ctypes.memmove(start + found.start(1), token.encode("ascii"), len(PLACEHOLDER))
    if not carries(os.getpid(), token):
        raise OSError(f"{NAME} could not be written into the first environment of this process")
