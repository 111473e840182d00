"""Half-written files: what a killed process has left is removed, and nothing that is being written."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from rocmlab.base import files
from rocmlab.batch.collect import Whole
from rocmlab.batch.part import Part
from rocmlab.runs.folder import PARTS, RunFolder
from rocmlab.runs.outcome import retries

LEFT = ("tune-lr=0.ipynb.0123abcd", "tune-lr=0.html.0123abcd")  # by a killed process of the job `tune-lr=0`


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The folder of a run in which `tune-lr=0` was killed while it saved."""
    (tmp_path / PARTS).mkdir()
    (tmp_path / PARTS / "tune-lr=0.jsonl").touch()
    (tmp_path / "tune-lr=0.log").touch()
    for name in LEFT:
        (tmp_path / f".{name}").touch()
    return tmp_path


def saved(path: Path, meanwhile: Callable[[], object]) -> str:
    """Return what a file contains when something else happens while it is written."""

    def pieces() -> Iterator[str]:
        yield "{"
        meanwhile()
        yield "}"

    files.write_pieces(path, pieces())
    return path.read_text(encoding="utf-8")


@pytest.mark.parametrize("other", ["tune-lr=0.1", "tune-lr=0.ipynb", "tune-lr=0.html.1"])
@pytest.mark.parametrize("ending", [".ipynb", ".html"])
@pytest.mark.parametrize(
    "clean",
    [
        lambda folder: retries.set_aside(RunFolder(folder), "tune-lr=0"),
        lambda folder: Part(folder, "tune-lr=0").remove_drafts(),
    ],
    ids=["retry", "end of an element"],
)
def test_a_job_removes_no_draft_of_another(
    folder: Path, clean: Callable[[Path], object], other: str, ending: str
) -> None:
    """A grid makes names that begin with another's name and a dot; the job's own drafts are removed."""
    text = saved(folder / f"{other}{ending}", lambda: clean(folder))

    assert text == "{}"
    assert not list(folder.glob(".*"))


def test_collecting_removes_only_what_no_running_job_writes(folder: Path) -> None:
    """While one job saves, the drafts of another that was killed are removed."""
    whole = Whole(folder, {"tune-lr=0", "tune-lr=0.1"})
    running = Part(folder, "tune-lr=0.1")
    running.lock()

    text = saved(folder / "tune-lr=0.1.ipynb", whole.remove_drafts)

    running.close()
    assert text == "{}"
    assert not list(folder.glob(".*"))


def test_collecting_leaves_what_is_of_no_job(folder: Path) -> None:
    """A job that starts may be writing the versions of its environment, and no one's lock shows it."""
    (folder / ".environment-1.json.0123abcd").touch()

    Whole(folder, {"tune-lr=0"}).remove_drafts()

    assert [each.name for each in folder.glob(".*")] == [".environment-1.json.0123abcd"]
