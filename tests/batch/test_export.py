"""Exported runs: laid out once, each element alone, and all of them collected as one run."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import notebook_files
import pytest
from watching import eventually

from rocmlab.base import arguments
from rocmlab.base.errors import RocmlabError
from rocmlab.batch import array_task, layout, options
from rocmlab.batch.collect import collect
from rocmlab.batch.command import main
from rocmlab.batch.part import Part
from rocmlab.cli.main import main as rocmlab
from rocmlab.runs.command import main as run
from rocmlab.runs.folder import RunFolder
from rocmlab.runs.outcome import listing, resume
from rocmlab.runs.spec import options as run_options

pytestmark = pytest.mark.slow

DIES = "import os, signal\nos.kill(os.getpid(), signal.SIGKILL)"


@pytest.fixture
def share(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A share with notebooks that end in different ways."""
    share = tmp_path / "share"
    notebooks = share / "notebooks"
    notebook_files.write(
        notebooks / "good.ipynb",
        "# parameters\nx: int = 1",
        "import rocmlab\nrocmlab.record(x=x)",
        kernel="test-kernel",
    )
    notebook_files.write(notebooks / "bad.ipynb", "1 / 0")
    notebook_files.write(notebooks / "dies.ipynb", DIES)
    notebook_files.write(notebooks / "both.ipynb", "1", rocmlab={"gpus": 2})
    notebook_files.write(notebooks / "all.ipynb", "1", rocmlab={"gpus": "all"})
    monkeypatch.setenv("ROCMLAB_SHARE", str(share))
    monkeypatch.setenv("ROCMLAB_NOTEBOOKS", str(notebooks))
    monkeypatch.delenv("ROCMLAB_BACKEND", raising=False)
    monkeypatch.chdir(tmp_path)
    return share


def export(share: Path, *words: str, kind: str = "slurm") -> Path:
    """Export a run and return its folder."""
    before = set((share / "runs").glob("*"))
    assert main([kind, *words]) == 0
    (made,) = set((share / "runs").glob("*")) - before
    return made


def run_job(folder: Path, number: int, **more: str) -> subprocess.CompletedProcess[str]:
    """Run one element as the scheduler does: in a process of its own."""
    command = [sys.executable, "-m", "rocmlab", "export", "job", str(folder)]
    environment = {**os.environ, "SLURM_ARRAY_TASK_ID": str(number), **more}
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=240, check=False)


def results(folder: Path) -> dict[str, Any]:
    """Return the results of a collected run."""
    read: dict[str, Any] = json.loads((folder / "results.json").read_text(encoding="utf-8"))
    return read


@contextlib.contextmanager
def begun(folder: Path, job: str) -> Iterator[Part]:
    """A job that is being run, as its part shows it."""
    part = Part(folder, job)
    part.lock()
    described = [each for each in json.loads((folder / "jobs.json").read_text())["jobs"] if each["name"] == job]
    asked = {"word": described[0]["notebook"], "notebook": described[0]["notebook"]}
    part.log("run started", jobs=[{**described[0], "asked": asked}], options={})
    part.log("job started", job=job, devices=[])
    try:
        yield part
    finally:
        part.close()


@pytest.mark.long
def test_every_end_has_its_exit_code_and_all_are_one_run(share: Path) -> None:
    """Elements end as their notebooks do, and the collected run reports it of each, with the files of a usual run."""
    folder = export(share, "good", "bad", "dies", "--gpus", "none", "--name", "ends")

    codes = [run_job(folder, 0).returncode, run_job(folder, 1).returncode]
    (listed,) = listing.runs_of(share / "runs")
    codes.append(run_job(folder, 2).returncode)
    run = collect(folder)

    assert codes == [0, 1, 138]
    assert (listed["status"], listed["jobs"], listed["counts"]) == ("exported", 3, {"ok": 1, "failed": 1})
    assert not run.is_ok
    found = {job["name"]: job for job in results(folder)["jobs"]}
    assert [found[name]["status"] for name in ("good", "bad", "dies")] == ["ok", "failed", "kernel died"]
    assert found["good"]["recorded"] == {"x": 1}
    assert set(found["good"]["files"]) >= {"notebook", "html", "log"}
    assert all((folder / name).exists() for job in found.values() for name in job["files"].values())
    assert (folder / "report.html").exists()
    assert 'tests="3"' in (folder / "junit.xml").read_text(encoding="utf-8")
    assert resume.read(RunFolder(folder)).entries["good"].result is not None, "`rocmlab run --resume` knows it as well"


@pytest.mark.long
def test_an_element_that_is_done_does_nothing(share: Path) -> None:
    """A second submission leaves what ended well, and keeps the earlier attempt of what did not."""
    folder = export(share, "good", "bad", "--gpus", "none")
    first = [run_job(folder, number).returncode for number in range(2)]
    written = (folder / "good.ipynb").stat().st_mtime_ns

    again = [run_job(folder, number) for number in range(2)]
    collect(folder)

    assert [first, [each.returncode for each in again]] == [[0, 1], [0, 1]]
    assert "has already succeeded" in again[0].stderr
    assert (folder / "good.ipynb").stat().st_mtime_ns == written
    attempts = {job["name"]: job["attempts"] for job in results(folder)["jobs"]}
    assert attempts["good"] == []
    assert [each["status"] for each in attempts["bad"]] == ["failed"]
    assert (folder / "bad.attempt1.ipynb").exists()


def test_what_a_continued_run_has_improved_stays(share: Path, tmp_path: Path) -> None:
    """`rocmlab run --resume` runs again what failed in its element; `collect` then shows the later result."""
    marker = tmp_path / "marker"
    notebook_files.write(share / "notebooks/later.ipynb", f"import os\nassert os.path.exists({str(marker)!r})")
    folder = export(share, "later", "--gpus", "none")
    assert run_job(folder, 0).returncode == 1
    assert not collect(folder).is_ok
    marker.touch()

    assert run(["--resume", str(folder)]) == 0
    (again,) = collect(folder).results

    assert again.status == "ok"
    assert [each["status"] for each in again.attempts] == ["failed"]
    assert all((folder / name).exists() for name in again.files.values())


@pytest.mark.long
def test_a_notebook_that_changed_since_the_export_is_not_run(share: Path) -> None:
    """Its result would be of something else than the other jobs'."""
    folder = export(share, "good", "--gpus", "none")
    notebook_files.write(share / "notebooks/good.ipynb", "# parameters\nx: int = 2")

    ended = run_job(folder, 0)

    assert ended.returncode == 2
    assert "changed since the export" in ended.stderr


@pytest.mark.long
def test_a_copy_is_run_whatever_becomes_of_the_notebook(share: Path) -> None:
    """With --copy the run has notebooks of its own."""
    folder = export(share, "good", "-p", "x=3,4", "--gpus", "none", "--copy")
    notebook_files.write(share / "notebooks/good.ipynb", "1 / 0")

    ended = run_job(folder, 1)

    assert ended.returncode == 0, ended.stderr
    assert sorted(path.name for path in (folder / "notebooks").iterdir()) == ["0-good.ipynb"]


def test_jobs_that_ask_for_the_same_have_numbers_in_a_row(share: Path) -> None:
    """An array cannot ask for different numbers of GPUs."""
    words = ["good", "all", "both", "good", "--backend", "rocm", "--node-gpus", "8"]

    laid = layout.read(export(share, *words, "--timeout", "3600"))

    assert [(group.gpus, group.first, group.count) for group in laid.groups] == [(1, 0, 2), (2, 2, 1), (8, 3, 1)]
    assert [job["gpus"] for job in laid.jobs] == [1, 1, 2, 8]
    assert [job["number"] for job in laid.jobs] == [0, 1, 2, 3]
    assert all(len(job["sha256"]) == 64 and job["key"] for job in laid.jobs)


@pytest.mark.parametrize(
    ("words", "what"),
    [
        (["slurm", "all"], "requests all GPUs"),
        (["slurm", "both", "--gpus", "none"], "asks for 2 GPUs"),
        (["slurm", "nowhere"], "no such notebook"),
        (["slurm", "good", "-p", "y=1"], "it has no parameter y"),
        (["slurm", "good", "--gpus", "0,1"], "`--gpus 0,1` cannot be used with `export`"),
        (["slurm", "good", "--resume", "last"], "`--resume` cannot be used"),
        (["slurm", "good", "--fail-fast"], "`--fail-fast` cannot be used"),
        (["slurm", "good", "--partitoin", "a"], "--partitoin is not an option of rocmlab export slurm"),
        (["slurm", "good", "--sbatch=constraint=x"], "is not an option"),
        (["slurm", "good", '--sbatch=--comment="x'], "cannot be used in a Slurm script"),
        (["k8s", "good", "--claim", "share"], "--image is missing"),
        (["k8s", "good", "--image", "a"], "--claim is missing"),
        (["k8s", "good", "--image", "a", "--claim", "b", "--group", "render"], 'invalid `--group` value "render"'),
        (["job", "nowhere", "0"], "is not an exported run"),
        (["collect", "nowhere"], "is not an exported run"),
    ],
)
def test_what_cannot_be_exported_is_reported(share: Path, words: list[str], what: str) -> None:
    """Nothing is written, and each error has a fix."""
    with pytest.raises(RocmlabError) as told:
        main(words)

    assert what in told.value.problem.what
    assert told.value.problem.why
    assert told.value.problem.fix
    assert list((share / "runs").glob("*")) == []


def test_a_job_number_that_is_not_there_is_an_error(share: Path) -> None:
    """An array that is larger than the run reports it, and changes nothing."""
    folder = export(share, "good", "--gpus", "none")

    ended = run_job(folder, 7)

    assert ended.returncode == 2
    assert "job 7 not found" in ended.stderr
    assert list((folder / "parts").iterdir()) == []


def test_two_elements_never_run_the_same_job_at_once(share: Path) -> None:
    """The part is locked by whoever has it, as a scheduler may start a job twice after a node was lost for a while."""
    folder = export(share, "good", "--gpus", "none")

    with begun(folder, "good"):
        ended = run_job(folder, 0)

    assert ended.returncode == 2
    assert "is still running" in ended.stderr


def test_an_element_does_not_begin_while_the_run_is_continued(
    share: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """`rocmlab run --resume` has the whole run then, and both would write the same notebook."""
    monkeypatch.setattr(array_task, "LOCK_WAIT_SECONDS", 0.2)
    folder = export(share, "good", "--gpus", "none")
    resumed = RunFolder(folder)
    resumed.lock()

    code = rocmlab(["export", "job", str(folder), "0"])
    resumed.close()

    said = capsys.readouterr().err
    assert code == 2
    assert "is still running" in said
    assert "why: another process continues or collects it" in said
    assert "fix: wait for its end" in said
    assert list((folder / "parts").iterdir()) == []


@pytest.mark.long
def test_an_element_that_waited_for_collect_is_seen_by_the_next(share: Path, tmp_path: Path) -> None:
    """It has its lock of the run for as long as it works."""
    begun, gate = tmp_path / "begun", tmp_path / "gate"
    cell = f"import pathlib, time\npathlib.Path({str(begun)!r}).touch()\n"
    cell += f"while not pathlib.Path({str(gate)!r}).exists(): time.sleep(0.05)"
    notebook_files.write(share / "notebooks/waits.ipynb", cell)
    folder = export(share, "waits", "--gpus", "none")
    first = RunFolder(folder)
    first.lock()
    command = [sys.executable, "-m", "rocmlab", "export", "job", str(folder), "0"]

    with subprocess.Popen(command, env={**os.environ}) as element:
        released = threading.Timer(3, first.close)  # long after it has begun to wait
        released.start()
        try:
            assert eventually(begun.exists, 120)
            with pytest.raises(RocmlabError, match="is still running"):
                RunFolder(folder).lock()
            run = collect(folder)
        finally:
            gate.touch()
        code = element.wait(120)

    assert code == 0
    assert [(result.status, result.warnings) for result in run.results] == [("not run", ["it is still running"])]
    assert collect(folder).is_ok


def events(folder: Path) -> list[str]:
    """Return what the journal of the whole run has noted."""
    return [event["event"] for event in RunFolder(folder).journal()]


def test_a_job_that_runs_is_not_collected_as_killed(share: Path) -> None:
    """Its part is locked, whoever has the lock of the run."""
    folder = export(share, "good", "bad", "--gpus", "none")

    with begun(folder, "good"):
        run = collect(folder)

    assert not run.is_ok
    assert [(result.status, result.warnings) for result in run.results] == [
        ("not run", ["it is still running"]),
        ("not run", ["the scheduler never started it"]),
    ]
    assert run.notes == ["some jobs are still running: collect again when they have finished"]
    assert events(folder) == ["run started"]


@pytest.mark.long
def test_without_locks_no_job_is_said_to_be_killed(share: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A share without flock (Lustre's default) does not show whether a job runs, so none is noted as ended."""

    def no_locks(*_: object) -> None:
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))

    folder = export(share, "good", "bad", "--gpus", "none")
    assert run_job(folder, 1).returncode == 1
    monkeypatch.setattr(fcntl, "flock", no_locks)

    with begun(folder, "good"):
        run = collect(folder)

    good, bad = run.results
    assert (good.status, good.exit_code) == ("not run", None)
    assert good.warnings[0].startswith("it is running or was killed: this file system has no locks")
    assert bad.status == "failed", "it has ended: its journal has it"
    assert "need a new submission" in run.notes[0]
    finished = [event["job"] for event in RunFolder(folder).journal() if event["event"] == "job finished"]
    assert finished == ["bad"]
    assert "run finished" not in events(folder)


def test_what_never_ended_is_told_as_what_it_is(share: Path) -> None:
    """A job whose node was lost is killed, and one that never started is not run; neither is ok."""
    folder = export(share, "good", "bad", "--gpus", "none")
    with begun(folder, "good"):
        pass

    run = collect(folder, wait_seconds=0.2)

    assert not run.is_ok
    assert [(result.name, result.status, result.exit_code) for result in run.results] == [
        ("good", "killed", 137),
        ("bad", "not run", None),
    ]


def test_a_job_that_wants_a_gpu_never_falls_back_to_the_processor(share: Path) -> None:
    """It is not run where there is none, and reports it."""
    folder = export(share, "good", "--backend", "rocm")

    ended = run_job(folder, 0, HIP_VISIBLE_DEVICES="-1")

    assert ended.returncode == 2
    assert "it asks for 1 GPU" in ended.stderr


@pytest.mark.parametrize(
    ("given", "left"),
    [
        ({"ROCR_VISIBLE_DEVICES": "1", "CUDA_VISIBLE_DEVICES": "1"}, {"ROCR_VISIBLE_DEVICES": "1"}),
        ({"ROCR_VISIBLE_DEVICES": "1", "GPU_DEVICE_ORDINAL": "1"}, {"ROCR_VISIBLE_DEVICES": "1"}),
        (
            {"ROCR_VISIBLE_DEVICES": "2,3", "HIP_VISIBLE_DEVICES": "0"},
            {"ROCR_VISIBLE_DEVICES": "2,3", "HIP_VISIBLE_DEVICES": "0"},
        ),
        ({"CUDA_VISIBLE_DEVICES": "1"}, {"CUDA_VISIBLE_DEVICES": "1"}),
    ],
)
def test_slurm_masks_are_believed_once(given: dict[str, str], left: dict[str, str]) -> None:
    """The same numbers twice would be counted twice, and hide every GPU."""
    found = array_task.device_environment({"SLURM_JOB_ID": "7", **given}, "rocm")

    assert found == {"SLURM_JOB_ID": "7", **left}
    assert array_task.device_environment(given, "rocm") == given, "outside of Slurm they are the user's own"
    assert array_task.device_environment({"SLURM_JOB_ID": "7", **given}, "cuda") == {"SLURM_JOB_ID": "7", **given}


def test_the_scheduler_says_which_element_this_is() -> None:
    """Slurm and Kubernetes have a variable each."""
    assert array_task.array_index({"SLURM_ARRAY_TASK_ID": "4"}) == 4
    assert array_task.array_index({"JOB_COMPLETION_INDEX": "0"}) == 0
    assert array_task.array_index({}) is None


VALUES = {  # of each option that takes a value and names no choices
    **dict.fromkeys(("--timeout", "--cell-timeout", "--time", "--cpus", "--parallel", "--array-size"), "60"),
    **dict.fromkeys(("--job-gpus", "--node-gpus", "--retries", "--group", "--user"), "2"),
    **dict.fromkeys(("--memory", "--vram", "--job-memory", "--shm"), "16GB"),
    **dict.fromkeys(("--share", "--name", "--kernel", "--compare", "--image", "--claim", "--namespace"), "a"),
    **dict.fromkeys(("--partition", "--account", "--gpu-type"), "a"),
    **{"-p": "x=1", "--parameter": "x=1", "--gpus": "none", "--sbatch": "--nice", "--node-selector": "a=b"},
}


@pytest.mark.parametrize("kind", ["slurm", "k8s"])
def test_an_export_lists_exactly_the_options_that_it_accepts(kind: str) -> None:
    """Each listed one is accepted; each of `rocmlab run` that is not listed is rejected with a fix."""
    required = {"slurm": ["--image", "a"], "k8s": ["--image", "a", "--claim", "b"]}[kind]
    listed = arguments.options(options.parser(kind))
    of_run = arguments.options(run_options.parser())

    for name, action in listed.items():
        value = next(iter(action.choices or [VALUES.get(name, "")]))
        words = [name] if action.nargs == 0 else [f"{name}={value}"] if name.startswith("--") else [name, value]
        if action.dest != "help":
            assert options.read(kind, ["good", *required, *words]).notebooks == ["good"], name

    missing = of_run.keys() - listed.keys()
    again = {"--resume", "--reproduce"}
    assert missing == {"--engine", "--cluster", "--exchange", "--fail-fast", "--list", "--mixed", "--warm"} | again
    for name in missing:
        with pytest.raises(RocmlabError, match=f"`{name}` cannot be used with `export {kind}`") as told:
            options.read(kind, ["good", *required, name, *([] if of_run[name].nargs == 0 else ["ray"])])
        assert f"omit {name}" in told.value.problem.fix
