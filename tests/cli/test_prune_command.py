"""`rocmlab clean --runs 30d` removes finished runs that are older, and nothing else."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import subprocess
import sys
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest
from clones import clone, free_port

from rocmlab.stack import prune

SOURCE = str(Path(prune.__file__).parents[2])


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A clone whose `.env` describes a native lab."""
    made = clone(tmp_path / "clone").folder
    lines = f"ROCMLAB_BACKEND=cpu\nROCMLAB_RUNTIME=native\nJUPYTER_TOKEN=x\nSHARE=./share\nPORT={free_port()}\n"
    (made / ".env").write_text(lines)
    (made / ".venv").mkdir()
    (made / "share/runs").mkdir(parents=True)
    return made


def run(project: Path, name: str, days: float, *last: str, status: str = "ok") -> Path:
    """Make a run folder that ended so many days ago."""
    end = datetime.now(timezone.utc) - timedelta(days=days)
    folder = project / f"share/runs/{name}"
    folder.mkdir()
    events = [{"event": event, "time": end.isoformat()} for event in ("run started", *(last or ("run finished",)))]
    events[-1]["status"] = status
    (folder / "journal.jsonl").write_text("".join(json.dumps(event) + "\n" for event in events))
    (folder / "a.ipynb").write_text("{}")
    for path in (*folder.iterdir(), folder):
        os.utime(path, (end.timestamp(), end.timestamp()))
    return folder


def call(project: Path, *words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run `rocmlab clean` with arguments."""
    env = {name: value for name, value in os.environ.items() if not name.startswith(("ROCMLAB_", "MAKE"))}
    return subprocess.run(
        [sys.executable, "-m", "rocmlab", "clean", *words],
        cwd=project,
        env={**env, "PYTHONPATH": str(project / "src"), **environment},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.slow
def test_only_old_finished_runs_are_removed_and_they_are_listed_first(project: Path) -> None:
    """What is new, under way, interrupted, changed since, or not a run stays, and so do environment and lab."""
    runs = project / "share/runs"
    old = run(project, "20260101T000000Z-old", 40)
    failed = run(project, "20260102T000000Z-failed", 40, status="failed")
    kept = [
        run(project, "20260103T000000Z-new", 10),
        run(project, "20260104T000000Z-stopped", 40, status="interrupted"),
        run(project, "20260105T000000Z-killed", 40, "job finished"),
        run(project, "20260106T000000Z-resumed", 40, "run finished", "run resumed"),
        run(project, "my-own-folder", 40),
        run(project, "20260107T000000Z-edited", 40),
        run(project, "20260108T000000Z-going", 40),
        run(project, "20260111T000000Z-added", 40),
    ]
    (kept[7] / "thesis.txt").write_text("copied here by `cp -p`, with its own old time")
    os.utime(kept[7] / "thesis.txt", (0, 0))
    (kept[5] / "a.ipynb").write_text("my correction")
    (runs / "notes.txt").write_text("mine")
    (runs / "20260109T000000Z-link").symlink_to(old)
    (runs / "20260110T000000Z-empty").mkdir()
    with (kept[6] / "journal.jsonl").open("rb") as journal:
        fcntl.flock(journal, fcntl.LOCK_EX)

        asked = call(project, "--runs", "30d")
        assert asked.returncode == 2
        assert old.exists()
        done = call(project, RUNS="30d", FORCE="1")

    assert done.returncode == 0, done.stderr
    for output in (asked.stdout, done.stdout):
        assert output.count("  old ") == 2
        assert old.name in output
        assert "20260107T000000Z-edited" in output
        assert "a.ipynb was changed after the run's end" in output
    assert "FORCE=1" in asked.stderr
    assert "removed 2 runs" in done.stdout
    assert not old.exists()
    assert not failed.exists()
    assert all((folder / "a.ipynb").exists() for folder in kept)
    assert (kept[7] / "thesis.txt").exists()
    assert (runs / "notes.txt").read_text() == "mine"
    assert (runs / "20260109T000000Z-link").is_symlink()
    assert (runs / "20260110T000000Z-empty").is_dir()
    assert (project / ".venv").is_dir()


@pytest.mark.long
@pytest.mark.parametrize(
    ("answer", "is_removed"),
    [("y\n", True), ("n\n", False), ("\n", False), ("\4", False)],
    ids=["y", "n", "", "Ctrl-D"],
)
def test_on_a_terminal_it_asks(project: Path, answer: str, is_removed: bool) -> None:
    """Only a yes removes."""
    old = run(project, "20260101T000000Z-old", 40)
    env = {name: value for name, value in os.environ.items() if not name.startswith(("ROCMLAB_", "MAKE"))}
    terminal, inside = pty.openpty()
    command = [sys.executable, "-m", "rocmlab", "clean", "--runs", "30d"]
    with subprocess.Popen(
        command, cwd=project, env={**env, "PYTHONPATH": SOURCE}, stdin=inside, stdout=inside, stderr=inside
    ) as asked:
        os.close(inside)
        output = b""
        while b"[y/N]" not in output:
            output += os.read(terminal, 4096)
        os.write(terminal, answer.encode())
        while b"nothing was removed" not in output and b"removed 1 runs" not in output:
            output += os.read(terminal, 4096)
        asked.wait(30)
    os.close(terminal)

    assert asked.returncode == (not is_removed)
    assert old.exists() != is_removed
    assert b"20260101T000000Z-old" in output


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize("age", ["soon", "30", "-3d", "3y", "d", "1.5d"])
def test_an_age_that_is_none_is_an_error(project: Path, age: str) -> None:
    """Exit code 2, before anything is listed."""
    done = call(project, f"--runs={age}")

    assert done.returncode == 2
    assert f"RUNS={age} is not an age" in done.stderr


def test_a_run_that_is_resumed_meanwhile_stays(project: Path) -> None:
    """Between the list and the removal its lock was taken."""
    old = run(project, "20260101T000000Z-old", 40)
    with (old / "journal.jsonl").open("rb") as journal:
        fcntl.flock(journal, fcntl.LOCK_SH)

        assert prune.remove(old.parent, [old.name], 30 * 86400) == []

    assert prune.remove(old.parent, ["../..", "/", old.name], 30 * 86400)
    assert not old.exists()


@pytest.mark.slow
@pytest.mark.long
def test_status_warns_of_a_full_disk(project: Path) -> None:
    """For a user and in JSON; with the limit 0 it is silent."""
    env = {name: value for name, value in os.environ.items() if not name.startswith(("ROCMLAB_", "MAKE"))}

    def status(*words: str) -> str:
        command = [sys.executable, "-m", "rocmlab", "status", *words]
        env["PYTHONPATH"] = SOURCE
        return subprocess.run(command, cwd=project, env=env, capture_output=True, text=True, check=False).stdout

    (project / ".env").write_text((project / ".env").read_text() + "MIN_FREE_DISK_GB=1000000\n")
    assert "GB free" in json.loads(status("--json"))["disk"]["what"]
    assert "WARNING    the disk of" in status()

    (project / ".env").write_text((project / ".env").read_text() + "MIN_FREE_DISK_GB=0\n")
    assert "WARNING" not in status()
