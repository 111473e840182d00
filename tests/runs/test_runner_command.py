"""`rocmlab run` as a user types it."""

from __future__ import annotations

import io
import json
import re
from pathlib import Path

import notebook_files
import pytest
from rich.console import Console

from rocmlab.base.errors import RocmlabError
from rocmlab.devices import Device
from rocmlab.runs.command import main
from rocmlab.runs.jobs import Job, Result
from rocmlab.runs.scheduling.place import Place
from rocmlab.runs.screen import progress
from rocmlab.simulation import write_host

pytestmark = pytest.mark.slow

TRAIN = (
    notebook_files.PARAMETERS + "epochs: int = 1  # how often",
    "# Train\nprint(epochs)",
    "import rocmlab\nrocmlab.record(accuracy=0.98765, epochs=epochs)",
)


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project with one good notebook, as the current folder."""
    notebook_files.write(tmp_path / "notebooks/train.ipynb", *TRAIN)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_run_reads_well_and_exits_by_its_outcome(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Progress goes to stderr, the summary to stdout, and a name that does not exist fails the run, not the others."""
    code = main(["train", "trian", "-p", "epochs=3", "--gpus", "none", "--share", "results", "--name", "my night"])

    output, progress_lines = capsys.readouterr()
    run = next((project / "results/runs").iterdir())
    assert code == 1
    assert run.name.endswith("Z-my_night")
    assert "accuracy 0.9877" in output
    assert "no such notebook: trian" in output
    assert "available in notebooks: train.ipynb" in output
    assert "1 ok, 1 not run" in output
    assert f"results/runs/{run.name}" in output
    assert "train  started on CPU" in progress_lines
    assert "✓ train  ok in" in progress_lines
    assert "\x1b" not in output + progress_lines


def test_json_is_all_there_is_on_stdout(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What is printed is what is in results.json."""
    code = main(["-p", "epochs=2", "--gpus", "none", "--json"])

    printed = json.loads(capsys.readouterr().out)
    job = printed["jobs"][0]
    assert code == 0
    assert printed["run"]["status"] == "ok"
    assert (job["status"], job["parameters"]) == ("ok", {"epochs": 2})
    assert job["recorded"] == {"accuracy": 0.98765, "epochs": 2}
    assert job["devices"][0]["backend"] == "cpu"
    assert printed == json.loads((Path(printed["run"]["folder"]) / "results.json").read_text())
    assert Path(printed["run"]["folder"]).parent == project / "share/runs"


def test_a_dry_run_prints_the_plan_and_runs_nothing(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Problems are known before the night, and the exit code tells of them."""
    assert main(["--dry-run", "-p", "epochs=2", "--gpus", "none"]) == 0
    assert "epochs=2" in capsys.readouterr().out

    assert main(["--dry-run", "-p", "epoch=2", "--gpus", "none"]) == 1
    assert "it has these: epochs=1" in capsys.readouterr().out

    assert main(["--dry-run", "--json", "--gpus", "none"]) == 0
    assert json.loads(capsys.readouterr().out)["jobs"][0]["gpus"] == 0
    assert not (project / "share").exists()


@pytest.mark.parametrize("arguments", [["nothing"], ["a*", "b/c.ipynb"], ["-p", "epochs"]])
def test_nothing_to_run_is_a_usage_error(project: Path, arguments: list[str]) -> None:
    """Exit code 2, and no run folder."""
    with pytest.raises(RocmlabError) as caught:
        main(arguments)

    assert caught.value.exit_code == 2
    assert not (project / "share").exists()


def test_an_empty_folder_is_a_usage_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error names the folder that was looked at."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ROCMLAB_NOTEBOOKS", str(tmp_path / "work"))

    with pytest.raises(RocmlabError) as caught:
        main([])

    assert str(tmp_path / "work") in caught.value.problem.why


def test_a_part_of_a_second_is_a_limit_for_a_cell(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It is not rounded."""
    notebook_files.write(project / "notebooks/waits.ipynb", "import time; time.sleep(600)")

    code = main(["waits", "--gpus", "none", "--cell-timeout", "0.5", "--json"])

    assert code == 1
    assert "longer than 0.5 s" in json.loads(capsys.readouterr().out)["jobs"][0]["error"]["value"]


@pytest.mark.long
def test_a_run_inside_a_job_does_not_wait_for_the_gpu_of_that_job(
    project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The GPU is leased to the outer job until its end; a run on the CPU, and a look at the plan, go ahead."""
    monkeypatch.setenv("ROCMLAB_ROOT", str(write_host(tmp_path / "host", gpus=1)))
    monkeypatch.setenv("ROCMLAB_RUNTIME", "native")
    outer = (
        "import subprocess, sys\n"
        "command = [sys.executable, '-m', 'rocmlab', 'run', 'train', '--share', 'inner']\n"
        "for words in (['--dry-run'], ['--gpus', 'none'], []):\n"
        "    ended = subprocess.run(command + words, capture_output=True, text=True, cwd='..')\n"
        "    print('exit code', ended.returncode)\n"
        "print(ended.stderr)\n"
    )
    path = notebook_files.write(project / "notebooks/outer.ipynb", outer)

    assert main([str(path), "--gpus", "1", "--timeout", "120"]) == 0

    (folder,) = (project / "share/runs").iterdir()
    said = (folder / "outer.log").read_text()
    assert re.findall("exit code (.)", said) == ["0", "0", "2"]
    assert "this runs inside a job of another run" in said
    assert "--gpus none" in said
    assert len(list((project / "inner/runs").iterdir())) == 1


def play(view: progress.Live | progress.Plain, cpu: Device) -> str:
    """Show a job that is in its second cell, and one that has ended; return what the view draws meanwhile."""
    with view:
        for name in ("train", "other"):
            view.started(Job(name, name), Place((cpu,), 1))
        cell = {"event": "cell", "index": 3, "number": 2, "total": 5, "title": "Train [bold]for long"}
        view.event(Job("train", "train"), cell)
        view.finished(
            Result("other", "other", {}, "k", "failed", 1, error={"name": "E", "value": "no [red]luck\nmore"})
        )
        console = Console(file=io.StringIO(), width=100)
        if isinstance(view, progress.Live):
            console.print(view._render())
    return console.file.getvalue()


def test_a_terminal_shows_each_running_notebook_and_a_bar(cpu: Device) -> None:
    """Cell, title and elapsed time are on one line, and words of a notebook are never taken for markup."""
    console = Console(file=io.StringIO(), force_terminal=True, width=100, _environ={"TERM": "xterm"})

    view = progress.display(console, 2)
    drawn = play(view, cpu)

    assert isinstance(view, progress.Live)
    line = next(line for line in drawn.splitlines() if "train" in line)
    assert "CPU  cell 2/5  Train [bold]for long" in line
    assert line.rstrip().endswith("0:00")
    assert "1 of 2 jobs done, 1 failed" in drawn
    assert "✗ " in console.file.getvalue()


def test_a_log_gets_plain_lines(cpu: Device) -> None:
    """One line for each start, cell and end, without colours."""
    console = Console(file=io.StringIO(), width=100)

    view = progress.display(console, 2)
    play(view, cpu)

    assert isinstance(view, progress.Plain)
    lines = [line.split(None, 1)[1] for line in console.file.getvalue().splitlines()]
    assert lines == [
        "train  started on CPU",
        "other  started on CPU",
        "train  cell 2/5  Train [bold]for long",
        "✗ other  failed  E: no [red]luck",
    ]


def test_a_silent_notebook_is_mentioned_again(cpu: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    """A log shows that a long cell still runs."""
    monkeypatch.setattr(progress, "PLAIN_EVERY_SECONDS", 0.5)
    monkeypatch.setattr(progress, "PLAIN_TICK_SECONDS", 0.1)
    console = Console(file=io.StringIO(), width=100)

    with progress.Plain(console, 1) as view:
        view.started(Job("train", "train"), Place((cpu,), 1))
        view.event(Job("train", "train"), {"event": "cell", "index": 0, "number": 1, "total": 1, "title": "Train"})
        view._over.wait(1.3)

    assert "train  cell 1/1  Train  (running for" in console.file.getvalue()
