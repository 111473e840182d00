"""A run that was cut short is continued in its own folder: what had finished is not run again, and nothing is lost."""

from __future__ import annotations

import contextlib
import fcntl
import json
import math
import os
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import notebook_files
import pytest
from wheel_files import wheel

from rocmlab.base.errors import RocmlabError
from rocmlab.packages import installing
from rocmlab.packages.overlays import Place
from rocmlab.packages.requested import Requirement
from rocmlab.runs.command import main
from rocmlab.runs.folder import RunFolder
from rocmlab.runs.jobs import Job, Request
from rocmlab.runs.outcome import resume
from rocmlab.runs.spec import keys
from rocmlab.runs.spec.preflight import jobs_of

pytestmark = pytest.mark.slow

COUNT = """
import os
with open({path!r}, "ab", buffering=0) as notes:
    notes.write({name!r}.encode() + b" {word}\\n")
"""


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project whose notebooks count how often they run."""
    for name in "abc":
        count = COUNT.format(path=str(tmp_path / "notes"), name=name, word="start")
        declared = notebook_files.PARAMETERS + "scale: float = 1.0"
        notebook_files.write(tmp_path / f"notebooks/{name}.ipynb", declared, count, "print(scale)")
    (tmp_path / "notes").touch()
    monkeypatch.chdir(tmp_path)
    return tmp_path


def starts(project: Path) -> Counter[str]:
    """Return how often each notebook has run."""
    return Counter(line.split()[0] for line in (project / "notes").read_text().splitlines())


def run_folder_of(project: Path) -> Path:
    """Return the only run folder."""
    (folder,) = (project / "share/runs").iterdir()
    return folder


def cut_short(folder: Path, finished: int) -> None:
    """Make of a run that ended one that was killed after so many jobs, in the middle of a line."""
    lines = folder.joinpath("journal.jsonl").read_bytes().splitlines(keepends=True)
    ends = [number for number, line in enumerate(lines) if b'"job finished"' in line]
    kept = lines[: ends[finished - 1] + 1] if finished else lines[:1]
    (folder / "journal.jsonl").write_bytes(b"".join(kept) + b'{"event": "job st')
    for name in ("results.json", "report.html", "junit.xml"):
        (folder / name).unlink()


def resumed(capsys: pytest.CaptureFixture[str], *words: str) -> dict:
    """Resume the last run, which must end well, and return its results."""
    capsys.readouterr()
    assert main(["--resume", "last", "--json", *words]) == 0
    return json.loads(capsys.readouterr().out)


def test_only_what_had_not_finished_runs_again(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Words, parameters and options come from the journal, and the results are those of all jobs."""
    assert main(["a", "b", "c", "-p", "scale=.inf", "--gpus", "none", "--retries", "0"]) == 0
    cut_short(run_folder_of(project), finished=1)
    draft = run_folder_of(project) / ".b.ipynb.0123abcd"  # of a save that was killed with the runner
    draft.write_text("half a noteb")

    done = resumed(capsys)

    assert not draft.exists()
    assert sorted(starts(project).items()) == [("a", 1), ("b", 2), ("c", 2)]
    assert [(job["name"], job["status"]) for job in done["jobs"]] == [("a", "ok"), ("b", "ok"), ("c", "ok")]
    assert run_folder_of(project) == Path(done["run"]["folder"])
    assert done == json.loads((run_folder_of(project) / "results.json").read_text())
    assert "inf" in (run_folder_of(project) / "c.log").read_text()
    assert {"report.html", "junit.xml"} < {path.name for path in run_folder_of(project).iterdir()}
    lines = (run_folder_of(project) / "journal.jsonl").read_bytes().splitlines()
    torn = [line for line in lines if not line.endswith(b"}")]
    assert torn == [b'{"event": "job st']
    events = [event["event"] for event in RunFolder(run_folder_of(project)).journal()]
    assert events.count("run started") == events.count("run resumed") == 1
    assert events[-1] == "run finished"


@pytest.mark.long
def test_a_run_that_ended_has_nothing_left_to_do(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Resuming it again and again changes nothing."""
    assert main(["a", "b", "--gpus", "none"]) == 0

    first, second = resumed(capsys), resumed(capsys)

    assert starts(project) == {"a": 1, "b": 1}
    assert first["jobs"] == second["jobs"]


@pytest.mark.long
@pytest.mark.parametrize("left", [None, b""])
def test_a_notebook_that_was_lost_is_made_again(
    left: bytes | None, project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """What a power cut, or a careless `rm`, has left of a job that ended well is no result, and this is reported."""
    assert main(["a", "b", "--gpus", "none"]) == 0
    lost = run_folder_of(project) / "a.ipynb"
    lost.unlink()
    if left is not None:
        lost.write_bytes(left)
    capsys.readouterr()

    assert main(["--resume", "last", "--dry-run"]) == 0
    planned = capsys.readouterr().out
    done = resumed(capsys)

    assert "a: run again, because its notebook is missing or cannot be read" in planned
    assert starts(project) == {"a": 2, "b": 1}
    assert [job["status"] for job in done["jobs"]] == ["ok", "ok"]
    assert json.loads(lost.read_bytes())["cells"]


def test_a_notebook_is_on_the_disk_before_the_journal_has_its_end(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So that after a power cut a job that is `ok` has its notebook, and the folder has its name."""
    synced: list[str] = []
    fsync = os.fsync

    def noted(descriptor: int) -> None:
        fsync(descriptor)
        name = Path(os.readlink(f"/proc/self/fd/{descriptor}")).name
        is_end = name == "journal.jsonl" and run_folder_of(project).joinpath(name).read_text().count('"job finished"')
        synced.append("the end" if is_end else name)

    monkeypatch.setattr(os, "fsync", noted)

    assert main(["a", "--gpus", "none"]) == 0

    before = synced[: synced.index("the end")]
    assert "a.ipynb" in before
    assert run_folder_of(project).name in before[before.index("a.ipynb") :]


@pytest.mark.long
def test_a_changed_notebook_runs_again_and_it_is_said_why(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A change of its code counts; outputs, prose and other metadata do not."""
    assert main(["a", "b", "--gpus", "none"]) == 0
    for name, change in (("a", "\nx = 1"), ("b", "")):
        path = project / f"notebooks/{name}.ipynb"
        notebook = json.loads(path.read_text())
        notebook["cells"][2]["source"] = "".join(notebook["cells"][2]["source"]) + change
        notebook["cells"].insert(0, {"cell_type": "markdown", "id": "new", "metadata": {}, "source": "# News"})
        notebook["cells"][-1]["outputs"] = [{"output_type": "stream", "name": "stdout", "text": "old"}]
        notebook["metadata"]["other"] = 1
        path.write_text(json.dumps(notebook))
    capsys.readouterr()

    assert main(["--resume", "last", "--dry-run"]) == 0
    planned = capsys.readouterr().out
    assert main(["--resume", "last"]) == 0

    said = capsys.readouterr().out
    assert "a: run again, because its code changed" in planned
    assert "a: run again, because its code changed" in said
    assert "1 of 2 jobs had finished and will not be run again" in said
    assert starts(project) == {"a": 2, "b": 1}
    attempts = json.loads((run_folder_of(project) / "results.json").read_text())["jobs"][0]["attempts"]
    assert [(each["status"], each["files"]["log"]) for each in attempts] == [("ok", "a.attempt1.log")]
    assert (run_folder_of(project) / "a.attempt1.ipynb").is_file()


@pytest.mark.long
def test_other_packages_of_the_users_own_run_a_kernels_notebooks_again(
    project: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those of that kernel alone; the same packages in a new overlay change nothing."""
    spec = {"argv": [sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"], "display_name": "torch"}
    folder = project / "jupyter/kernels/torch"
    folder.mkdir(parents=True)
    text = json.dumps({**spec, "language": "python", "metadata": {"rocmlab": {"framework": "torch"}}})
    (folder / "kernel.json").write_text(text)
    notebook = json.loads((project / "notebooks/a.ipynb").read_text())
    notebook["metadata"]["kernelspec"] = {"name": "torch", "display_name": "torch", "language": "python"}
    (project / "notebooks/a.ipynb").write_text(json.dumps(notebook))
    wheel(project, "mine", "1.0", {"mine.py": ""})
    kernels = f"{project}/jupyter{os.pathsep}{os.environ['JUPYTER_PATH']}"
    values = {"JUPYTER_PATH": kernels, "ROCMLAB_SHARE": str(project / "share"), installing.UV: sys.prefix}
    values |= {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(project), "PIP_CONFIG_FILE": os.devnull}
    for name, value in values.items():
        monkeypatch.setenv(name, value)
    place = Place(project / "share", "torch", sys.executable)
    assert main(["a", "b", "--gpus", "none"]) == 0

    installing.add(place, [Requirement("mine")], print)
    capsys.readouterr()
    assert main(["--resume", "last", "--dry-run"]) == 0

    assert "a: run again, because its packages changed" in capsys.readouterr().out
    resumed(capsys)
    assert starts(project) == {"a": 2, "b": 1}
    installing.sync(place, print)
    resumed(capsys)
    assert starts(project) == {"a": 2, "b": 1}


def test_a_notebook_that_is_gone_keeps_its_result(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What ran has run; that it cannot be checked any more is said."""
    assert main(["a", "b", "--gpus", "none"]) == 0
    (project / "notebooks/a.ipynb").unlink()

    done = resumed(capsys)

    assert [job["status"] for job in done["jobs"]] == ["ok", "ok"]
    assert starts(project) == {"a": 1, "b": 1}


@pytest.mark.parametrize("extra", [["a"], ["-p", "x=1"], ["--gpus", "none"], ["--retries", "3"], ["--list"]])
def test_extra_words_are_refused(extra: list[str], project: Path) -> None:
    """A run of two sets of options would be no run."""
    with pytest.raises(RocmlabError) as caught:
        main(["--resume", "last", *extra])

    assert "--resume with" in caught.value.problem.what
    assert caught.value.problem.why
    assert caught.value.exit_code == 2


@pytest.mark.parametrize("which", ["last", "nothing", "share/runs/x"])
def test_a_run_that_is_not_there_is_an_error(which: str, project: Path) -> None:
    """And so is a folder without a journal."""
    (project / "share/runs/x").mkdir(parents=True)

    with pytest.raises(RocmlabError, match=f"--resume {which}: (no run|run not) found"):
        main(["--resume", which])


@pytest.mark.parametrize("content", ["", "{", '{"event": "run started", "time": "x", "jobs": ["a"]}\n', "[]\n\xff\n"])
def test_a_journal_that_says_nothing_is_an_error(content: str, project: Path) -> None:
    """An old or damaged journal cannot be continued, and that is said."""
    folder = project / "share/runs/20261121T000000Z-x"
    folder.mkdir(parents=True)
    (folder / "journal.jsonl").write_text(content)

    with pytest.raises(RocmlabError, match="cannot be continued"):
        main(["--resume", folder.name])


def test_a_run_that_is_still_going_is_left_alone(project: Path) -> None:
    """The lock is the kernel's: who holds it is told, and afterwards the run can be continued."""
    assert main(["a", "--gpus", "none"]) == 0
    with (run_folder_of(project) / "journal.jsonl").open("rb") as journal:
        fcntl.flock(journal, fcntl.LOCK_EX)

        with pytest.raises(RocmlabError) as caught:
            main(["--resume", "last"])

    assert "is still running" in caught.value.problem.what
    assert f"process {os.getpid()} on " in caught.value.problem.why
    assert main(["--resume", "last"]) == 0
    assert starts(project) == {"a": 1}


def key_of(path: Path, **fields: object) -> str:
    """Return the key of a notebook's job."""
    (job,) = jobs_of([Request(str(path), str(path), **fields)])
    assert job.problem is None
    return job.key


def test_the_key_tells_what_decides_a_result(tmp_path: Path) -> None:
    """Code, its tags, parameters, GPUs and inputs force another run; the name and place of the file do not."""
    declared = notebook_files.PARAMETERS + "x = 1"
    inputs = {"inputs": ["data/*.csv", "missing.txt"]}
    path = notebook_files.write(tmp_path / "a.ipynb", declared, "print(x)", rocmlab=inputs)
    (tmp_path / "data").mkdir()
    (tmp_path / "data/x.csv").write_text("1")
    first = key_of(path)

    moved = tmp_path / "b.ipynb"
    shutil.copy(path, moved)
    same = [key_of(path), key_of(moved), key_of(path, timeout_seconds=5, vram_bytes=10**9)]
    changed = {"parameters": key_of(path, parameters={"x": 2}), "gpus": key_of(path, gpus=2)}
    (tmp_path / "data/x.csv").write_text("2")
    changed["inputs"] = key_of(path)
    (tmp_path / "data/x.csv").write_text("1")
    (tmp_path / "missing.txt").touch()
    appeared = key_of(path)
    (tmp_path / "missing.txt").unlink()
    notebook_files.write(path, "x = 1", "print(x)", rocmlab=inputs)
    changed["code"] = key_of(path)

    assert same == [first] * 3
    assert {part: keys.changes(first, key) for part, key in changed.items()} == {part: part for part in changed}
    assert keys.changes(first, appeared) == "inputs"


def test_what_is_executed_and_in_which_environment_is_in_the_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A cell tagged to be skipped or to fail, another Keras backend and another preloaded module count; a title not."""
    monkeypatch.setenv("JUPYTER_PATH", str(tmp_path))
    notebook_files.write_kernel(tmp_path / "kernels/test-kernel", sys.executable)
    spec_path = tmp_path / "kernels/test-kernel/kernel.json"
    spec = json.loads(spec_path.read_text())
    path = notebook_files.write(tmp_path / "a.ipynb", "x = 1")
    notebook = json.loads(path.read_text())
    first = key_of(path)
    changed: dict[str, str] = {}

    for tag in ("skip-execution", "raises-exception", "pretty"):
        notebook["cells"][0]["metadata"]["tags"] = [tag]
        path.write_text(json.dumps(notebook))
        changed[tag] = keys.changes(first, key_of(path))
    for name, value in (
        ("env", {"KERAS_BACKEND": "torch"}),
        ("metadata", {"rocmlab": {"preload": ["jax"]}}),
        ("display_name", "Another"),
    ):
        spec_path.write_text(json.dumps({**spec, name: value}))
        changed[name] = keys.changes(first, key_of(path))

    unchanged = {"pretty": "key", "display_name": "key"}  # no part differs
    assert changed == {
        "skip-execution": "code",
        "raises-exception": "code",
        "env": "kernel",
        "metadata": "kernel",
        **unchanged,
    }


def test_a_large_input_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Beyond the limit size and time of change stand for the content."""
    monkeypatch.setattr(keys, "MAX_HASHED_BYTES", 3)
    path = tmp_path / "x.bin"
    path.write_text("1234")

    first = keys.Inputs().digest(path)
    os.utime(path, ns=(1, 1))

    assert "4 bytes" in first
    assert keys.Inputs().digest(path) != first


def test_what_the_journal_keeps_of_a_job_comes_back(run_folder: RunFolder) -> None:
    """Infinity and NaN, for which strict JSON has no word, and what was asked on the command line."""
    request = Request("a", "/a.ipynb", {"x": math.inf, "y": [math.nan, 1]}, "n", "k", "all", 10**9, True, 5.0)
    job = Job("n", "/a.ipynb", request.parameters, request=request)
    run_folder.log("run started", jobs=[resume.described(job)], options={})

    session = resume.read(run_folder)

    entry = session.entries["n"]
    assert entry.request.parameters["x"] == math.inf
    assert math.isnan(entry.request.parameters["y"][0])
    assert {**vars(entry.request), "parameters": None} == {**vars(request), "parameters": None}


def test_two_that_resume_at_once_do_not_both_go_on(project: Path) -> None:
    """One continues the run, the other is told who does."""
    waits = "import time, pathlib\nwhile not pathlib.Path('go').exists(): time.sleep(0.05)"
    notebook_files.write(project / "notebooks/waits.ipynb", waits)
    assert main(["a", "waits", "--gpus", "none", "--cell-timeout", "1"]) == 1
    command = [sys.executable, "-m", "rocmlab", "run", "--resume", "last"]
    environment = {**os.environ, "ROCMLAB_RUNTIME": "native"}

    processes = [
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)
        for _ in range(2)
    ]
    ends = [(*process.communicate(timeout=60), process.returncode) for process in processes]

    assert sorted(code for _, _, code in ends) == [1, 2]
    refused = next(error for _, error, code in ends if code == 2)
    assert "is still running" in refused
    assert starts(project) == {"a": 1}


def wait_for(path: Path, word: str, seconds: float = 60) -> None:
    """Wait until a file has a word."""
    end = time.monotonic() + seconds
    while word not in path.read_text():
        assert time.monotonic() < end, f"{word} never came"
        time.sleep(0.02)


@pytest.mark.long
@pytest.mark.parametrize("moment", ["d start", "b start"])
def test_after_a_kill_nothing_is_lost_and_nothing_done_twice(
    moment: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """`kill -9` in the middle of a real run, then `--resume last`: what the journal calls ok runs no second time."""
    notes = tmp_path / "notes"
    notes.touch()
    for name in "abcdef":
        cells = [COUNT.format(path=str(notes), name=name, word=word) for word in ("start", "end")]
        notebook_files.write(tmp_path / f"notebooks/{name}.ipynb", cells[0], "import time\ntime.sleep(0.3)", cells[1])
    monkeypatch.chdir(tmp_path)
    command = [sys.executable, "-m", "rocmlab", "run", "--gpus", "none"]
    with subprocess.Popen(
        command, env={**os.environ, "ROCMLAB_RUNTIME": "native"}, stderr=subprocess.DEVNULL, start_new_session=True
    ) as runner:
        wait_for(notes, moment)
        runner.kill()
    folder = run_folder_of(tmp_path)
    finished = [
        event["job"]
        for event in RunFolder(folder).journal()
        if event["event"] == "job finished" and event["result"]["status"] == "ok"
    ]

    done = resumed(capsys)

    counts = starts(tmp_path)
    began = Counter(line.split()[0] for line in notes.read_text().splitlines() if line.endswith("start"))
    assert all(began[name] == 1 for name in finished), (finished, counts)
    assert set(began) == set("abcdef")
    assert [job["status"] for job in done["jobs"]] == ["ok"] * 6
    interrupted = next(job for job in done["jobs"] if job["name"] == moment[0])
    assert [each["status"] for each in interrupted["attempts"]] == ["killed"]
    assert "runner was ended" in interrupted["attempts"][0]["message"]
    with contextlib.suppress(ProcessLookupError):
        os.killpg(runner.pid, signal.SIGKILL)
