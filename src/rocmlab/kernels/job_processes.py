"""Everything a job started ends with it, however it was started.

A kernel lives in a session of its own, and what a cell starts may leave every group and outlive its parent. What no
process can shed without meaning to is its first environment, so each job's carries a mark, and the mark is looked for.
"""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import psutil

MARK = "ROCMLAB_JOB"
EXPENDABLE = 300  # oom_score_adj, in thousandths of the memory there is; browsers give it to their pages
ROUNDS = 5  # a process may start another while it is looked for


def new_mark() -> str:
    """Return a mark that no other process has."""
    return secrets.token_hex(8)


def marked(mark: str) -> list[int]:
    """Return the processes whose environment carries this mark."""
    import psutil

    me = psutil.Process().pid
    found = psutil.process_iter(["environ", "status"])
    return [
        process.pid
        for process in found
        if (process.info["environ"] or {}).get(MARK) == mark
        and process.info["status"] != psutil.STATUS_ZOMBIE
        and process.pid != me
    ]


def end(mark: str, grace_seconds: float = 2.0) -> list[int]:
    """End every process of a job: ask, wait, then kill.

    Returns:
        Those that could not be ended, such as one that hangs in a driver.
    """
    import psutil

    for round_ in range(ROUNDS):
        pids = marked(mark)
        if not pids:
            return []
        is_polite = round_ == 0 and grace_seconds > 0
        _signal(pids, "terminate" if is_polite else "kill")
        psutil.wait_procs(_processes(pids), timeout=grace_seconds if is_polite else 1.0)
    return marked(mark)


def let_go_first(pid: int) -> None:
    """Have a process, and what it starts from now on, ended before the runner where the system runs out of memory.

    Source: /proc/PID/oom_score_adj, which anyone may raise; where there is none, nothing is changed.
    """
    path = Path(f"/proc/{pid}/oom_score_adj")
    with contextlib.suppress(OSError, ValueError):
        if int(path.read_text(encoding="ascii")) < EXPENDABLE:
            path.write_text(str(EXPENDABLE), encoding="ascii")


def _signal(pids: Sequence[int], verb: str) -> None:
    import psutil

    for process in _processes(pids):
        with contextlib.suppress(psutil.NoSuchProcess, psutil.AccessDenied):
            getattr(process, verb)()
            if verb == "terminate":
                process.resume()  # a stopped process hears SIGTERM only when it goes on


def _processes(pids: Sequence[int]) -> list[psutil.Process]:
    import psutil

    found = []
    for pid in pids:
        with contextlib.suppress(psutil.NoSuchProcess):
            found.append(psutil.Process(pid))
    return found
