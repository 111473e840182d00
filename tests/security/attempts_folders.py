"""A project folder that belongs, as a whole or in parts, to another user; what is planted in it must not be used."""

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
    """Return an empty folder next to the project."""
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
    whole |= {"its .env": [project / ".env"], "the programs of .venv": [project / ".venv/bin"]}
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


GROUPS = (
    Group(
        "a project of another user",
        "what is planted in it is executed or believed",
        _control_projects,
        _projects,
        ("native",),
    ),
)
