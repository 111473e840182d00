"""`rocmlab run --list`: the runs of a share, newest first."""

from __future__ import annotations

import json
import logging
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rocmlab.base import records, safe
from rocmlab.reports.values import is_number
from rocmlab.runs.folder import PARTS, RunFolder
from rocmlab.runs.outcome import history

log = logging.getLogger("rocmlab")

MAX_RUNS = 1000


def runs_of(runs: Path) -> list[dict[str, Any]]:
    """Return the runs of a share, newest first.

    One that cannot be read is listed as `unreadable`; one that never began is omitted.
    """
    folders = [RunFolder(path.parent) for path in history.newest(runs, "journal.jsonl", MAX_RUNS)]
    return [_run(folder) for folder in folders if not folder.is_stub()]


def _run(folder: RunFolder) -> dict[str, Any]:
    found = _from_results(folder)
    if folder.is_going():
        return {**_from_journal(folder), "status": "running"}
    return found or _from_journal(folder)


def _from_results(folder: RunFolder) -> dict[str, Any] | None:
    try:
        with safe.reading(folder.results_path) as file:
            results = json.loads(file.read())
        run, counts = results["run"], Counter(str(job["status"]) for job in results["jobs"])
        started = run["started"] if records.is_time(run["started"]) else None
        seconds = run["seconds"] if is_number(run["seconds"]) else None
        return _entry(folder, safe.printable(run["status"]), started, seconds, counts, len(results["jobs"]))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as err:
        log.debug("%s: %s: %s", folder.results_path, type(err).__name__, err)
        return None


def _from_journal(folder: RunFolder) -> dict[str, Any]:
    """Return what is known of a run that has not finished, was interrupted, or runs elsewhere."""
    started, jobs, last = None, 0, {}
    try:
        for event in folder.journal():
            if event.get("event") == "run started":
                started = event["time"] if records.is_time(event["time"]) else None
                jobs = len(event.get("jobs", ()))
            elif event.get("event") == "job finished":
                last[event.get("job")] = str(event["result"]["status"])
    except (OSError, KeyError, TypeError, AttributeError) as err:
        log.debug("%s: %s: %s", folder.journal_path, type(err).__name__, err)
    status = "cut short" if started else "unreadable"
    if started and (folder.path / PARTS).is_dir():
        status, last = "exported", last | _in_parts(folder.path / PARTS)
    return _entry(folder, status, started, None, Counter(last.values()), jobs)


def _in_parts(parts: Path) -> dict[Any, str]:
    """Return the status of each job of an exported run that has finished, by name."""
    found = {}
    for path in parts.glob("*.json"):
        try:
            jobs = json.loads(path.read_text(encoding="utf-8"))["jobs"]
            found.update({job["name"]: str(job["status"]) for job in jobs})
        except (OSError, ValueError, KeyError, TypeError, RecursionError) as err:
            log.debug("%s: %s: %s", path, type(err).__name__, err)
    return found


def _entry(
    folder: RunFolder, status: str, started: str | None, seconds: float | None, counts: Mapping[str, int], jobs: int
) -> dict[str, Any]:
    return {
        "name": folder.path.name,
        "folder": str(folder.path),
        "status": status,
        "started": started,
        "seconds": seconds,
        "jobs": jobs,
        "counts": {safe.printable(status): count for status, count in counts.items()},
    }
