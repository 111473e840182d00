"""Continuing a run in its own folder: its journal has what was requested, what has finished and what was cut short."""

from __future__ import annotations

import contextlib
import gc
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from datetime import datetime
from pathlib import Path
from typing import Any

from rocmlab.base import formatting, safe
from rocmlab.base.errors import RocmlabError
from rocmlab.runs.folder import KINDS, BadLineError, RunFolder
from rocmlab.runs.jobs import Job, Request, Result
from rocmlab.runs.outcome import entries, history, retries
from rocmlab.runs.scheduling.plan import Before
from rocmlab.runs.spec import keys, selection

LAST = "last"
JOURNAL = "journal.jsonl"
ASKED = ("word", "notebook", "name", "kernel", "gpus", "vram_bytes", "is_mixed", "timeout_seconds", "source")
OF_A_RESULT = {each.name for each in fields(Result)}


@dataclass
class Entry:
    """What a journal says of one job."""

    name: str
    request: Request
    result: Result | None = None  # of its last end
    key: str | None = None  # when it ended
    attempts: list[dict[str, Any]] = field(default_factory=list)  # before the last
    begun: Mapping[str, Any] | None = None  # the event of its last start, if nothing is said of its end

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
    """What a journal says of a run."""

    options: dict[str, Any]  # of the command line
    entries: dict[str, Entry]
    started: str
    seconds: float


def entry_of(session: Session, name: str, folder: RunFolder) -> Entry:
    """Return what a journal says of a job.

    Raises:
        RocmlabError: it does not know the job.
    """
    if name not in session.entries:
        raise _unreadable(folder, f"it does not know the job {safe.shown(name)}")
    return session.entries[name]


def described(job: Job) -> dict[str, Any]:
    """Return a job as the journal's `run started` has it: enough to ask for it again."""
    request = job.request or Request(job.notebook, job.notebook, job.parameters, kernel=job.kernel, gpus=job.gpus)
    asked = {name: getattr(request, name) for name in ASKED if getattr(request, name) is not None}
    made = {"name": job.name, "notebook": job.notebook, "parameters": job.parameters, "key": job.key, "asked": asked}
    exact = json.dumps(job.parameters)
    # Strict JSON has no word for infinity and NaN
    return made if "Infinity" not in exact and "NaN" not in exact else {**made, "parameters_exact": exact}


def find(which: str, runs: Path) -> RunFolder:
    """Return the folder of a run to continue.

    Args:
        which: its folder, its name in `runs`, or `last`.
        runs: where the runs of this share lie.

    Raises:
        RocmlabError: there is no such run.
    """
    if which == LAST:
        folders = (RunFolder(path.parent) for path in history.newest(runs, JOURNAL) if not path.parent.is_symlink())
        newest = next((folder for folder in folders if not folder.is_stub()), None)
        if newest is None:
            raise RocmlabError("--resume last: there is no run", f"{runs} has none that began", "leave --resume out")
        safe.check_folder(newest.path)
        return newest
    for folder in (Path(which).expanduser(), runs / which):
        if (folder / JOURNAL).is_file():
            safe.check_folder(folder.absolute())
            return RunFolder(folder.absolute())
    why = f"neither {which} nor {runs / which} has a {JOURNAL}"
    raise RocmlabError(f"--resume {which}: there is no such run", why, "`rocmlab run --list` lists them")


def read(folder: RunFolder) -> Session:
    """Return what the journal of a run says.

    Raises:
        RocmlabError: it does not say what was to be run.
    """
    session: Session | None = None
    times: list[tuple[str, str]] = []  # begin and end of each session
    number = 0
    try:
        with _no_garbage():
            for line, event in folder.lines():
                number = line
                if not entries.is_time(event.get("time")):
                    raise ValueError(f"time is {safe.shown(event.get('time'))}")
                if event["event"] == "run started" and session is None:
                    session = _begun(event)
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
        raise _unreadable(folder, "it does not say what was to be run: it is of an older rocmlab, or was cut short")
    return replace(session, seconds=sum(_seconds(*pair) for pair in times))


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
    return RocmlabError(f"{where} cannot be continued", why, "start a new run: the same words without --resume")


def _begun(event: Mapping[str, Any]) -> Session:
    found = {}
    for number, job in enumerate(entries.jobs(event["jobs"])):
        values = entries.values(job, f"jobs[{number}]")
        request = Request(**{"notebook": None, **job["asked"]}, parameters=values)
        found[job["name"]] = Entry(job["name"], request)
    return Session(entries.check(event["options"], entries.OPTIONS, "options"), found, event["time"], 0.0)


def _take(entry: Entry, event: Mapping[str, Any]) -> None:
    kind = event["event"]
    if kind == "job started":
        entry.begun = entries.check(event, {"devices": entries.ATTEMPT["devices"]}, kind)
    elif kind == "job retried":
        entry.attempts.append(entries.check(event["attempt"], entries.ATTEMPT, "attempt"))
        entry.begun = entry.result = None
    elif kind == "job finished":
        said = entries.check(event["result"], entries.RESULT, "result", ("name", "notebook", "kernel", "status"))
        if said["name"] != entry.name:
            raise ValueError(f"the result of {entry.name} has the name {safe.shown(said['name'])}")
        if not said.keys() <= OF_A_RESULT:  # of a newer rocmlab
            said = {name: value for name, value in said.items() if name in OF_A_RESULT}
        # What a job recorded as infinite is null in the journal as it is in `results.json`; its parameters are known.
        said["parameters"] = entry.request.parameters
        key = event.get("key")
        entry.begun, entry.result, entry.key = None, Result(**said), key if isinstance(key, str) else None


def _seconds(begin: str, end: str) -> float:
    times = [datetime.fromisoformat(time.replace("Z", "+00:00")) for time in (begin, end)]
    return max(0.0, (times[1] - times[0]).total_seconds())


def requests(session: Session, notebooks: Path) -> list[Request]:
    """Return what was asked for; a notebook that was missing may be there by now."""
    found = []
    for entry in session.entries.values():
        request = replace(entry.request, name=entry.name)
        if request.notebook is None:
            again = selection.find([request.word], notebooks)[0]
            there = str(again.notebook) if again.notebook else None
            request = replace(request, notebook=there, problem=again.problem)
        found.append(request)
    return found


def before(session: Session, jobs: Sequence[Job]) -> Before:
    """Return what need not be run again, what must be and why.

    Args:
        session: what the journal says.
        jobs: the same jobs, as their notebooks are now.
    """
    results: dict[str, Result] = {}
    attempts: dict[str, list[dict[str, Any]]] = {}
    notes: list[str] = []
    for job in jobs:
        entry = session.entries[job.name]
        if entry.result is None or entry.result.status != "ok":
            pass
        elif job.key is None or entry.key is None:
            results[job.name] = entry.result
            why = job.problem.what if job.problem else "the journal does not say what it was"
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
