"""A disk that is nearly full, or full: no run starts, one under way stops cleanly, and what it has is kept."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import nbformat
import notebook_files
import pytest

from rocmlab.base.errors import RocmlabError
from rocmlab.runs.command import main
from rocmlab.runs.folder import RunFolder

pytestmark = pytest.mark.slow

FILL = """
import errno
with open({path!r}, "wb", buffering=0) as file:
    try:
        while file.tell() < {megabytes} << 20:
            file.write(bytes(4096))
    except OSError as err:
        assert err.errno == errno.ENOSPC
"""
NEEDS_ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="mounting a small disk needs root")


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project with three notebooks: the second writes to the share."""
    for name in "ac":
        notebook_files.write(tmp_path / f"notebooks/{name}.ipynb", f"print('this is {name}')")
    (tmp_path / "share").mkdir()
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def small(project: Path) -> Iterator[Path]:
    """The same with a share on a disk of its own, of 10 MB."""
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=10m", "tmpfs", str(project / "share")], check=True)
    yield project
    subprocess.run(["umount", "--lazy", str(project / "share")], check=True)


def filling(project: Path, megabytes: int) -> None:
    """Write the notebook `b`, which fills the share."""
    path = str(project / "share/filler")
    notebook_files.write(project / "notebooks/b.ipynb", FILL.format(path=path, megabytes=megabytes))


def finished(project: Path) -> dict[str, str]:
    """Return the status of each job of the only run that the journal has as finished."""
    (folder,) = (project / "share/runs").iterdir()
    events = [event for event in RunFolder(folder).journal() if event["event"] == "job finished"]
    return {event["job"]: event["result"]["status"] for event in events}


def test_no_run_starts_on_a_disk_that_is_nearly_full(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Exit code 2, what to do, and no run folder; a dry run still says what would run."""
    monkeypatch.setenv("MIN_FREE_DISK_GB", "1000000")

    with pytest.raises(RocmlabError) as refused:
        main(["a", "--gpus", "none"])

    assert refused.value.exit_code == 2
    assert "GB free" in refused.value.problem.what
    assert "make clean RUNS=30d" in refused.value.problem.fix
    assert os.listdir(project / "share") == []
    assert main(["a", "--gpus", "none", "--dry-run"]) == 0


@NEEDS_ROOT
def test_a_run_under_way_starts_no_further_job_and_can_be_resumed(
    small: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Below the limit the jobs left are `not run`; results so far are kept, and --resume runs the others."""
    filling(small, 6)
    monkeypatch.setenv("MIN_FREE_DISK_GB", "0.005")

    assert main(["a", "b", "c", "--gpus", "none", "--json"]) == 1

    found = json.loads(capsys.readouterr().out)
    assert {job["name"]: job["status"] for job in found["jobs"]} == {"a": "ok", "b": "ok", "c": "not run"}
    assert "GB free" in str([job["warnings"] for job in found["jobs"] if job["name"] == "c"])
    (small / "share/filler").unlink()

    assert main(["--resume", "last", "--json"]) == 0

    assert finished(small)["c"] == "ok"


@NEEDS_ROOT
def test_a_full_disk_loses_no_finished_result(small: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Without a limit a job fills the disk to the last byte: journal and notebooks of the jobs before it are whole."""
    filling(small, 100)

    with pytest.raises(RocmlabError) as stopped:
        main(["a", "b", "c", "--gpus", "none", "--json"])

    assert "No space left" in stopped.value.problem.why
    assert "--resume" in stopped.value.problem.fix
    (folder,) = (small / "share/runs").iterdir()
    assert finished(small)["a"] == "ok"
    notebook = nbformat.read(folder / "a.ipynb", as_version=4)
    assert "this is a" in str(notebook.cells[0].outputs)
    (small / "share/filler").unlink()
    filling(small, 1)
    capsys.readouterr()

    assert main(["--resume", "last", "--json"]) == 0

    assert {job["status"] for job in json.loads(capsys.readouterr().out)["jobs"]} == {"ok"}
