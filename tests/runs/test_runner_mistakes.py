"""What a user gets wrong on the command line or in a list is told once, in three lines, and leaves nothing behind."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import subprocess
import sys
from pathlib import Path

import notebook_files
import pytest

from rocmlab.base.errors import RocmlabError
from rocmlab.cli import main as cli
from rocmlab.runs import folder as folders
from rocmlab.runs.command import main
from rocmlab.runs.folder import RunFolder

DECLARED = notebook_files.PARAMETERS + "lr: float = 1.0"


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project with one good notebook, as the current folder, inside the lab."""
    notebook_files.write(tmp_path / "notebooks/train.ipynb", DECLARED, "print(lr)")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ROCMLAB_RUNTIME", "native")
    return tmp_path


def refused(*arguments: str) -> RocmlabError:
    """Return the error with which the words are rejected."""
    with pytest.raises(RocmlabError) as caught:
        main(list(arguments))
    assert caught.value.exit_code == 2
    assert caught.value.problem.what
    assert caught.value.problem.why
    assert caught.value.problem.fix
    return caught.value


@pytest.mark.parametrize(
    ("arguments", "what", "fix"),
    [
        (["--timeout", "soon"], "--timeout = 'soon'", "above 0"),
        (["--timeout", "0"], "--timeout = '0'", "above 0"),
        (["--cell-timeout", "inf"], "--cell-timeout = 'inf'", "above 0"),
        (["--cell-timeout", "nan"], "--cell-timeout = 'nan'", "above 0"),
        (["--timeout"], "--timeout has no value", "--help"),
        (["-p", "epochs"], "-p epochs is not NAME=VALUE", "-p epochs=2"),
        (["-p", "=2"], "-p =2 is not NAME=VALUE", "-p epochs=2"),
        (["-p", "learning rate=2"], "-p learning rate=2 is not NAME=VALUE", "-p learning_rate=2"),
        (["-p", "lr=[1"], "-p lr=[1 cannot be read", "quote it"),
        (["--gpus", "99"], "--gpus 99 asks for 99 GPUs", "--gpus none"),
        (["--gpus", "1"], "--gpus 1 asks for 1 GPU", "--gpus none"),
        (["--gpus", "first"], "first", "use `all`, `none`"),
        (["--job-gpus", "many"], "--job-gpus = 'many'", '"all" or a number'),
        (["--vram", "24"], "--vram = '24'", '"24 GB"'),
        (["--vram", "much"], "--vram = 'much'", '"24 GB"'),
        (["--retries", "-1"], "--retries = '-1'", "--retries 2"),
        (["--engine", "nbclient"], "--engine = 'nbclient'", "--engine rocmlab"),
        (["--warm", "hot"], "--warm = 'hot'", "--warm auto"),
        (["--retrys", "2"], "--retrys is not an option", "--retries?"),
        (["--sandwich"], "--sandwich is not an option", "--help"),
    ],
)
def test_a_wrong_word_is_told_in_three_lines(
    arguments: list[str], what: str, fix: str, project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """What, why and fix, and no page of usage."""
    code = cli(["run", *arguments, "--share", "results"])

    printed, said = capsys.readouterr()
    first, *rest = [line for line in said.splitlines() if not line.startswith("preparing ")]
    assert code == 2
    assert printed == ""
    assert what in first
    assert first.startswith("error: ")
    assert [line.split(":")[0] for line in rest if line.startswith("  ") and line[2] != " "] == ["  why", "  fix"]
    assert fix in said.partition("fix: ")[2]
    assert "usage" not in said
    assert not (project / "results").exists()


@pytest.mark.parametrize(
    ("name", "content", "what", "fix"),
    [
        ("a.csv", "", "lists no job", "notebook\n01_mnist_fc"),
        ("a.csv", "notebook,lr\n", "lists no job", "add a line: 01_mnist_fc"),
        ("a.yaml", "", "lists no job", "- notebook: 01_mnist_fc"),
        ("a.yaml", "jobs: []\n", "lists no job", "- notebook: 01_mnist_fc"),
        ("a.csv", "notebook;lr\ntrain;0,5\n", "separated by semicolons", "with commas"),
        ("a.csv", "notebook\tlr\ntrain\t5\n", "separated by tabs", "with commas"),
        ("a.csv", "notebook,lr\ntrain,a: b: c\n", "lr cannot be read", "'text: and a colon'"),
        ("a.csv", "notebook,vram\ntrain,24\n", "vram = '24'", '"24 GB"'),
        ("a.yaml", "- notebook: train\n  vram: 24\n", "vram = 24", '"24 GB"'),
        ("a.yaml", "- notebook: train\n  vram: 24.5\n", "vram = 24.5", '"24.5 GB"'),
    ],
)
def test_a_mistake_in_a_list_is_mended_in_the_list(name: str, content: str, what: str, fix: str, project: Path) -> None:
    """The fix is what to write there: YAML in YAML, CSV in CSV, and never an option of the command."""
    (project / name).write_text(content)

    problem = refused(name).problem

    assert what in problem.what
    assert fix in problem.fix
    assert not problem.fix.startswith("-")


@pytest.mark.parametrize(
    ("name", "content", "fix"),
    [
        ("a.yaml", "- {notebook: train, parameters: {lr: fast}}\n", "parameters: {lr: 1.0}"),
        ("a.csv", "notebook,lr\ntrain,fast\n", "write 1.0 in the column lr"),
        (None, "", "-p lr=1.0"),
    ],
)
def test_a_value_of_the_wrong_type_is_mended_where_it_stands(
    name: str | None, content: str, fix: str, project: Path
) -> None:
    """Also after the list was read."""
    if name:
        (project / name).write_text(content)

    problem = refused(*([name] if name else ["train", "-p", "lr=fast"]), "--gpus", "none").problem

    assert problem.what == "train: lr=fast is not of type float"
    assert problem.fix == fix


def test_a_folder_that_is_called_like_a_list_is_none(project: Path) -> None:
    """A folder of lists is none either, and what is in it is named."""
    (project / "night.yaml").mkdir()
    (project / "lists").mkdir()
    (project / "lists/tonight.csv").write_text("notebook\ntrain\n")

    assert refused("night.yaml").problem.what == "night.yaml is a folder, not a job list"
    folder = refused("lists").problem
    assert folder.what == "no notebook found in lists"
    assert folder.fix == "rocmlab run lists/tonight.csv"


@pytest.mark.parametrize(
    ("cells", "metadata", "arguments", "said"),
    [
        (["1"], {"kernel": "julia-9"}, [], ["bad: its kernel 'julia-9' is not installed"]),
        (["1"], {"rocmlab": {"gpus": 1}}, [], ["bad: it asks for 1 GPU", "this run has none"]),
        (["1"], {"rocmlab": {"vram": 24}}, [], ['write "24 GB"']),
        (["1"], {}, ["-p", "lr=1"], ["bad: it has no parameter lr"]),
        (["1"], {}, ["-p", "lr=1,2,3,4,5"], ["bad-lr=1, bad-lr=2, bad-lr=3 and 2 more: it has no parameter lr"]),
    ],
)
def test_a_run_of_which_no_job_can_start_leaves_no_folder(
    cells: list[str],
    metadata: dict,
    arguments: list[str],
    said: list[str],
    project: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Exit code 2 and the reason, once."""
    notebook_files.write(project / "notebooks/bad.ipynb", *cells, **metadata)

    code = cli(["run", "bad", "--gpus", "none", *arguments])

    error = capsys.readouterr().err
    assert code == 2
    assert [error.count(each) for each in said] == [1] * len(said)
    assert not (project / "share").exists()


@pytest.mark.long
@pytest.mark.slow
def test_several_reasons_are_each_said_once(project: Path) -> None:
    """With those whom they concern, and a good notebook next to them makes it a run."""
    notebook_files.write(project / "notebooks/a.ipynb", "1", kernel="julia-9")
    notebook_files.write(project / "notebooks/b.ipynb", "1", kernel="julia-9")
    (project / "notebooks/c.ipynb").write_text("no notebook")

    problem = refused("a", "b", "c", "missing", "--gpus", "none").problem

    assert problem.what == "none of these 4 jobs can run"
    assert "a, b: its kernel 'julia-9' is not installed" in problem.why
    assert problem.why.count("julia-9") == 1
    assert "c: c.ipynb is not a notebook" in problem.why
    assert "\nno such notebook: missing" in problem.why
    assert not (project / "share").exists()
    assert main(["a", "train", "--gpus", "none"]) == 1
    assert len(list((project / "share/runs").iterdir())) == 1


@pytest.mark.long
@pytest.mark.slow
def test_last_is_never_a_run_that_did_not_begin(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Neither to list, to continue nor to compare with."""
    assert main(["train", "--gpus", "none"]) == 0
    runs = project / "share/runs"
    (good,) = runs.iterdir()
    for name, journal in (("20990101T000000Z-stub", ""), ("20990102T000000Z-torn", '{"event": "run sta')):
        (runs / name).mkdir()
        (runs / name / "journal.jsonl").write_text(journal)
    nothing = json.loads((good / "results.json").read_text())
    nothing["jobs"][0] |= {"status": "not run", "exit_code": 2}
    (runs / "20990103T000000Z-nothing").mkdir()
    (runs / "20990103T000000Z-nothing/results.json").write_text(json.dumps(nothing))
    capsys.readouterr()

    assert main(["--list", "--json"]) == 0
    listed = json.loads(capsys.readouterr().out)
    assert main(["--resume", "last", "--json"]) == 0
    resumed = json.loads(capsys.readouterr().out)
    assert main(["train", "--gpus", "none", "--compare", "last", "--json"]) == 0
    compared = json.loads(capsys.readouterr().out)

    assert [run["name"] for run in listed] == [good.name]
    assert resumed["run"]["name"] == good.name
    assert compared["comparison"]["folder"] == str(good)


def test_a_folder_in_which_no_journal_can_be_begun_is_removed(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A disk that is full when the run begins leaves no stub."""

    def full(*_: object, **__: object) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(folders.os, "fsync", full)
    monkeypatch.setattr(RunFolder, "log", lambda self, *_, **__: full())

    assert "No space left" in refused("train", "--gpus", "none").problem.why
    assert list((project / "share/runs").iterdir()) == []


@pytest.mark.parametrize("is_terminal", [True, False])
def test_something_is_shown_before_the_run_begins(is_terminal: bool, project: Path) -> None:
    """The first words come before notebooks, kernels and devices are looked at; a terminal shows them for that long."""
    program = (
        "import sys\n"
        "from rocmlab.runs import command\nfrom rocmlab.runs.spec import preflight\n"
        "def halt(requests): sys.stdin.read(); raise SystemExit(3)\n"
        "preflight.jobs_of = halt\n"
        "command.main(['train', '--gpus', 'none'])\n"
    )
    reader, writer = os.pipe() if not is_terminal else pty.openpty()
    with subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stderr=writer, env={**os.environ, "TERM": "xterm"}
    ) as process:
        said = b""
        while b"preparing train" not in said:
            said += os.read(reader, 4096)
        assert process.poll() is None  # it still looks at them
        assert process.stdin is not None
        process.stdin.close()
        process.wait(60)
    os.close(writer)
    with contextlib.suppress(OSError):
        while more := os.read(reader, 4096):
            said += more
    os.close(reader)

    assert said.endswith(b"\r\x1b[2K" if is_terminal else b"devices\n")
