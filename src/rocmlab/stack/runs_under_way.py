"""The headless runs that are under way on a share, found by the lock on their journal.

Nothing but the standard library, and nothing of this package: the text of this file is also given to the Python of a
running container, which may have an earlier version of rocmlab.
"""

import contextlib
import fcntl
import json
import os
import stat
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

MAX_RUNS = 300  # the newest; a run that still continues is hardly older


def under_way(runs: Path) -> list[dict[str, Any]]:
    """Return the runs in a share's folder `runs` that a process works on, newest first; what is not known is None.

    Each has `name`, `since` (UTC, ISO 8601), `host`, `pid` (there), `jobs` and `finished` (counts), and `devices`.
    """
    journals = sorted(runs.glob("*/journal.jsonl"), key=lambda path: path.parent.name, reverse=True)
    return [_described(path) for path in journals[:MAX_RUNS] if _is_locked(path)]


def _is_locked(journal: Path) -> bool:
    try:
        # O_NONBLOCK: a pipe would wait for ever.
        file = os.open(journal, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return stat.S_ISREG(os.fstat(file).st_mode)
    except OSError:
        return False
    finally:
        os.close(file)
    return False


def _described(journal: Path) -> dict[str, Any]:
    found: dict[str, Any] = {"name": journal.parent.name, "since": None, "host": None, "pid": None, "jobs": None}
    running: dict[str, list[str]] = {}
    finished = 0
    for event in _readable(journal):
        kind, job = event.get("event"), str(event.get("job"))
        if kind in ("run started", "run resumed"):
            found["jobs"] = len(_list(event.get("jobs"))) or found["jobs"]
            found |= {"since": event.get("time"), "host": event.get("host"), "pid": event.get("pid")}
            running, finished = {}, len(_list(event.get("skipped")))
        elif kind == "job started":
            running[job] = [_device(each) for each in _list(event.get("devices")) if isinstance(each, dict)]
        elif kind == "job finished":
            running.pop(job, None)
            finished += 1
    devices = sorted({name for names in running.values() for name in names if name})
    return {**found, "finished": finished, "running": sorted(running), "devices": devices}


def _readable(journal: Path) -> Iterator[dict[str, Any]]:
    with contextlib.suppress(OSError):
        yield from events(journal)


def _list(value: object) -> list[Any]:
    return value if isinstance(value, list) else []


def _device(identity: dict[str, Any]) -> str:
    if identity.get("backend") == "cpu":
        return ""
    index = identity.get("index")
    return f"GPU {index}" if index is not None else str(identity.get("pci_address") or "")


def events(journal: Path) -> Iterator[dict[str, Any]]:
    """Yield the events of a journal, which may be larger than the memory; raise OSError if it is not readable."""
    with journal.open("rb") as lines:
        for line in lines:
            try:
                event = json.loads(line)
            except (ValueError, RecursionError):
                continue  # the line that is just being written
            if isinstance(event, dict):
                yield event


if __name__ == "__main__":
    print(json.dumps(under_way(Path(sys.argv[1]))))  # noqa: T201  # its output is read by `rocmlab.stack.busy`
