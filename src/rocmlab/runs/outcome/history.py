"""How long notebooks took in earlier runs of the share."""

from __future__ import annotations

import itertools
import json
import logging
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, TypedDict

from rocmlab.base import records
from rocmlab.reports.values import canonical, is_number
from rocmlab.runs.jobs import Job, stem

log = logging.getLogger("rocmlab")

NEWEST = 50  # runs that are looked at
MAX_BYTES = 64_000_000  # of a results.json; larger ones are skipped


class _Ended(TypedDict):
    status: Literal["ok"]
    notebook: str
    parameters: dict[str, Any]
    seconds: Annotated[float, lambda value: is_number(value) and 0 <= value < 1e9]


def expected_seconds(jobs: Sequence[Job], runs: Path) -> dict[str, float]:
    """Return how long jobs may take, by their names; jobs that are not known are omitted.

    The newest run counts in which the notebook (by the name of its file) ended ok with the same parameters; else the
    newest with any.
    """
    by_point: dict[tuple[str, str], float] = {}
    by_notebook: dict[str, float] = {}
    for entry in _ended(runs):
        notebook = stem(entry["notebook"])
        by_point.setdefault((notebook, canonical(entry["parameters"])), float(entry["seconds"]))
        by_notebook.setdefault(notebook, float(entry["seconds"]))
    found = (
        (job.name, by_point.get((stem(job.notebook), canonical(job.parameters)), by_notebook.get(stem(job.notebook))))
        for job in jobs
    )
    return {name: seconds for name, seconds in found if seconds is not None}


def _ended(runs: Path) -> Iterator[Mapping[str, Any]]:
    """Yield the jobs that ended ok, newest run first."""
    for path in newest(runs, "results.json"):
        try:
            if path.stat().st_size > MAX_BYTES:
                raise ValueError("it is too large")
            entries = json.loads(path.read_text(encoding="utf-8"))["jobs"]
            yield from [entry for entry in entries if records.fits(entry, _Ended)]
        except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as err:
            log.debug("no times from %s: %s: %s", path, type(err).__name__, err)


def newest(runs: Path, file: str, count: int = NEWEST) -> list[Path]:
    """Return that file of the newest runs; the name of a run begins with its time, to the second."""
    try:
        found = sorted(runs.glob(f"*/{file}"), key=lambda path: path.parent.name, reverse=True)
        files = (path for path in found if path.is_file())  # to read from a pipe would wait for ever
        return list(itertools.islice(files, count))
    except OSError as err:
        log.debug("no runs in %s: %s", runs, err)
        return []
