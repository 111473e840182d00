"""`--compare`: which jobs belong together, what has changed, and what is not a run with results."""

from __future__ import annotations

import io
import json
import os
from pathlib import Path

import jsonschema
import notebook_files
import pytest
import run_results
from rich.console import Console

from rocmlab.base.errors import RocmlabError
from rocmlab.reports import compare, page
from rocmlab.runs.command import main
from rocmlab.runs.outcome import report
from rocmlab.runs.screen import summary
from rocmlab.runs.spec.parameters import defaults


def save(runs: Path, name: str, *jobs: dict) -> Path:
    """Write an earlier run."""
    (runs / name).mkdir(parents=True)
    path = runs / name / "results.json"
    path.write_text(json.dumps(run_results.results(*jobs, name=name)))
    return path


def compared(then: list[dict], now: list[dict]) -> dict:
    """Return the comparison of two lists of jobs."""
    return compare.compare(now, {**run_results.results(*then), "folder": "/share/runs/then"})


def test_jobs_are_matched_by_notebook_and_parameters() -> None:
    """Not by name, not by place; by the file's name where the folder differs, as in a container."""
    then = [
        run_results.job("a", notebook="/a/work/a.ipynb", parameters={"lr": 0.1, "seed": 1}, recorded={"loss": 1.0}),
        run_results.job("a-2", notebook="/a/work/a.ipynb", parameters={"lr": 0.2, "seed": 1}, recorded={"loss": 2.0}),
        run_results.job("b", notebook="/a/work/b.ipynb", recorded={"loss": 3.0}),
        run_results.job("gone", notebook="/a/work/gone.ipynb"),
    ]
    now = [
        run_results.job("b", notebook="/home/jovyan/work/b.ipynb", recorded={"loss": 3.5}),
        run_results.job("a", notebook="/a/work/a.ipynb", parameters={"seed": 1, "lr": 0.2}, recorded={"loss": 2.5}),
        run_results.job("a-2", notebook="/a/work/a.ipynb", parameters={"seed": 2, "lr": 0.2}),
    ]

    found = compared(then, now)

    assert [job["outcome"] for job in found["jobs"]] == ["same", "same", "new"]
    assert [job["metrics"] for job in found["jobs"]] == [{"loss": [3.0, 3.5]}, {"loss": [2.0, 2.5]}, {}]
    assert [job["name"] for job in found["gone"]] == ["a", "gone"]


def test_a_default_that_is_given_is_the_same_job() -> None:
    """What a notebook ran with counts, and not who said it; a default that has changed makes it another job."""
    then = [
        run_results.job("a", notebook="/a.ipynb", defaults={"lr": 0.01, "n": 1}, recorded={"loss": 1.0, "lr": 0.01}),
        run_results.job("b", notebook="/b.ipynb", defaults={"lr": 0.01}),
    ]
    now = [
        run_results.job("a-2", notebook="/a.ipynb", parameters={"lr": 0.1}, defaults={"n": 1}),
        run_results.job("a", notebook="/a.ipynb", parameters={"lr": 1e-2, "n": 1.0}, recorded={"loss": 2, "lr": 0.01}),
        run_results.job("b", notebook="/b.ipynb", defaults={"lr": 0.5}),
    ]

    found = compared(then, now)

    assert [job["outcome"] for job in found["jobs"]] == ["new", "same", "new"]
    assert found["jobs"][1]["metrics"] == {"loss": [1.0, 2]}
    assert [job["name"] for job in found["gone"]] == ["b"]


def test_the_defaults_of_a_notebook_are_its_plain_values() -> None:
    """What is computed is not guessed, and a cell that is not Python costs nothing."""

    def values(source: str, language: str = "python") -> dict:
        cells = [{"source": "lr = 9", "metadata": {}}, {"source": source, "metadata": {"tags": ["parameters"]}}]
        return defaults({"cells": cells}, language)

    source = "%matplotlib inline\nlr: float = 1e-2  # rate\nn = m = -3\nx = [1, 'a']\ny = 2 * n\nn = len(x)\nz: int\n"
    assert values(source) == {"lr": 0.01, "m": -3, "x": [1, "a"]}
    assert values("lr = (") == values("lr <- 3", "R") == values("raw = b'bytes'") == {}
    assert defaults({"cells": []}, "python") == {}


def test_the_same_notebook_twice_is_matched_in_order() -> None:
    """No job of the earlier run is used twice."""
    then = [run_results.job(f"a-{n}", notebook="/a.ipynb", seconds=float(n)) for n in (1, 2)]
    now = [run_results.job(f"a-{n}", notebook="/a.ipynb", seconds=n * 10.0) for n in (1, 2, 3)]

    found = compared(then, now)

    assert [job["seconds"] for job in found["jobs"]] == [[1.0, 10.0], [2.0, 20.0], [None, 30.0]]


@pytest.mark.parametrize(
    ("then", "now", "outcome", "seconds"),
    [
        ("ok", "ok", "same", [10.0, 8.0]),
        ("ok", "failed", "broken", [10.0, None]),
        ("kernel died", "ok", "mended", [None, 8.0]),
        ("failed", "timeout", "other", [None, None]),
    ],
)
def test_outcomes_and_times_are_compared(then: str, now: str, outcome: str, seconds: list) -> None:
    """The time of a job that did not complete is compared with nothing."""
    found = compared([run_results.job("a", then, seconds=10.0)], [run_results.job("a", now, seconds=8.0)])

    assert found["jobs"][0]["outcome"] == outcome
    assert found["jobs"][0]["statuses"] == [then, now]
    assert found["jobs"][0]["seconds"] == seconds


def test_another_device_is_said() -> None:
    """A card of the same kind is the same; the CPU is not."""
    then = [run_results.job("a"), run_results.job("b")]
    now = [
        run_results.job("a", devices=[{**run_results.GPU, "index": 1, "pci_address": "0000:04:00.0"}]),
        run_results.job("b", devices=[run_results.CPU]),
    ]

    rows = page.rows_of(compared(then, now))

    assert [row["note"] for row in rows] == ["", "another device"]


def test_changes_read_well() -> None:
    """Times and numbers with their difference in percent; what stands still is omitted."""
    then = [run_results.job("a", seconds=10.0, recorded={"loss": 0.5, "same": 1, "zero": 0, "old": 4})]
    now = [run_results.job("a", seconds=12.5, recorded={"loss": 0.4, "same": 1, "zero": 3, "new": 5})]

    (row,) = page.rows_of(compared(then, now))

    assert row["time"] == "10.0 s → 12.5 s (+25.0 %)"
    assert row["metrics"] == {"loss": "0.5 → 0.4 (-20.0 %)", "zero": "0 → 3 (+3)", "new": "now 5", "old": "was 4"}


def test_a_comparison_is_in_the_report_and_fits_the_schema(tmp_path: Path) -> None:
    """The section names the run, marks a simulated one, and counts what has changed."""
    then = [run_results.job("a", simulated=True), run_results.job("gone<b>")]
    results = run_results.results(run_results.job("a", "failed"))
    results["comparison"] = compared(then, results["jobs"])

    report.write(results, tmp_path)

    text = (tmp_path / "report.html").read_text(encoding="utf-8")
    jsonschema.Draft202012Validator(run_results.schema()).validate(results)
    assert "Compared with 20261121T024751Z-night <span" in text
    assert "1 broken, 1 gone" in text
    assert "Not in this run: gone&lt;b&gt;" in text
    assert "ok → failed" in text


def test_the_last_run_is_the_newest_that_ended(tmp_path: Path) -> None:
    """By the time in the name, then by the file's; a run that left no results is skipped."""
    for name, age in (("20261119T000000Z-z", 9), ("20261120T000000Z-b", 2), ("20261120T000000Z-a", 1)):
        path = save(tmp_path, name, run_results.job("a"))
        os.utime(path, (1_000_000 - age, 1_000_000 - age))
    (tmp_path / "20261121T000000Z-crashed").mkdir()

    found = compare.load("last", tmp_path)

    assert found["run"]["name"] == "20261120T000000Z-a"


def test_a_run_is_named_by_folder_file_or_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever of it can be pasted."""
    path = save(tmp_path / "runs", "20261119T000000Z-a", run_results.job("a"))
    monkeypatch.chdir(tmp_path)

    found = [
        compare.load(which, tmp_path / "runs")["folder"]
        for which in ("20261119T000000Z-a", "runs/20261119T000000Z-a/", str(path.parent), str(path))
    ]

    assert set(found) == {str(path.parent)}


def damaged() -> dict[str, str]:
    """Return contents that are not the results of a run, by what is wrong with them."""
    good = run_results.results(run_results.job("a"))
    job = good["jobs"][0]
    return {
        "torn": json.dumps(good)[:-40],
        "empty": "",
        "deep": "[" * 100_000,
        "of another tool": '{"version": 3}',
        "a list": "[1]",
        "newer": json.dumps({**good, "schema": 2}),
        "no name": json.dumps({**good, "run": {}}),
        "no jobs": json.dumps({**good, "jobs": [3]}),
        "no parameters": json.dumps({**good, "jobs": [{**job, "parameters": [1]}]}),
        "odd devices": json.dumps({**good, "jobs": [{**job, "devices": ["GPU"]}]}),
        "odd time": json.dumps({**good, "jobs": [{**job, "seconds": "long"}]}),
    }


@pytest.mark.parametrize("damage", [*damaged(), "binary", "missing"])
def test_a_damaged_run_is_a_problem(tmp_path: Path, damage: str) -> None:
    """What, why and fix, before anything runs; never a traceback."""
    path = save(tmp_path, "20261119T000000Z-a")
    if damage == "binary":
        path.write_bytes(b"\xff\xfe\x00")
    elif damage == "missing":
        path.unlink()
    else:
        path.write_text(damaged()[damage])

    with pytest.raises(RocmlabError) as caught:
        compare.load("20261119T000000Z-a", tmp_path)

    assert caught.value.exit_code == 2
    assert "20261119T000000Z-a" in str(caught.value)
    assert caught.value.problem.why
    assert "--compare" in caught.value.problem.fix


@pytest.mark.parametrize("which", ["last", "nothing", "/nowhere"])
def test_a_run_that_is_not_there_is_a_problem(tmp_path: Path, which: str) -> None:
    """Also where no run ever was."""
    with pytest.raises(RocmlabError) as caught:
        compare.load(which, tmp_path / "runs")

    assert which in caught.value.problem.what


def test_odd_values_of_an_earlier_run_are_compared_with_nothing() -> None:
    """NaN, infinity, deep and mixed records of a file that another hand wrote."""
    deep: dict = {"loss": 1.0}
    for _ in range(50):
        deep = {"a": deep}
    then = run_results.job("a", recorded={"loss": float("nan"), "big": 10**400, "deep": deep, "text": "x"})
    then["seconds"] = float("inf")

    found = compared([then], [run_results.job("a", recorded={"loss": 0.5, "text": 2})])

    assert found["jobs"][0]["metrics"] == {"loss": [None, 0.5], "text": [None, 2]}
    assert found["jobs"][0]["seconds"] == [None, 12.5]


@pytest.mark.long
@pytest.mark.slow
def test_two_runs_of_the_command_are_compared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """`--compare last` shows what has changed on the screen, in results.json and in the report."""
    declared = notebook_files.PARAMETERS + "epochs: int = 1"
    notebook = tmp_path / "notebooks/train.ipynb"
    monkeypatch.chdir(tmp_path)
    notebook_files.write(notebook, declared, "import rocmlab\nrocmlab.record(loss=0.5)")
    arguments = ["train", "--gpus", "none", "--name"]
    assert main([*arguments, "before"]) == 0
    notebook_files.write(notebook, declared, "import rocmlab\nrocmlab.record(loss=0.25)", "1 / 0")

    assert main([*arguments, "after", "--compare", "last"]) == 1

    output = capsys.readouterr().out
    folder = next((tmp_path / "share/runs").glob("*-after"))
    results = json.loads((folder / "results.json").read_text())
    jsonschema.Draft202012Validator(run_results.schema()).validate(results)
    assert results["comparison"]["jobs"][0]["metrics"] == {"loss": [0.5, 0.25]}
    assert "-before: 1 broken" in output
    assert "ok → failed" in output
    assert "loss 0.5 → 0.25 (-50.0 %)" in output
    assert "1 broken" in (folder / "report.html").read_text(encoding="utf-8")
    assert f"report: share/runs/{folder.name}/report.html" in output


@pytest.mark.long
@pytest.mark.slow
def test_a_parameter_that_is_given_its_default_is_compared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """`-p lr=0.01` and nothing are one job; the cell that papermill adds for it is none of the notebook's."""
    monkeypatch.chdir(tmp_path)
    cells = (notebook_files.PARAMETERS + "lr: float = 0.01", "import rocmlab\nrocmlab.record(loss=lr)", "1 / 0")
    notebook_files.write(tmp_path / "notebooks/train.ipynb", *cells)
    assert main(["train", "--gpus", "none", "--json"]) == 1
    capsys.readouterr()

    assert main(["train", "--gpus", "none", "-p", "lr=0.01", "--compare", "last", "--json"]) == 1

    results = json.loads(capsys.readouterr().out)
    (job,) = results["jobs"]
    assert results["comparison"]["gone"] == []
    assert results["comparison"]["jobs"][0]["outcome"] == "same"
    assert (job["parameters"], job["defaults"]) == ({"lr": 0.01}, {})
    assert (job["cells_done"], job["cells_total"], job["error"]["cell"]) == (2, 3, 3)
    assert "--- cell 3 of 3: 1 / 0" in (Path(results["run"]["folder"]) / "train.log").read_text()


def test_a_wrong_run_stops_the_command_before_anything_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not even a run folder is made."""
    monkeypatch.chdir(tmp_path)
    notebook_files.write(tmp_path / "notebooks/a.ipynb", "1")

    with pytest.raises(RocmlabError):
        main(["a", "--gpus", "none", "--compare", "last"])

    assert not (tmp_path / "share").exists()


def test_names_in_the_table_are_never_markup() -> None:
    """A job called [red] is shown as that."""
    found = compared([run_results.job("[red]a")], [run_results.job("[red]b"), run_results.job("[bold]c", "failed")])
    console = Console(file=io.StringIO(), width=120)

    console.print(summary._comparison(found))

    shown = console.file.getvalue()
    assert "[red]b" in shown
    assert "[bold]c" in shown
    assert "not in this run: [red]a" in shown


def test_device_use_that_moved_is_told() -> None:
    """Peak VRAM of the fullest device and energy of all; what moves with the readings alone is not reported."""

    def device(peak: int | None, joules: float | None) -> dict:
        return {**run_results.GPU, "peak_vram_bytes": peak, "mean_busy_percent": None, "energy_joules": joules}

    then = [
        run_results.job("more", devices=[device(2 * 2**30, 1000.0)]),
        run_results.job("same", devices=[device(2**30, 1000.0)]),
        run_results.job("unknown", devices=[device(None, None)]),
        run_results.job("broken", devices=[device(2**30, 10.0)]),
    ]
    now = [
        run_results.job("more", devices=[device(3 * 2**30, 500.0), device(2**30, 300.0)]),
        run_results.job("same", devices=[device(2**30 + 1, 1020.0)]),
        run_results.job("unknown", devices=[device(2**30, 5.0)]),
        run_results.job("broken", "failed", devices=[device(2**31, 99.0)]),
    ]

    found = compared(then, now)
    rows = page.rows_of(found)

    assert found["jobs"][0]["usage"] == {
        "peak_vram_bytes": [2 * 2**30, 3 * 2**30],
        "energy_joules": [1000.0, 800.0],
    }
    assert rows[0]["usage"] == {
        "peak VRAM": "2.0 GiB → 3.0 GiB (+50.0 %)",
        "energy": "1000 J → 800 J (-20.0 %)",
    }
    assert [row["usage"] for row in rows[1:]] == [{}, {}, {}]
    results = {**run_results.results(*now), "comparison": found}
    jsonschema.Draft202012Validator(run_results.schema()).validate(results)
    assert "device use that changed" in page.render(results, {})


def test_no_part_of_an_energy_is_compared() -> None:
    """Half of the GPUs, or of the time, is not the energy of all: neither 10 kJ nor 5 kJ has become less."""
    whole = {**run_results.GPU, "energy_joules": 5000.0}
    unknown, partial = {**whole, "energy_joules": None}, {**whole, "energy_is_partial": True}
    then = [run_results.job("a", devices=[whole, whole]), run_results.job("b", devices=[partial])]
    now = [run_results.job("a", devices=[whole, unknown]), run_results.job("b", devices=[whole])]

    found = compared(then, now)

    assert [job["usage"]["energy_joules"] for job in found["jobs"]] == [[10000.0, None], [None, 5000.0]]
    assert [row["usage"] for row in page.rows_of(found)] == [{}, {}]
