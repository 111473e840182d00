"""How many processors' cores this process may use."""

from __future__ import annotations

import os
import re
from pathlib import Path


def count(root: Path = Path("/")) -> int:
    """Return the number of cores: this process's affinity, or its control group's share if that is less.

    Source: sched_getaffinity(2); cpu.max of cgroup v2, which has a quota and a period in microseconds, or `max`.
    """
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    try:
        text = (root / "sys/fs/cgroup/cpu.max").read_text(encoding="ascii")
    except (OSError, UnicodeDecodeError):
        return cores
    share = re.fullmatch(r"([0-9]{1,12}) ([1-9][0-9]{0,11})", text.strip())
    return min(cores, max(1, -(-int(share[1]) // int(share[2])))) if share else cores
