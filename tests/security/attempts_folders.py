"""Folders of strangers: a project of another user, a run's journal, names in /tmp that another user took first."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import strangers
from attempts import Attempt, Group
from attempts_names import NOTEBOOK, has_run, rocmlab
from targets import Target

COMMANDS = (["status"], ["url"], ["down"], ["kernels"], ["datasets", "list"])
PLANTED = "#!/bin/sh\ntouch {0}/attack-ran\n"


def workshop(target: Target) -> Path:
    """Return an empty folder beside the project."""
    folder = target.lab.folder.parent / "attack-folders"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    return folder


# -- projects ----------------------------------------------------------------------------------------------------------


def project_of(target: Target, folder: Path) -> Path:
    """Return a project with a planted interpreter, which leaves a file where it is executed."""
    project = folder / "project"
    shutil.rmtree(project, ignore_errors=True)
    skipped = shutil.ignore_patterns(".venv", "share", ".git", "tests", "frontend", ".rocmlab")
    shutil.copytree(target.lab.folder, project, ignore=skipped, symlinks=True)
    for name in (".venv/bin/python", ".venv/bin/rocmlab", ".venv/bin/jupyter-lab"):
        path = project / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(PLANTED.format(folder), encoding="utf-8")
        path.chmod(0o755)
    (project / "notebooks/x.ipynb").write_text(json.dumps(NOTEBOOK), encoding="utf-8")
    text = (target.lab.folder / ".env").read_text(encoding="utf-8")
    (project / ".env").write_text(f"{text}\nRUNTIME=native\nPORT=1\n", encoding="utf-8")
    (project / "inner/deep").mkdir(parents=True)
    return project


def give(path: Path, uid: int) -> None:
    """Make everything below a folder another user's."""
    for each in (path, *path.rglob("*")):
        os.chown(each, uid, uid, follow_symlinks=False)


def _control_projects(target: Target) -> str | None:
    folder = workshop(target)
    project = project_of(target, folder)
    text = "".join(rocmlab(words, project).stderr for words in (["datasets", "list"], ["kernels"], ["leases"]))
    found = has_run(folder)
    shutil.rmtree(folder)
    return None if found else f"the user's own project does not use its .venv: {text[:300]}"


def _projects(target: Target) -> Iterator[Attempt]:
    folder, uid = workshop(target), strangers.uid()
    project = project_of(target, folder)
    whole = {
        "the folder and all in it": [project],
        "its .venv": [project / ".venv"],
        "compose.yaml": [project / "compose.yaml"],
    }
    whole |= {"its .env": [project / ".env"], "the interpreter": [project / ".venv/bin/python"]}
    for name, paths in whole.items():
        give(project, os.getuid())
        for path in paths:
            give(path, uid)
        for words in COMMANDS:
            yield Attempt(
                f"{' '.join(words)} where another user owns {name}", partial(_in_project, folder, project, words)
            )
    give(project, uid)
    give(project / "inner", os.getuid())
    for words in COMMANDS:
        inner = partial(_in_project, folder, project / "inner/deep", words)
        yield Attempt(f"{' '.join(words)} in a folder below another user's project", inner)
    shutil.rmtree(folder)


def _in_project(folder: Path, project: Path, words: list[str]) -> str | None:
    done = rocmlab(words, project)
    if found := has_run(folder):
        return found
    refused = done.returncode == 2 and ("own" in done.stderr or "belong" in done.stderr)
    return None if refused else f"exit code {done.returncode}: {(done.stderr or done.stdout)[:120]!r}"


# -- the folder of a run that a stranger has made ----------------------------------------------------------------------

NAMES = (
    "../escaped",
    "../../escaped",
    "../../../../t/escaped",
    "/tmp/attack-absolute",
    "..",
    ".",
    "",
    "a/../../escaped",
    "a/b",
    "nul\0",
    "x\n../y",
    "\\..\\escaped",
    "-rf",
    ".hidden",
    "~root",
    "a" * 300,
)


def _event(name: str, notebook: str) -> str:
    asked = {"word": notebook, "notebook": notebook, "kernel": "python3"}
    job = {"name": name, "notebook": notebook, "parameters": {}, "key": None, "asked": asked}
    event = {"event": "run started", "time": "2026-01-01T00:00:00.000Z", "run": "x", "options": {}, "jobs": [job]}
    return json.dumps(event) + "\n"


def stranger_run(folder: Path, name: str, notebook: str) -> Path:
    """Write a run's folder with one job of any name."""
    run = folder / "share/runs/20260101T000000Z-x"
    shutil.rmtree(folder / "share", ignore_errors=True)
    run.mkdir(parents=True)
    (run / "journal.jsonl").write_text(_event(name, notebook), encoding="utf-8")
    return run


def _everything(folder: Path) -> set[str]:
    return {str(path) for path in folder.rglob("*")}


def _resume(folder: Path, run: Path, words: list[str]) -> None:
    rocmlab(words, folder, ROCMLAB_SHARE=str(folder / "share"), ROCMLAB_NOTEBOOKS=str(folder), ROCMLAB_RUNTIME="native")


def _control_runs(target: Target) -> str | None:
    folder = workshop(target)
    (folder / "good.ipynb").write_text(json.dumps(NOTEBOOK), encoding="utf-8")
    run = stranger_run(folder, "good", str(folder / "good.ipynb"))
    before = _everything(folder)
    _resume(folder, run, ["run", "--resume", str(run)])
    return None if _everything(folder) != before else "a run that is continued leaves nothing behind"


def _runs(target: Target) -> Iterator[Attempt]:
    folder = workshop(target)
    (folder / "good.ipynb").write_text(json.dumps(NOTEBOOK), encoding="utf-8")
    for name in NAMES:
        yield Attempt(f"continue a run with a job {name[:30]!a}", partial(_escapes, folder, name, "run"))
    for name in NAMES[:6]:
        yield Attempt(f"collect a run with a job {name!a}", partial(_escapes, folder, name, "collect"))
    for file in ("report.html", "results.json", "good.ipynb", "good.log"):
        yield Attempt(f"a link called {file} to another file", partial(_follows, folder, file))
    shutil.rmtree(folder)


def _escapes(folder: Path, name: str, kind: str) -> str | None:
    run = stranger_run(folder, name, str(folder / "good.ipynb"))
    before = _everything(folder)
    words = ["run", "--resume", str(run)] if kind == "run" else ["export", "collect", str(run)]
    _resume(folder, run, words)
    new = {path for path in _everything(folder) - before if not path.startswith(f"{run}/")}
    usual = {str(folder / "share" / each) for each in ("runs", "leases", "cache", "data", "models")}
    outside = [path for path in new if path not in usual and "/cache/" not in path]
    for path in Path("/tmp").glob("attack-absolute*"):
        outside.append(str(path))
        path.unlink()
    return f"it wrote {outside}" if outside else None


def _follows(folder: Path, file: str) -> str | None:
    run = stranger_run(folder, "good", str(folder / "good.ipynb"))
    other = folder / "precious.txt"
    other.write_text("precious", encoding="utf-8")
    before = other.read_bytes()
    (run / file).symlink_to(other)
    _resume(folder, run, ["run", "--resume", str(run)])
    return f"it was written to: {other.read_bytes()[:100]!r}" if other.read_bytes() != before else None


GROUPS = (
    Group(
        "a project of another user",
        "what is planted in it is executed or believed",
        _control_projects,
        _projects,
        ("native",),
    ),
    Group("a run's folder of a stranger", "a file elsewhere is written", _control_runs, _runs, ("native",)),
)
