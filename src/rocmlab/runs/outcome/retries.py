"""When a job is retried, and what is kept of the attempts before."""

from __future__ import annotations

import glob
import os
import re
from collections.abc import Mapping
from typing import Any

from rocmlab.runs.folder import KINDS, RunFolder
from rocmlab.runs.jobs import Status

MAY_PASS: tuple[Status, ...] = ("kernel died", "killed")  # a driver's hiccup, a full memory; not an exception
KEPT = ("status", "message", "started", "seconds", "devices", "files")


def may_pass(status: Status) -> bool:
    """Return whether a retry may end differently."""
    return status in MAY_PASS


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
    """Return an ending as an entry of the `attempts` of a later one.

    Args:
        result: of `results.json`.
        files: what is kept of it.
    """
    error = result.get("error") or {}
    made = {name: result.get(name) for name in KEPT} | {"message": str(error.get("value", "")), "files": dict(files)}
    return {**made, "devices": result.get("devices") or []}
