"""Which run the pages of the notebooks show, and what is said where it cannot be read."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

JOB = {"status": "ok", "simulated": False, "devices": [], "parameters": {}, "started": "2026-11-20", "seconds": 1.5}


@pytest.fixture
def found_run(repository: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The module of the site that chooses the run."""
    monkeypatch.syspath_prepend(repository / "scripts/docs")
    sys.modules.pop("found_run", None)
    import found_run

    return found_run


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A repository with one notebook."""
    notebook(tmp_path / "notebooks/00_hello.ipynb", "# Hello\n", "as GPUs do")
    return tmp_path


def notebook(path: Path, *lines: str) -> None:
    """Write a notebook with code and a text."""
    cells = [{"cell_type": "code", "source": "x = 1"}, {"cell_type": "markdown", "source": list(lines)}]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"cells": cells}))


def a_run(root: Path, name: str, title: str = "# Hello") -> Path:
    """Return the folder of a run that executed a notebook 00_hello."""
    folder = root / "share/runs" / name
    notebook(folder / "out.ipynb", title)
    job = {**JOB, "notebook": "/x/00_hello.ipynb", "files": {"notebook": "out.ipynb"}}
    (folder / "results.json").write_text(json.dumps({"jobs": [job]}))
    return folder


def test_the_newest_run_or_the_given_one(found_run: ModuleType, root: Path) -> None:
    """None where there is none."""
    assert found_run.run_folder(root, "") is None
    old, new = (a_run(root, name) for name in ("1", "2"))

    assert found_run.run_folder(root, "").folder == new
    assert found_run.run_folder(root, "share/runs/1").folder == old
    assert found_run.run_folder(root, str(old)).jobs["00_hello"]["seconds"] == 1.5


def test_a_notebook_of_the_same_name_is_not_ours(found_run: ModuleType, root: Path) -> None:
    """Its heading differs, so its outputs are not published below our title; an older run has ours."""
    ours, other = a_run(root, "1"), a_run(root, "2", "# My own experiment")

    assert found_run.run_folder(root, str(other)).jobs == {}
    assert found_run.run_folder(root, "").folder == ours


NOT_READ = "cannot be read:"
BREAKS: dict[str, tuple[Callable[[Path], object], str]] = {
    "cut off": (lambda run: (run / "results.json").write_text('{"jobs": [{"n'), f"results.json {NOT_READ} JSON"),
    "no jobs": (lambda run: (run / "results.json").write_text("{}"), f"results.json {NOT_READ} KeyError: 'jobs'"),
    "a list": (lambda run: (run / "results.json").write_text("[1]"), f"results.json {NOT_READ} TypeError"),
    "no results": (lambda run: (run / "results.json").unlink(), f"results.json {NOT_READ} No such file"),
    "no notebook": (lambda run: (run / "out.ipynb").unlink(), f"out.ipynb {NOT_READ} No such file"),
    "half a notebook": (lambda run: (run / "out.ipynb").write_text('{"cells"'), f"out.ipynb {NOT_READ} JSON"),
}


@pytest.mark.parametrize("how", BREAKS)
def test_a_run_that_cannot_be_read(found_run: ModuleType, root: Path, how: str) -> None:
    """It is an error that names the file where it was asked for, and else the run before it is shown."""
    ours, broken = a_run(root, "1"), a_run(root, "2")
    damage, said = BREAKS[how]
    damage(broken)

    with pytest.raises(found_run.UnreadableRun) as told:
        found_run.run_folder(root, str(broken))

    assert str(told.value).startswith(f"{broken}/{said}")
    assert found_run.run_folder(root, "").folder == ours
