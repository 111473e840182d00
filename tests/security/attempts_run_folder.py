"""A run folder or a cluster's node that an attacker has prepared: names, links, files and addresses in what is read."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from attempts import Attempt, Group
from targets import Target

from rocmlab.base.errors import RocmlabError
from rocmlab.batch import array_task, collect
from rocmlab.batch.part import Part
from rocmlab.cluster.executor import delivery
from rocmlab.reports import compare
from rocmlab.runs.folder import KINDS, RunFolder
from rocmlab.runs.outcome import listing, resume
from rocmlab.runs.screen import preview

SECRET = "the-secret-beside-the-run"
NAMES = ("../escaped", "../../../escaped", "/tmp/attack-absolute", "a/b", "..", "x\n../y", "nul\0", "report", "a" * 300)
FILES = ("../../../secret", "{top}/secret", "/proc/self/environ", "../secret")
TIME = "2026-01-01T00:00:00.000Z"
NOTEBOOK = {"cells": [], "metadata": {}, "nbformat": 4, "nbformat_minor": 5}


def workshop(target: Target) -> Path:
    """Return a folder next to the project with a secret and an empty share."""
    top = target.lab.folder.parent / "attack-run-folder"
    shutil.rmtree(top, ignore_errors=True)
    (top / "project/share/runs").mkdir(parents=True)
    (top / "secret").write_text(SECRET, encoding="utf-8")
    (top / "a.ipynb").write_text(json.dumps(NOTEBOOK), encoding="utf-8")
    return top


def result(name: str, **fields: Any) -> dict[str, Any]:
    """Return what a journal says of a job that was killed."""
    error = {"name": "Killed", "value": "it was killed"}
    said = {"name": name, "notebook": "/a.ipynb", "parameters": {}, "kernel": "python3", "status": "killed"}
    return {**said, "exit_code": 137, "started": TIME, "seconds": 1.0, "error": error, "files": {}, **fields}


def run_folder(top: Path, name: str = "a", **fields: Any) -> Path:
    """Write the folder of a run with one job that has ended; it is an exported run as well."""
    run = top / "project/share/runs/20260101T000000Z-x"
    shutil.rmtree(run, ignore_errors=True)
    (run / "parts").mkdir(parents=True)
    asked = {"word": str(top / "a.ipynb"), "notebook": str(top / "a.ipynb")}
    job = {"name": name, "notebook": str(top / "a.ipynb"), "parameters": {}, "key": None, "asked": asked}
    started = {"event": "run started", "time": TIME, "options": {}, "jobs": [job]}
    ended = {"event": "job finished", "time": TIME, "job": name, "key": None, "result": result(name, **fields)}
    lines = "".join(json.dumps(event) + "\n" for event in (started, ended))
    (run / "journal.jsonl").write_text(lines, encoding="utf-8")
    laid = {"name": name, "notebook": str(top / "a.ipynb"), "kernel": None, "gpus": 0, "key": None}
    layout = {
        "run": run.name,
        "share": str(run.parents[1]),
        "backend": "cpu",
        "retries": 0,
        "groups": [],
        "jobs": [laid],
    }
    (run / "jobs.json").write_text(json.dumps(layout), encoding="utf-8")
    return run


def outside(top: Path, run: Path) -> dict[str, bytes]:
    """Return every file that is not in the run's folder."""
    inside = f"{run}{os.sep}"
    found = {str(path): path.read_bytes() for path in top.rglob("*") if path.is_file() and not path.is_symlink()}
    found |= {str(path): path.read_bytes() for path in Path("/tmp").glob("attack-absolute*")}
    return {path: content for path, content in found.items() if not path.startswith(inside)}


def use(run: Path) -> None:
    """Do with a run's folder all that a user might; each may refuse it."""
    ways: tuple[Callable[[], object], ...] = (
        lambda: preview.runs_table(listing.runs_of(run.parent)),
        lambda: compare.load(str(run), run.parent),
        lambda: _continue(run),
        lambda: collect.collect(run),
        lambda: array_task.run(run, 0),
    )
    for way in ways:
        with contextlib.suppress(RocmlabError, OSError):
            way()


def _continue(run: Path) -> None:
    folder = resume.find(str(run), run.parent)
    session = resume.read(folder)
    before = resume.Before({}, {name: [] for name in session.entries})
    resume.set_aside(folder, session, before)
    for name in session.entries:
        folder.file(name, "log").write_text("written", encoding="utf-8")


def _escapes(top: Path, run: Path) -> str | None:
    before = outside(top, run)
    use(run)
    after = outside(top, run)
    changed = [path for path in {**before, **after} if before.get(path) != after.get(path)]
    for path in Path("/tmp").glob("attack-absolute*"):
        path.unlink()
    pages = [path for path in run.rglob("*.html") if not path.is_symlink() and SECRET in path.read_text()]
    return f"{changed} changed; the secret is in {pages}" if changed or pages else None


def _control(target: Target) -> str | None:
    top = workshop(target)
    run = run_folder(top)
    (run / "a.log").write_text(SECRET, encoding="utf-8")
    listed = listing.runs_of(run.parent)
    session = resume.read(resume.find(str(run), run.parent))
    collect.collect(run)
    done = bool(listed) and list(session.entries) == ["a"] and (run / "report.html").is_file()
    shutil.rmtree(top)
    return None if done else "an ordinary folder is not listed, continued or collected"


def _folders(target: Target) -> Iterator[Attempt]:
    top = workshop(target)
    for name in NAMES:
        yield Attempt(f"a job called {name[:30]!a}", lambda name=name: _escapes(top, run_folder(top, name)))
    for file in FILES:
        for kind in KINDS:
            files = {kind: file.format(top=top)}
            yield Attempt(f"a {kind} called {file}", lambda files=files: _escapes(top, run_folder(top, files=files)))
    for name in ("a.log", "a.ipynb", "a.html", "a.samples.jsonl", "results.json", "report.html", "parts/a.jsonl"):
        yield Attempt(f"a link called {name} to a secret", partial(_linked, top, name))
    yield Attempt("a journal that is a link", partial(_moved, top, "journal.jsonl"))
    yield Attempt("a folder of parts that is a link", partial(_moved, top, "parts"))
    yield Attempt("a run's folder that is a link", partial(_moved, top, ""))
    shutil.rmtree(top)


def _linked(top: Path, name: str) -> str | None:
    run = run_folder(top, files={"log": "a.log", "notebook": "a.ipynb", "html": "a.html"})
    (run / name).symlink_to(top / "secret")
    return _escapes(top, run)


def _moved(top: Path, name: str) -> str | None:
    run = run_folder(top)
    where = run / name if name else run
    elsewhere = top / "elsewhere"
    shutil.rmtree(elsewhere, ignore_errors=True)
    elsewhere.unlink(missing_ok=True)
    where.rename(elsewhere)
    where.symlink_to(elsewhere)
    found = _escapes(top, run)
    where.unlink()
    return found


def _control_node(target: Target) -> str | None:
    top = workshop(target)
    left = top / "exchange/run/0123-a.log"
    left.parent.mkdir(parents=True)
    left.write_text("left", encoding="utf-8")
    (top / "run").mkdir()
    delivery.fetch(f"file://{left}", top / "run/a.log", f"file://{top}/exchange")
    done = (top / "run/a.log").read_text() == "left" and not left.exists()
    shutil.rmtree(top)
    return None if done else "a file that a node has left is not fetched"


def _node(target: Target) -> Iterator[Attempt]:
    top = workshop(target)
    (top / "run").mkdir()
    for address in (
        f"file://{top}/secret",
        f"{top}/secret",
        f"file://{top}/exchange/run/../../secret",
        f"file://{top}/exchange/../secret",
        f"file://{top}/exchange/run/../../run/a.log",
        "file:///etc/passwd",
    ):
        yield Attempt(f"a node reports {address.replace(str(top), '…')}", partial(_fetched, top, address))
    for kind in ("../secret", "../../secret", "/tmp/attack-absolute", "journal", ""):
        yield Attempt(f"a node sends a file of the kind {kind!r}", partial(_sent, top, kind))
    for name in NAMES:
        yield Attempt(f"a part of the job {name[:30]!a}", partial(_part, top, name))
    shutil.rmtree(top)


def _fetched(top: Path, address: str) -> str | None:
    with contextlib.suppress(OSError):
        delivery.fetch(address, top / "run/a.log", f"file://{top}/exchange")
    if not (top / "secret").exists():
        return "the secret was removed"
    return "the secret is in the run's folder" if (top / "run/a.log").exists() else None


def _sent(top: Path, kind: str) -> str | None:
    before = outside(top, top / "run")
    receiver = delivery.Receiver(RunFolder(top / "run"), "a")
    with contextlib.suppress(OSError):
        receiver.take({"kind": kind, "data": b"written", "is_last": True})
    receiver.close()
    return "a file was written" if outside(top, top / "run") != before or list((top / "run").iterdir()) else None


def _part(top: Path, name: str) -> str | None:
    try:
        return f"its journal would be {Part(top / 'run', name).journal_path}"
    except RocmlabError:
        return None


GROUPS = (
    Group(
        "what a run's folder says", "a file elsewhere is written, or read into a page", _control, _folders, ("native",)
    ),
    Group("what a node reports", "a file elsewhere is read, written or removed", _control_node, _node, ("native",)),
)
