"""The ranks of one job: started together, their lines shown as they come, ended together when one fails.

A small launcher instead of torchelastic (`torch.distributed.run`), whose agent opens two stores on all interfaces, asks
for no password, and unpickles what is written there: any user of the machine could run code as the lab's owner.
"""

from __future__ import annotations

import contextlib
import queue
import re
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from rocmlab.training import children

KEPT_LINES = 15  # of each rank, for the error
POLL_SECONDS = 0.05
SETTLE_SECONDS = 0.3  # after the first failure: two that fail at the same time are both seen, and compared
DRAIN_SECONDS = 2.0  # for the last lines, when every process has exited
PREFIX = re.compile(r"^\[rank\d+\]: ?")  # PyTorch's own, in front of some lines
STORE, NOTES = "ROCMLAB_RANK_STORE", "ROCMLAB_RANK_NOTES"  # folders, for rank.py


@dataclass
class Attempt:
    """The result of one start of all ranks."""

    failed: dict[int, int] = field(default_factory=dict)  # exit codes of those that failed before they were ended
    lines: dict[int, deque[str]] = field(default_factory=dict)  # the last of each rank
    is_late: bool = False  # the time was up


def run(
    command: Sequence[str], env: Mapping[str, str], count: int, folder: Path, deadline: float, restarts: tuple[int, int]
) -> Attempt:
    """Run `count` ranks until all have exited, or one has failed; no process of them outlives this.

    Args:
        command: what each rank runs.
        env: as `children.rank_environment` returned it.
        count: how many ranks.
        folder: empty, and this user's alone: here the ranks meet, and note when they fail.
        deadline: of `time.monotonic`.
        restarts: how many there were before, and how many there may be.
    """
    found = Attempt()
    arrived: queue.Queue[tuple[int, str]] = queue.Queue()
    started: list[subprocess.Popen[str]] = []
    readers = []
    try:
        for rank in range(count):
            started.append(children.start(command, {**env, **_environment(rank, count, folder, restarts)}))
            readers.append(threading.Thread(target=_read, args=(rank, started[rank], arrived), daemon=True))
            readers[rank].start()
        _follow(started, arrived, found, deadline)
    finally:
        children.end(started, env[children.TOKEN])
    end = time.monotonic() + DRAIN_SECONDS
    for reader in readers:
        reader.join(max(0.0, end - time.monotonic()))  # a process that left the job still holds the pipe
    _show(arrived, found)
    return found


def _environment(rank: int, count: int, folder: Path, restarts: tuple[int, int]) -> dict[str, str]:
    """Return what a rank finds in its environment, by the names of torchelastic.

    Source: PyTorch's documentation of torchrun, "Environment Variables". Not MASTER_ADDR and MASTER_PORT: there is no
    server.
    """
    values = {
        **dict.fromkeys(("RANK", "LOCAL_RANK", "ROLE_RANK"), rank),
        **dict.fromkeys(("WORLD_SIZE", "LOCAL_WORLD_SIZE", "ROLE_WORLD_SIZE"), count),
        "GROUP_RANK": 0,
        "GROUP_WORLD_SIZE": 1,
        "ROLE_NAME": "rank",
        "TORCHELASTIC_RUN_ID": "rocmlab",  # by its presence frameworks know that they were launched
        "TORCHELASTIC_RESTART_COUNT": restarts[0],
        "TORCHELASTIC_MAX_RESTARTS": restarts[1],
        **dict.fromkeys((STORE, NOTES), folder),
    }
    return {name: str(value) for name, value in values.items()}


def _read(rank: int, process: subprocess.Popen[str], arrived: queue.Queue[tuple[int, str]]) -> None:
    assert process.stdout is not None
    with process.stdout:
        for line in process.stdout:
            arrived.put((rank, line.rstrip("\n")))


def _follow(
    started: Sequence[subprocess.Popen[str]], arrived: queue.Queue[tuple[int, str]], found: Attempt, deadline: float
) -> None:
    """Show lines until every rank has exited, shortly after the first has failed, or until the deadline."""
    while True:
        _show(arrived, found, POLL_SECONDS)
        codes = [one.poll() for one in started]
        failed = {rank: code for rank, code in enumerate(codes) if code}
        if failed and not found.failed:
            deadline = min(deadline, time.monotonic() + SETTLE_SECONDS)
        found.failed = failed
        if None not in codes:
            return
        if time.monotonic() > deadline:
            found.is_late = not failed
            return


def _show(arrived: queue.Queue[tuple[int, str]], found: Attempt, seconds: float = 0.0) -> None:
    """Print the lines that have arrived, wait that long for the first, and keep the last ones of each rank."""
    end = time.monotonic() + seconds
    with contextlib.suppress(queue.Empty):
        rank, line = arrived.get(timeout=seconds) if seconds else arrived.get_nowait()
        while True:
            text = PREFIX.sub("", line)
            found.lines.setdefault(rank, deque(maxlen=KEPT_LINES)).append(text)
            sys.stdout.write(f"[rank {rank}] {text}\n")
            sys.stdout.flush()
            if seconds and time.monotonic() > end:
                return  # a rank that never stops printing must not keep us from following the others
            rank, line = arrived.get_nowait()
