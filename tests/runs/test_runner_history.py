"""Times of earlier runs, the plan that follows from them, and the list of runs."""

from __future__ import annotations

import json
from pathlib import Path

import notebook_files
import pytest
import run_results

from rocmlab.base import files
from rocmlab.runs.command import main
from rocmlab.runs.folder import RunFolder
from rocmlab.runs.jobs import Job
from rocmlab.runs.outcome import history


def write_run(share: Path, name: str, *jobs: dict) -> Path:
    """Write a run that has ended."""
    folder = share / "runs" / name
    folder.mkdir(parents=True)
    files.write_text(folder / "results.json", json.dumps(run_results.results(*jobs, name=name)))
    (folder / "journal.jsonl").write_text(json.dumps({"event": "run started", "time": "2026-11-21T00:00:00Z"}) + "\n")
    return folder


def test_the_newest_time_of_the_same_point_counts(tmp_path: Path) -> None:
    """Else that of the same notebook; what did not end ok says nothing."""
    old = [run_results.job("a", seconds=10.0), run_results.job("a-2", notebook="/x/a.ipynb", parameters={"lr": 1})]
    write_run(tmp_path, "20261101T000000Z-x", *old)
    new = [
        run_results.job("a", seconds=20.0, parameters={"lr": 2}),
        run_results.job("b", "failed", seconds=99.0),
    ]
    write_run(tmp_path, "20261102T000000Z-x", *new)
    jobs = [
        Job("1", "/other/a.ipynb", {"lr": 1}),
        Job("2", "/a.ipynb", {"lr": 2}),
        Job("3", "/a.ipynb", {"lr": 3}),
        Job("4", "/b.ipynb"),
        Job("5", "/new.ipynb"),
    ]

    found = history.expected_seconds(jobs, tmp_path / "runs")

    assert found == {"1": 12.5, "2": 20.0, "3": 20.0}


@pytest.mark.parametrize(
    "content", ["", "{", "[]", "3", '{"jobs": 3}', '{"jobs": [3]}', '{"jobs": [{"status": "ok"}]}', "[" * 100_000]
)
def test_a_damaged_run_is_passed_over(content: str, tmp_path: Path) -> None:
    """Times are a help and never a reason to fail."""
    write_run(tmp_path, "20261101T000000Z-x", run_results.job("a", seconds=10.0))
    damaged = write_run(tmp_path, "20261102T000000Z-x")
    (damaged / "results.json").write_text(content)

    assert history.expected_seconds([Job("a", "/a.ipynb")], tmp_path / "runs") == {"a": 10.0}
    assert history.expected_seconds([Job("a", "/a.ipynb")], tmp_path / "nothing") == {}


def test_only_the_newest_runs_are_read(tmp_path: Path) -> None:
    """A share of ten thousand runs must not cost a minute at each start."""
    write_run(tmp_path, "20261001T000000Z-x", run_results.job("a", seconds=10.0))
    for number in range(history.NEWEST):
        write_run(tmp_path, f"20261102T{number:06}Z-x")

    assert history.expected_seconds([Job("a", "/a.ipynb")], tmp_path / "runs") == {}


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project with three notebooks, two of which have run before."""
    for name in "abc":
        notebook_files.write(tmp_path / f"notebooks/{name}.ipynb", "1")
    write_run(
        tmp_path / "share",
        "20261101T000000Z-x",
        run_results.job("a", seconds=30.0),
        run_results.job("b", seconds=90.0),
    )
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_dry_run_prints_the_order_and_the_times(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What is not known goes first, then the longest; nothing is written."""
    before = sorted(project.rglob("*"))

    assert main(["--dry-run", "--gpus", "none"]) == 0
    output = capsys.readouterr().out
    assert main(["--dry-run", "--gpus", "none", "--json"]) == 0
    planned = json.loads(capsys.readouterr().out)

    rows = [line.split()[0] for line in output.splitlines() if line.split()[:1] in (["a"], ["b"], ["c"])]
    assert rows == ["c", "b", "a"]
    assert "1:30" in output
    assert "30.0 s" in output
    assert "3 jobs to run, one after another; about 2:00 by earlier runs, and 1 job of unknown length" in output
    assert [(job["name"], job["expected_seconds"]) for job in planned["jobs"]] == [("c", None), ("b", 90), ("a", 30)]
    assert sorted(project.rglob("*")) == before


@pytest.mark.long
@pytest.mark.slow
def test_a_dry_run_of_a_resume_says_what_is_skipped(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Finished jobs are marked, and no journal is touched."""
    assert main(["a", "b", "--gpus", "none"]) == 0
    journal = next((project / "share/runs").glob("2*-notebooks")) / "journal.jsonl"
    before = journal.read_bytes()
    capsys.readouterr()

    assert main(["--resume", "last", "--dry-run", "--json"]) == 0

    planned = json.loads(capsys.readouterr().out)
    assert sorted((job["name"], job["skipped"]) for job in planned["jobs"]) == [("a", True), ("b", True)]
    assert journal.read_bytes() == before


def test_the_runs_of_a_share_are_listed_newest_first(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Ended, interrupted, running and unreadable are distinguished; what never began is not a run."""
    share = project / "share"
    write_run(share, "20261103T000000Z-bad", run_results.job("a"), run_results.job("b", "failed"))
    short = share / "runs/20261104T000000Z-short"
    short.mkdir()
    events = [
        {"event": "run started", "time": "2026-11-04T00:00:00.000Z", "jobs": [1, 2, 3]},
        {"event": "job finished", "job": "a", "result": {"status": "ok"}},
    ]
    (short / "journal.jsonl").write_text("".join(json.dumps(event) + "\n" for event in events) + '{"torn')
    going = RunFolder(share / "runs/20261105T000000Z-going")
    going.path.mkdir()
    going.log("run started", jobs=[1])
    going.lock()
    for name, journal in (
        ("20261106T000000Z-noise", "\0\n"),
        ("20261107T000000Z-stub", ""),
        ("20261108T000000Z-torn", "{"),
    ):
        (share / "runs" / name).mkdir()
        (share / "runs" / name / "journal.jsonl").write_text(journal)

    assert main(["--list", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert main(["--list"]) == 0
    printed = capsys.readouterr().out
    going.close()

    assert [(run["name"][17:], run["status"], run["counts"]) for run in found] == [
        ("noise", "unreadable", {}),
        ("going", "running", {}),
        ("short", "cut short", {"ok": 1}),
        ("bad", "failed", {"ok": 1, "failed": 1}),
        ("x", "ok", {"ok": 2}),
    ]
    assert "1 ok, 2 open" in printed
    assert "1 ok, 1 failed" in printed


def test_a_share_without_runs_lists_none(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """That is not an error."""
    assert main(["--list", "--share", str(tmp_path / "share")]) == 0

    assert "no runs in" in capsys.readouterr().out
    assert not (tmp_path / "share").exists()
