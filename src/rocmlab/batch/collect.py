"""From the parts of an exported run to its results, its report and one journal, as if one process had run it all."""

from __future__ import annotations

import contextlib
import json
import logging
import time
from collections.abc import Container, Mapping
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

from rocmlab.base import formatting, records
from rocmlab.base.errors import RocmlabError
from rocmlab.batch import layout
from rocmlab.batch.part import Part
from rocmlab.reports import compare
from rocmlab.runs.folder import DRAFT, RunFolder
from rocmlab.runs.jobs import EXIT_CODES, Job, Result, not_run
from rocmlab.runs.outcome import resume, retries
from rocmlab.runs.outcome.results import Run, versions

log = logging.getLogger("rocmlab")

POLL_SECONDS = 5.0
NEVER = "the scheduler never started it"
RUNNING = "it is still running"
UNCLEAR = "it is running or was killed: this file system has no locks, which would show it"
NOTES = {
    RUNNING: "some jobs are still running: collect again when they have finished",
    UNCLEAR: "some jobs are running or were killed: those no longer in the scheduler's queue need a new submission",
}


class Whole(RunFolder):
    """The folder of an exported run, whose jobs may run meanwhile, each in its part."""

    def __init__(self, path: Path, jobs: Container[str]) -> None:
        super().__init__(path)
        self.jobs = jobs

    def remove_drafts(self, job: str | None = None) -> None:
        """Remove what killed processes have left half written, of jobs of which the lock shows that none runs."""
        drafts = [each for each in self.path.glob(".*") if DRAFT.fullmatch(each.name)]
        for draft in drafts:  # none is of a process that starts from now on
            name = draft.name[1:].rsplit(".", 2)[0]
            if name in self.jobs and job in (None, name) and Part(self.path, name).is_going() is False:
                with contextlib.suppress(OSError):
                    draft.unlink()


def collect(path: Path, wait_seconds: float = 0.0) -> Run:
    """Put the parts together, and write `results.json`, `report.html` and `junit.xml`; may be done again at any time.

    Jobs that have not finished, or will be retried, are waited for as long as `wait_seconds`.

    Raises:
        RocmlabError: this is not an exported run.
        OSError: its folder cannot be written.
    """
    path = path.expanduser().absolute()
    laid = layout.read(path)
    _wait(path, laid, wait_seconds)
    folder = Whole(path, {described["name"] for described in laid.jobs})
    is_whole = _locked(folder)
    try:
        session = resume.read(folder)
        results, times = [], [session.started]
        for described in laid.jobs:
            entry = resume.entry_of(session, described["name"], folder)
            part = Part(path, entry.name)
            result = _result(part, entry, described, times)
            if is_whole and result.status != "not run" and result != entry.result:
                folder.log("job finished", job=entry.name, key=described["key"], result=result.as_dict())
            results.append(result)
        notes = [NOTES[each] for each in NOTES if any(each in result.warnings for result in results)]
        if not is_whole and not notes:  # one begins or ends just now
            notes = [NOTES[RUNNING]]
        run = Run(
            folder=folder,
            results=results,
            started=session.started,
            seconds=resume.seconds_between(min(times), max(times)),
            is_interrupted=False,
            slots=_most_at_once(results),
            versions=_versions(path, laid),
            earlier=_earlier(session.options.get("compare"), path),
            notes=notes,
        )
        run.save()
        if not notes:
            folder.log("run finished", status=run.as_dict()["run"]["status"])
        return run
    finally:
        folder.close()


def _locked(folder: RunFolder) -> bool:
    """Return whether no job is running, as far as the file system's locks show."""
    try:
        folder.lock()
    except RocmlabError as err:
        log.debug("%s", err)
        return False
    return True


def _wait(path: Path, laid: layout.Layout, seconds: float) -> None:
    end = time.monotonic() + seconds
    left = [described["name"] for described in laid.jobs]
    while left and time.monotonic() < end:
        left = [name for name in left if not _is_settled(Part(path, name), laid.retries)]
        if left:
            time.sleep(min(POLL_SECONDS, max(0.0, end - time.monotonic())))


def _is_settled(part: Part, most_retries: int) -> bool:
    """Return whether a job has finished and will not be retried."""
    if not part.has_begun() or (is_going := part.is_going()):
        return False
    last, tries, has_ended = "", 0, False
    for event in part.journal():
        kind = event.get("event")
        if kind in ("run started", "run resumed"):
            tries, has_ended = tries + 1, False
        elif kind == "job started":
            last = "killed"
        elif kind == "job finished":
            result = event.get("result")
            last, has_ended = str(result.get("status") if isinstance(result, dict) else None), True
    if is_going is None and not has_ended:
        return False
    return tries > most_retries if not last or last in retries.MAY_PASS else True


def _result(part: Part, entry: resume.Entry, described: Mapping[str, Any], times: list[str]) -> Result:
    """Return how a job ended, and note the times of its journal."""
    job = Job(entry.name, described["notebook"], entry.request.parameters, described["kernel"])
    if not part.has_begun():
        return entry.result or replace(not_run(job), warnings=[NEVER])
    is_going = part.is_going()  # before its journal is read, since it may end now
    own = resume.entry_of(resume.read(part), entry.name, part)
    began = (own.last or {}).get("started") or ""
    if is_going is False and entry.result and (entry.result.started or "") > began:
        return entry.result  # `rocmlab run --resume` has run it since
    times += [event["time"] for event in part.journal() if records.is_time(event.get("time"))]
    if own.result is not None:  # a notebook is converted after its result was written
        return replace(own.result, files=part.files(entry.name))
    if is_going is not False:
        return replace(not_run(job), warnings=[UNCLEAR if is_going is None else RUNNING], attempts=own.attempts)
    if own.last is None:
        return replace(not_run(job), warnings=[NEVER], attempts=own.attempts)
    why = "its process was killed while it ran: by the scheduler, or because its machine stopped"
    return replace(
        not_run(job),
        status="killed",
        exit_code=EXIT_CODES["killed"],
        started=own.last["started"],
        devices=[*own.last["devices"]],
        error={"name": "Killed", "value": why},
        files=part.files(entry.name),
        attempts=own.attempts,
    )


def _versions(path: Path, laid: layout.Layout) -> dict[str, Any]:
    """Return the versions of the first job that recorded them; else those of this process."""
    for described in laid.jobs:
        try:
            found = json.loads(Part(path, described["name"]).results_path.read_text(encoding="utf-8"))
            return dict(found["versions"])
        except (OSError, ValueError, KeyError, TypeError, RecursionError):
            continue
    return versions()


def _earlier(which: object, path: Path) -> dict[str, Any] | None:
    if not which:
        return None
    try:
        return compare.load(str(which), path.parent)
    except RocmlabError as err:
        log.warning("nothing to compare with: %s", formatting.short(err.problem.what, 200))
        return None


def _most_at_once(results: list[Result]) -> int:
    """Return how many jobs ran side by side at most."""
    changes: list[tuple[float, int]] = []
    for result in results:
        if result.started and result.seconds is not None:
            begin = datetime.fromisoformat(result.started.replace("Z", "+00:00")).timestamp()
            changes += [(begin, 1), (begin + result.seconds, -1)]
    most = running = 0
    for _, change in sorted(changes):
        running += change
        most = max(most, running)
    return max(1, most)
