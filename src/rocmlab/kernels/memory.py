"""Memory: how much a kernel may allocate, what the system kills first when there is none left, and what it killed."""

from __future__ import annotations

import contextlib
import resource
import sys
from pathlib import Path

EXPENDABLE = 300  # oom_score_adj, in thousandths of the memory there is; browsers give it to their pages
OOM_COUNTERS = (
    "/sys/fs/cgroup{group}/memory.events",
    "/sys/fs/cgroup/memory.events",
    "/sys/fs/cgroup/memory{memory}/memory.oom_control",
    "/sys/fs/cgroup/memory/memory.oom_control",
    "/proc/vmstat",
)


def limit(pid: int, memory_bytes: int | None) -> None:
    """Let a process, and what it will start, allocate no more than this; where there is no `prlimit`, do nothing.

    The limit is RLIMIT_DATA: private memory that can be written, touched or not. A mapped file does not count.
    """
    if memory_bytes is not None and sys.platform == "linux":
        with contextlib.suppress(ProcessLookupError):  # it has exited, which is found out later
            resource.prlimit(pid, resource.RLIMIT_DATA, (memory_bytes, memory_bytes))


def make_expendable(pid: int) -> None:
    """Have the system kill a process, and what it starts from now on, before its starter when memory runs out.

    Source: /proc/PID/oom_score_adj, which anyone may raise; where there is none, nothing is changed.
    """
    path = Path(f"/proc/{pid}/oom_score_adj")
    with contextlib.suppress(OSError, ValueError):
        if int(path.read_text(encoding="ascii")) < EXPENDABLE:
            path.write_text(str(EXPENDABLE), encoding="ascii")


def oom_kills() -> int:
    """Return how many processes of this control group the system has killed because memory ran out.

    Source: `memory.events` (cgroup v2), `memory.oom_control` (v1); `/proc/vmstat` where the group has no counter.
    """
    groups = {"": "", "memory": ""}  # by controller; v2 has one for all
    with contextlib.suppress(OSError):
        for line in Path("/proc/self/cgroup").read_text(encoding="utf-8").splitlines():
            _, controllers, group = line.split(":", 2)
            groups |= {name: group.rstrip("/") for name in controllers.split(",")}
    for pattern in OOM_COUNTERS:
        with contextlib.suppress(OSError, ValueError):
            path = Path(pattern.format(group=groups[""], memory=groups["memory"]))
            counts = dict(line.split() for line in path.read_text(encoding="utf-8").splitlines())
            if "oom_kill" in counts:
                return int(counts["oom_kill"])
    return 0
