"""When a job is retried, and what is kept of the attempts before."""

from __future__ import annotations

import glob
import os
import re
from collections import Counter
from collections.abc import Mapping
from typing import Any, Literal

from rocmlab.runs.folder import KINDS, RunFolder
from rocmlab.runs.jobs import Status

MAY_PASS: tuple[Status, ...] = ("kernel died", "killed")  # a driver's hiccup, a full memory; not an exception
MAX_MOVES = 3  # of a job whose machine was lost: not its fault, so that it does not count against `--retries`
MAX_PLACES = 5  # of a job that could not start in its place
KEPT = ("status", "message", "started", "seconds", "devices", "files")


Kind = Literal["retry", "move", "place"]


class Repeats:
    """How often each job was started again in this session of a run."""

    def __init__(self, retries: int) -> None:
        self._allowed: Mapping[Kind, int] = {"retry": retries, "move": MAX_MOVES, "place": MAX_PLACES}
        self._counts: Counter[tuple[str, Kind]] = Counter()

    def left(self, job: str, kind: Kind) -> int:
        """Return how often it may be started again for this reason."""
        return self._allowed[kind] - self._counts[job, kind]

    def count(self, job: str, kind: Kind) -> int:
        """Note that it is started again; return how often it still may be."""
        self._counts[job, kind] += 1
        return self.left(job, kind)


def set_aside(folder: RunFolder, job: str) -> dict[str, str]:
    """Rename what a job has left, so that its next attempt begins with nothing; return the new names by kind.

    `NAME.log` becomes `NAME.attempt1.log`, with the first number that none of its files has.
    """
    folder.remove_drafts(job)
    left = folder.files(job)
    if not left:
        return {}
    taken = {
        int(found[1])
        for path in folder.path.glob(f"{glob.escape(job)}.attempt*")
        if (found := re.fullmatch(rf"{re.escape(job)}\.attempt(\d+)\.\w+", path.name))
    }
    number = max(taken, default=0) + 1
    kept = {kind: f"{job}.attempt{number}{KINDS[kind]}" for kind in left}
    for kind, name in kept.items():
        os.replace(folder.path / left[kind], folder.path / name)
    return kept


def attempt(result: Mapping[str, Any], files: Mapping[str, str]) -> dict[str, Any]:
    """Return a result as an entry of the `attempts` of a later one, with those of its files that are kept."""
    error = result.get("error") or {}
    made = {name: result.get(name) for name in KEPT} | {"message": str(error.get("value", "")), "files": dict(files)}
    return {**made, "devices": result.get("devices") or []}
