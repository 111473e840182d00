"""Continuing a run in its own folder: its journal has what was requested, what has finished and what was cut short."""

from __future__ import annotations

import contextlib
import gc
import itertools
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from datetime import datetime
from pathlib import Path
from typing import Any

from rocmlab.base import formatting, records, safe
from rocmlab.base.errors import RocmlabError
from rocmlab.notebook import notebooks
from rocmlab.runs.folder import KINDS, RunFolder
from rocmlab.runs.jobs import Attempt, Job, Request, Result
from rocmlab.runs.journal import BadLineError
from rocmlab.runs.outcome import entries, history, retries
from rocmlab.runs.scheduling.plan import Before
from rocmlab.runs.spec import keys, selection

LAST = "last"
JOURNAL = "journal.jsonl"
OF_A_RESULT = {each.name for each in fields(Result)}


@dataclass
class Entry:
    """The journal's content about one job."""

    name: str
    request: Request
    result: Result | None = None  # of its last end
    key: str | None = None  # when it ended
    attempts: list[dict[str, Any]] = field(default_factory=list)  # before the last
    begun: Mapping[str, Any] | None = None  # the event of its last start, if its end is not recorded

    @property
    def last(self) -> dict[str, Any] | None:
        """Its last attempt, if that left anything."""
        if self.begun:
            killed = {"status": "killed", "message": "the runner was ended while it ran"}
            when = {"started": self.begun["time"], "seconds": None}
            return {**killed, **when, "devices": self.begun.get("devices", []), "files": {}}
        has_ended = self.result is not None and self.result.status != "not run"
        return retries.attempt(vars(self.result), {}) if has_ended else None


@dataclass
class Session:
    """The journal's content about a run."""

    folder: RunFolder
    options: dict[str, Any]  # of the command line
    entries: dict[str, Entry]
    started: str
    seconds: float


def entry_of(session: Session, name: str, folder: RunFolder) -> Entry:
    """Return a job as recorded in a journal.

    Raises:
        RocmlabError: it does not know the job.
    """
    if name not in session.entries:
        raise _unreadable(folder, f"it does not know the job {safe.shown(name)}")
    return session.entries[name]


def described(job: Job) -> dict[str, Any]:
    """Return a job as the journal's `run started` has it: enough to request it again."""
    request = job.request or Request(job.notebook, job.notebook, job.parameters, kernel=job.kernel, gpus=job.gpus)
    asked = {name: getattr(request, name) for name in entries.ASKED if getattr(request, name) is not None}
    made = {"name": job.name, "notebook": job.notebook, "parameters": job.parameters, "key": job.key, "asked": asked}
    exact = json.dumps(job.parameters)
    # Strict JSON has no word for infinity and NaN
    return made if "Infinity" not in exact and "NaN" not in exact else {**made, "parameters_exact": exact}


def find(which: str, runs: Path, option: str = "--resume") -> RunFolder:
    """Return the folder of a run to continue or to reproduce: by its folder, its name in `runs`, or `last`.

    Raises:
        RocmlabError: the run was not found.
    """
    if which == LAST:
        folders = (RunFolder(path.parent) for path in history.newest(runs, JOURNAL) if not path.parent.is_symlink())
        newest = next((folder for folder in folders if not folder.is_stub()), None)
        if newest is None:
            raise RocmlabError(f"{option} last: no run found", f"{runs} has none that began", f"omit {option}")
        safe.check_folder(newest.path)
        return newest
    for folder in (Path(which).expanduser(), runs / which):
        if (folder / JOURNAL).is_file():
            safe.check_folder(folder.absolute())
            return RunFolder(folder.absolute())
    why = f"neither {which} nor {runs / which} has a {JOURNAL}"
    raise RocmlabError(f"{option} {which}: run not found", why, "`rocmlab run --list` lists them")


def read(folder: RunFolder) -> Session:
    """Return the content of a run's journal.

    Raises:
        RocmlabError: it does not contain the jobs of the run.
    """
    session: Session | None = None
    times: list[tuple[str, str]] = []  # begin and end of each session
    number = 0
    try:
        with _no_garbage():
            for line, event in folder.lines():
                number = line
                if not records.is_time(event.get("time")):
                    raise ValueError(f"time is {safe.shown(event.get('time'))}")
                if event["event"] == "run started" and session is None:
                    session = _begun(folder, event)
                if event["event"] in ("run started", "run resumed"):
                    times.append((event["time"], event["time"]))
                elif times:
                    times[-1] = (times[-1][0], event["time"])
                entry = session.entries.get(str(event.get("job"))) if session else None
                if entry:
                    _take(entry, event)
    except (OSError, BadLineError) as err:
        raise _unreadable(folder, str(err)) from err
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError) as err:
        raise _unreadable(folder, f"line {number}: {err if isinstance(err, ValueError) else repr(err)}") from err
    if session is None:
        raise _unreadable(folder, "it does not contain the jobs of the run: it is of an older rocmlab, or truncated")
    return replace(session, seconds=sum(itertools.starmap(seconds_between, times)))


@contextlib.contextmanager
def _no_garbage() -> Iterator[None]:
    """Look for no garbage meanwhile: of a hundred thousand jobs all is kept, and looking takes as long as reading."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def _unreadable(folder: RunFolder, why: str) -> RocmlabError:
    where = formatting.path(folder.journal_path)
    return RocmlabError(f"{where} cannot be continued", why, "start a new run: the same arguments without --resume")


def _begun(folder: RunFolder, event: Mapping[str, Any]) -> Session:
    found = {}
    for number, job in enumerate(entries.jobs(event["jobs"])):
        values = entries.values(job, f"jobs[{number}]")
        request = Request(**job["asked"], parameters=values)
        found[job["name"]] = Entry(job["name"], request)
    return Session(folder, records.check(event["options"], entries.Options, "options"), found, event["time"], 0.0)


def _take(entry: Entry, event: Mapping[str, Any]) -> None:
    kind = event["event"]
    if kind == "job started":
        entry.begun = records.check(event, entries.Started, kind)
    elif kind == "job retried":
        entry.attempts.append(records.check(event["attempt"], Attempt, "attempt"))
        entry.begun = entry.result = None
    elif kind == "job finished":
        fields = records.check(event["result"], Result, "result")
        if fields["name"] != entry.name:
            raise ValueError(f"the result of {entry.name} has the name {safe.shown(fields['name'])}")
        if not fields.keys() <= OF_A_RESULT:  # of a newer rocmlab
            fields = {name: value for name, value in fields.items() if name in OF_A_RESULT}
        # What a job recorded as infinite is null in the journal as it is in `results.json`; its parameters are known.
        fields["parameters"] = entry.request.parameters
        key = event.get("key")
        entry.begun, entry.result, entry.key = None, Result(**fields), key if isinstance(key, str) else None


def seconds_between(begin: str, end: str) -> float:
    """Return the time from one entry of a journal to another; 0 where a clock was set back."""
    first, last = (datetime.fromisoformat(time.replace("Z", "+00:00")) for time in (begin, end))
    return max(0.0, (last - first).total_seconds())


def requests(session: Session, notebooks: Path) -> list[Request]:
    """Return the request; a notebook that was missing may be there by now."""
    return [replace(looked_for_again(each.request, notebooks), name=each.name) for each in session.entries.values()]


def looked_for_again(request: Request, notebooks: Path) -> Request:
    """Return a request whose notebook was missing as it is now; any other as it is."""
    if request.notebook is not None:
        return request
    again = selection.find([request.word], notebooks)[0]
    return replace(request, notebook=str(again.notebook) if again.notebook else None, problem=again.problem)


def before(session: Session, jobs: Sequence[Job]) -> Before:
    """Return what need not be run again, what must be and why; `jobs` are as their notebooks are now."""
    results: dict[str, Result] = {}
    attempts: dict[str, list[dict[str, Any]]] = {}
    notes: list[str] = []
    for job in jobs:
        entry = session.entries[job.name]
        if entry.result is None or entry.result.status != "ok":
            pass
        elif not notebooks.is_whole(session.folder.file(job.name, "notebook")):
            notes.append(f"{job.name}: run again, because its notebook is missing or cannot be read")
        elif job.key is None or entry.key is None:
            results[job.name] = entry.result
            why = job.problem.what if job.problem else "the journal does not show what it was"
            notes.append(f"{job.name}: its result is kept, but cannot be checked: {why}")
        elif job.key != entry.key:
            notes.append(f"{job.name}: run again, because its {keys.changes(entry.key, job.key)} changed")
        else:
            results[job.name] = entry.result
        if job.name not in results:
            attempts[job.name] = [*entry.attempts, *([entry.last] if entry.last else [])]
    done = f"{len(results)} of {formatting.plural(len(jobs), 'job')} had finished and will not be run again"
    return Before(results, attempts, session.started, session.seconds, [done, *notes])


def set_aside(folder: RunFolder, session: Session, found: Before) -> Before:
    """Rename what jobs that are run again have left, and note it in the journal, which must be locked."""
    attempts = dict(found.attempts)
    folder.remove_drafts()
    there = set(os.listdir(folder.path))  # once: most of those that are run again never began
    for name, each in attempts.items():
        last = session.entries[name].last
        has_left = any(f"{name}{ending}" in there for ending in KINDS.values())
        kept = retries.set_aside(folder, name) if has_left else {}
        if last:
            attempt = {**last, "files": kept}
            attempts[name] = [*each[:-1], attempt]
            folder.log("job retried", job=name, attempt=attempt)
    return replace(found, attempts=attempts)
