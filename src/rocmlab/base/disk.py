"""How much space a lab needs to write, and whether it has it: checked by the doctor, by `make up` and by every run."""

from __future__ import annotations

import math
import os
import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path

from rocmlab.base.errors import Problem, RocmlabError

NAME = "MIN_FREE_DISK_GB"
DEFAULT_GB = "5"


def minimum_bytes(environment: Mapping[str, str]) -> float:
    """Return the free space in bytes below which the lab warns and runs do not start; 0: never.

    Raises:
        RocmlabError: MIN_FREE_DISK_GB is not a number.
    """
    text = environment.get(NAME) or DEFAULT_GB
    try:
        gigabytes = float(text)
    except ValueError:
        gigabytes = math.nan
    if not 0 <= gigabytes < math.inf:
        raise RocmlabError(
            f"{NAME}={text} is not a number of gigabytes",
            "it is the free space below which the lab warns; 0: never",
            f"make up {NAME}={DEFAULT_GB}",
        )
    return gigabytes * 1e9


def problem(folders: Iterable[Path], minimum: float, *, environment: Mapping[str, str] = os.environ) -> Problem | None:
    """Return what is wrong where one of these folders is on a disk with less than `minimum` bytes free.

    Args:
        folders: of the lab; for one that does not exist yet, where it will be.
        minimum: in bytes; 0 asks nothing.
        environment: of the lab, which says where the command is given that frees space.
    """
    for folder in folders if minimum else ():
        try:
            existing = next((each for each in (folder, *folder.parents) if each.exists()), folder)
            free = shutil.disk_usage(existing).free
        except OSError:
            continue  # this user may not look there
        if free < minimum:
            prune = "on the host: make clean RUNS=30d" if environment.get("ROCMLAB_RUNTIME") else "make clean RUNS=30d"
            return Problem(
                f"the disk of {folder} has {free / 1e9:.1f} GB free",
                f"less than {NAME}={minimum / 1e9:g}: notebooks, checkpoints and results may not fit",
                f"free space there; {prune} removes old runs and lists them first\n"
                f"du -xh --max-depth=2 {folder} | sort -h | tail      # shows what is large\n"
                f"or another limit: make up {NAME}=1",
            )
    return None
