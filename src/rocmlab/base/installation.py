"""How far a native environment is: whole, or with JupyterLab alone while its frameworks are still being installed.

Two files in it say which: WHOLE is written last; PART is there as long as JupyterLab could start, but no kernel. Who
installs has a lock in the project, which ends with the process, however that ends.
"""

from __future__ import annotations

import fcntl
import json
import os
import time
from collections.abc import Callable
from pathlib import Path

from rocmlab.base.errors import Problem, RocmlabError

TYPE_CHECKING = False  # `typing` itself would cost milliseconds at each start
if TYPE_CHECKING:
    from typing import Any

WHOLE = "rocmlab-environment.json"
PART = "rocmlab-lab.json"
FAILURE = "rocmlab-failure.json"  # the problem that ended the last attempt in the background
LOCK = ".rocmlab/installing.lock"
LOG = ".rocmlab/installing.log"
FRAMEWORKS = "TensorFlow and PyTorch"
POLL_SECONDS = 0.5
INSTALLING, FAILED, READY = "being installed", "not installed", ""


def is_whole(prefix: Path) -> bool:
    """Return whether kernels may use an environment; one that was not made in two parts is never in between."""
    return (prefix / WHOLE).exists() or not (prefix / PART).exists()


def state(prefix: Path) -> str:
    """Return READY, INSTALLING or FAILED."""
    if is_whole(prefix):
        return READY
    return FAILED if obstacle(prefix) else INSTALLING


def obstacle(prefix: Path) -> Problem | None:
    """Return why the frameworks will not be there without a further command; None: they are, or they are coming."""
    if is_whole(prefix):
        return None
    project = _read(prefix / PART).get("project")
    if isinstance(project, str) and is_locked(Path(project)):
        return None
    if is_whole(prefix):
        return None  # it was finished in between
    found = _read(prefix / FAILURE)
    if all(isinstance(found.get(name), str) for name in ("what", "why", "fix")):
        return Problem(found["what"], found["why"], found["fix"])
    return Problem(
        f"{FRAMEWORKS} are not installed",
        f"the installation in the background was stopped, or could not write why it failed; its log: {LOG}",
        "make up      # continues it",
    )


def wait(prefix: Path, say: Callable[[str], None]) -> None:
    """Wait until the frameworks are installed.

    Raises:
        RocmlabError: they will not be.
    """
    if not is_whole(prefix):
        say(f"waiting for {FRAMEWORKS}, which are being installed in the background")
    while not is_whole(prefix):
        if problem := obstacle(prefix):
            raise RocmlabError.of(problem)
        time.sleep(POLL_SECONDS)


def is_locked(project: Path) -> bool:
    """Return whether something installs into the environment of a project."""
    from rocmlab.base import files  # not before: most commands only look whether an environment is whole

    return files.is_locked(project / LOCK)


def take(project: Path, say: Callable[[str], None] | None) -> int | None:
    """Take the lock of whoever installs; return a descriptor that holds it until it is closed.

    Args:
        project: whose environment is changed.
        say: gets a line before this waits; None: do not wait, and return None where another process has it.
    """
    path = project / LOCK
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        if say is None:
            os.close(descriptor)
            return None
        say(f"waiting for {FRAMEWORKS}, which are being installed in the background: {LOG}")
        fcntl.flock(descriptor, fcntl.LOCK_EX)
    return descriptor


def _read(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}
