"""A node's description for other programs of this machine: one small file next to its token."""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rocmlab.base import files, identity
from rocmlab.base.errors import Problem

STARTING, READY, FAILED = "starting", "ready", "failed"
FOLDERS = "rocmlab-ray-{uid}-*"


@dataclass(frozen=True)
class Record:
    """One node of this machine."""

    pid: int  # of `rocmlab cluster node`
    state: str  # starting, ready or failed
    head: str  # host:port
    address: str  # this machine's own
    port: int  # CLUSTER_PORT
    is_head: bool
    gpus: int
    simulated: bool
    problem: dict[str, str] | None = None  # what, why and fix, where it failed
    started: str | None = None  # when the process did, see `identity`

    @property
    def is_alive(self) -> bool:
        """Return whether its process runs, and is not another one with the same number."""
        # one that was recorded before `started` was is known by its command alone
        return is_node(self.pid) and self.started in (None, identity.start_of(self.pid))

    @property
    def failure(self) -> Problem | None:
        """Why it failed; None where it did not."""
        return Problem(**self.problem) if self.problem else None

    def write(self, path: Path) -> None:
        """Replace the file."""
        files.write_text(path, json.dumps(asdict(self)) + "\n")


def read(path: Path) -> Record | None:
    """Return the content of a file; None where it is missing or truncated."""
    try:
        return parse(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError):
        return None


def parse(text: str) -> Record | None:
    """Parse the text of such a file; None where it is truncated."""
    try:
        found: dict[str, Any] = json.loads(text)
        return Record(**found)
    except (ValueError, TypeError):
        return None


def is_node(pid: int) -> bool:
    """Return whether this process is `rocmlab cluster node`, by its command line: a number alone proves nothing."""
    if identity.find(pid) is None:
        return False
    arguments = identity.arguments_of(pid)[1:]
    return arguments[:4] == ["-m", "rocmlab", "cluster", "node"] or arguments[1:3] == ["cluster", "node"]


def here(environment: Mapping[str, str] = os.environ) -> tuple[Record, Path] | None:
    """Return this user's living node here and its folder: that of the environment's token, else the newest."""
    own = [(when, folder) for folder in Path("/tmp").glob(FOLDERS.format(uid=os.getuid())) if (when := _made(folder))]
    folders = [folder for _when, folder in sorted(own, reverse=True)]
    if path := environment.get("RAY_AUTH_TOKEN_PATH"):
        folders.insert(0, Path(path).parent)
    for folder in folders:
        found = read(folder / "node.json")
        if found and _made(folder) and found.is_alive and found.state != FAILED:
            return found, folder
    return None


def _made(folder: Path) -> float:
    """Return when this user changed a folder, in seconds; 0 for what is another's, a link or no folder."""
    try:
        found = folder.lstat()
    except OSError:
        return 0
    return found.st_mtime if stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid() else 0
