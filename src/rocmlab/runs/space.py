"""The free space on the disk of a share, before a run begins and before each of its jobs."""

from __future__ import annotations

import os
from pathlib import Path

from rocmlab.base import disk, live
from rocmlab.base.errors import Problem, RocmlabError


def lack(share: Path) -> Problem | None:
    """Return what is wrong where the share's disk is nearly full.

    Raises:
        RocmlabError: MIN_FREE_DISK_GB is not a number.
    """
    return disk.problem([share], disk.minimum_bytes(live.values(os.environ)), environment=os.environ)


def check(share: Path) -> None:
    """Make sure that there is enough disk space for a run.

    Raises:
        RocmlabError: the disk is nearly full; what is there is not touched.
    """
    if problem := lack(share):
        raise RocmlabError(f"the run does not start: {problem.what}", problem.why, problem.fix)
