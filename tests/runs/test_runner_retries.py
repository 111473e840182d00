"""What is retried, what is kept of each attempt, and how a run stops at its first failure."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import notebook_files
import pytest
from watching import Watcher

from rocmlab.devices import Device
from rocmlab.runs.command import main
from rocmlab.runs.folder import KINDS, RunFolder
from rocmlab.runs.jobs import Result
from rocmlab.runs.run import Run, run
from rocmlab.runs.runner import Runner
from rocmlab.runs.scheduling.placement import Slots
from rocmlab.runs.scheduling.plan import Rules
from rocmlab.runs.workers.supervisor import Limits

pytestmark = pytest.mark.slow

DIES_ONCE = """
import os, pathlib, signal, time
seen = pathlib.Path({path!r})
with seen.open("a") as notes:
    notes.write(os.environ.get("HIP_VISIBLE_DEVICES", "") + "\\n")
if len(seen.read_text().splitlines()) <= {times}:
    print("before the end", flush=True)
    time.sleep({wait})  # what a process has not sent yet dies with it
    os.kill(os.getpid(), signal.SIGKILL)
"""


def run_all(paths: list[Path], folder: RunFolder, slots: Slots, rules: Rules, limits: Limits | None = None) -> Run:
    """Run notebooks."""
    jobs = notebook_files.jobs(paths)
    return run(jobs, folder=folder, slots=slots, display=Watcher(), rules=rules, limits=limits)


def test_a_dead_kernel_is_tried_again_on_another_gpu(tmp_path: Path, slots: Slots, run_folder: RunFolder) -> None:
    """The earlier attempt's notebook and log are kept, and the result tells of it."""
    seen = tmp_path / "seen"
    path = notebook_files.write(
        tmp_path / "dies.ipynb", DIES_ONCE.format(path=str(seen), times=1, wait=1), "print('done')"
    )

    done = run_all([path], run_folder, slots, Rules(retries=1))

    (result,) = done.results
    assert done.is_ok
    assert seen.read_text().split() == ["0", "1"]
    (attempt,) = result.attempts
    assert (attempt["status"], attempt["devices"][0]["index"]) == ("kernel died", 0)
    assert "SIGKILL" in attempt["message"]
    assert attempt["files"] == {kind: f"dies.attempt1{end}" for kind, end in KINDS.items()}
    assert "before the end" in (run_folder.path / "dies.attempt1.log").read_text()
    assert "done" in json.dumps(json.loads((run_folder.path / "dies.ipynb").read_text()))
    assert "before the end" not in run_folder.file("dies", "log").read_text()
    events = [event["event"] for event in run_folder.journal() if event.get("job") == "dies"]
    assert events == ["job started", "job retried", "job started", "job finished"]


def test_what_a_killed_save_has_left_goes_with_the_next_attempt(
    tmp_path: Path, slots: Slots, run_folder: RunFolder
) -> None:
    """The drafts of this job, and only these, for others may be saving; at the end of the run all of them."""
    run = run_folder.path
    drafts = [".dies.ipynb.0123abcd", ".dies.html.0123abcd", ".other.ipynb.89abcdef"]
    others = [".dies.ipynb", ".dies.ipynb.0123abcd9", ".notes.txt.0123abcd"]
    for name in (*drafts, *others):
        (run / name).touch()
    lists = f"import os\nprint('sees', *sorted(name for name in os.listdir({str(run)!r}) if name in {drafts!r}))"
    cells = (lists, DIES_ONCE.format(path=str(tmp_path / "seen"), times=1, wait=0))
    path = notebook_files.write(tmp_path / "dies.ipynb", *cells)

    done = run_all([path], run_folder, slots, Rules(retries=1))

    assert done.is_ok
    assert "sees .dies.html.0123abcd .dies.ipynb.0123abcd .other" in (run / "dies.attempt1.log").read_text()
    assert "sees .other.ipynb.89abcdef\n" in (run / "dies.log").read_text()
    assert sorted(each.name for each in run.glob(".*")) == sorted(others)


@pytest.mark.long
def test_the_number_of_retries_is_kept(tmp_path: Path, slots: Slots, run_folder: RunFolder) -> None:
    """After the last one the job has failed, with all its attempts."""
    seen = tmp_path / "seen"
    path = notebook_files.write(tmp_path / "dies.ipynb", DIES_ONCE.format(path=str(seen), times=9, wait=0))

    done = run_all([path], run_folder, slots, Rules(retries=2))

    (result,) = done.results
    assert (result.status, len(result.attempts)) == ("kernel died", 2)
    assert len(seen.read_text().split()) == 3
    assert {"dies.attempt1.log", "dies.attempt2.log", "dies.log"} < {path.name for path in run_folder.path.iterdir()}


@pytest.mark.long
def test_what_will_not_pass_is_not_tried_again(tmp_path: Path, slots: Slots, run_folder: RunFolder) -> None:
    """Exceptions, limits and notebooks that cannot be run end at once."""
    paths = [
        notebook_files.write(tmp_path / "fails.ipynb", "1 / 0"),
        notebook_files.write(tmp_path / "long.ipynb", "import time; time.sleep(600)"),
        notebook_files.write(tmp_path / "julia.ipynb", "1", kernel="julia-9"),
    ]

    done = run_all(paths, run_folder, slots, Rules(retries=5), Limits(cell_seconds=2))

    assert [(result.status, result.attempts) for result in done.results] == [
        ("failed", []),
        ("timeout", []),
        ("not run", []),
    ]


@pytest.mark.long
def test_the_first_failure_stops_a_run(tmp_path: Path, slots: Slots, cpu: Device, run_folder: RunFolder) -> None:
    """The job next to it is stopped and saved, the others are not run, and each says why."""
    running = "import pathlib, time\nprint('so far', flush=True)\npathlib.Path('runs').touch()\ntime.sleep(600)"
    fails = "import pathlib, time\nwhile not pathlib.Path('runs').exists(): time.sleep(0.05)\n1 / 0"
    paths = [
        notebook_files.write(tmp_path / "runs.ipynb", running),
        notebook_files.write(tmp_path / "fails.ipynb", fails),
        notebook_files.write(tmp_path / "later.ipynb", "1"),
    ]

    done = run_all(paths, run_folder, slots, Rules(retries=3, fail_fast=True))

    stopped, _, later = done.results
    assert [result.status for result in done.results] == ["killed", "failed", "not run"]
    assert "fails failed, and --fail-fast" in stopped.error["value"]
    assert "so far" in run_folder.file("runs", "notebook").read_text()
    assert later.warnings == ["not started: fails failed, and --fail-fast stops there"]
    assert done.as_dict()["run"]["status"] == "failed"
    assert not done.is_interrupted


def test_a_job_that_cannot_run_is_a_failure_too(tmp_path: Path, slots: Slots, run_folder: RunFolder) -> None:
    """With `--fail-fast` nothing runs when one is known not to."""
    paths = [
        notebook_files.write(tmp_path / "a.ipynb", "1"),
        notebook_files.write(tmp_path / "julia.ipynb", "1", kernel="julia-9"),
    ]

    done = run_all(paths, run_folder, slots, Rules(fail_fast=True))

    assert [result.status for result in done.results] == ["not run", "not run"]


@pytest.mark.long
def test_the_command_tries_once_more_and_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """One retry silently; the log and the table tell of it."""
    dies = DIES_ONCE.format(path=str(tmp_path / "seen"), times=1, wait=0)
    notebook_files.write(tmp_path / "notebooks/dies.ipynb", dies)
    monkeypatch.chdir(tmp_path)

    code = main(["--gpus", "none"])

    output, lines = capsys.readouterr()
    assert code == 0
    assert "↻ dies  kernel died, will be retried" in lines
    assert "attempt 2" in output


@pytest.mark.long
def test_a_night_of_small_jobs_keeps_only_results(
    tmp_path: Path, slots: Slots, run_folder: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """When a run has ended, nothing of its jobs is left in the runner but their results."""
    kept: list[Runner] = []

    class Kept(Runner):
        def __init__(self, *arguments: Any) -> None:
            super().__init__(*arguments)
            kept.append(self)

    monkeypatch.setattr("rocmlab.runs.run.Runner", Kept)
    paths = [notebook_files.write(tmp_path / f"{number}.ipynb", "1") for number in range(4)]

    done = run_all(paths, run_folder, slots, Rules(retries=1))

    (runner,) = kept
    assert done.is_ok
    assert all(isinstance(each, Result) for each in runner.results.values())
    assert [len(each) for each in (runner.running, runner.waiting, runner.attempts)] == [0] * 3
