"""The report on grids: what stands along an axis, what is averaged over, and that many jobs stay readable."""

from __future__ import annotations

import itertools
import re
from pathlib import Path
from xml.etree import ElementTree

import jsonschema
import pytest
import run_results

from rocmlab.base import formatting
from rocmlab.reports import layout, page, plots, tables, values
from rocmlab.runs.outcome import report

HOSTILE = "<script>alert(1)</script>\u202egnp.\nnext line" + "x" * 10_000


def grid(status: str = "ok", **choices: list) -> list[dict]:
    """Return a job for each combination of these parameters; the loss is told by all of them."""
    made = []
    for number, chosen in enumerate(itertools.product(*choices.values())):
        parameters = dict(zip(choices, chosen, strict=True))
        name = "-".join(f"{key}={value}" for key, value in parameters.items())
        recorded = {"loss": 1 + number / 7}
        job = run_results.job(f"tune-{name}", status, notebook="/tune.ipynb", parameters=parameters, recorded=recorded)
        made.append(job)
    return made


def group(jobs: list[dict]) -> values.Group:
    """Return the one group of these jobs."""
    (found,) = values.groups(jobs)
    return found


def texts(svg: str) -> list[str]:
    """Return the texts of a plot."""
    return [element.text or "" for element in ElementTree.fromstring(svg).iter() if element.tag.endswith("text")]


@pytest.mark.parametrize(
    ("choices", "expected"),
    [
        ({"lr": [0.1, 0.2, 0.3]}, ("lr", [], [])),
        ({"optimizer": ["adam", "sgd"]}, ("optimizer", [], [])),
        ({"optimizer": ["a", "b", "c"], "lr": [0.1, 0.2]}, ("lr", ["optimizer"], [])),
        ({"lr": [0.1, 0.2], "seed": [1, 2, 3, 4]}, ("lr", [], ["seed"])),
        ({"data_seed": [1, 2, 3], "width": [1, 2], "optimizer": ["a", "b"]}, ("width", ["optimizer"], ["data_seed"])),
        ({"seed": [1, 2, 3]}, ("seed", [], [])),
        ({"lr": list(range(9)), "width": list(range(9)), "bias": [True, False]}, ("lr", ["bias"], ["width"])),
        ({"seedling": [1, 2], "lr": [0.1, 0.2]}, ("seedling", ["lr"], [])),
    ],
)
def test_what_is_axis_line_or_mean(choices: dict, expected: tuple) -> None:
    """Numbers before words along the axis; no more lines than can be distinguished; over chance there are means."""
    found = layout.arrange(group(grid(**choices)))

    assert (found.axis, found.lines, found.pooled) == expected
    assert found.is_chance == (expected[0] == "seed")


def test_means_are_those_of_the_good_notebooks() -> None:
    """With their sample standard deviation; a failed one counts as missing."""
    jobs = grid(lr=[0.1, 0.2], seed=[1, 2, 3])
    for job, loss in zip(jobs, (1.0, 2.0, 3.0, 5.0, 5.0, 99.0), strict=True):
        job["recorded"]["loss"] = loss
    jobs[-1]["status"] = "failed"

    (found,) = tables.describe(jobs)

    assert found["means"]["over"] == "seed"
    assert found["means"]["names"] == ["lr"]
    rows = [(row["parameters"], row["good"], row["all"], row["cells"]) for row in found["means"]["rows"]]
    assert rows == [(["0.1"], 3, 3, ["2.0 ± 1.0"]), (["0.2"], 2, 3, ["5 ± 0"])]
    assert found["is_folded"]


@pytest.mark.slow
def test_a_mean_line_says_over_what(tmp_path: Path) -> None:
    """The page explains lines, bars, dots and crosses, and keeps the single notebooks folded."""
    pytest.importorskip("matplotlib", reason="plots need matplotlib: pip install matplotlib")
    report.write(run_results.results(*grid(lr=[0.1, 0.2], optimizer=["a", "b"], seed=[1, 2])), tmp_path)
    text = (tmp_path / "report.html").read_text()

    assert "means and standard deviations over seed" in text
    assert "<details><summary>all 8 notebooks</summary>" in text
    (svg,) = plots.draw(group(grid(lr=[0.1, 0.2], optimizer=["a", "b"], seed=[1, 2])))
    assert {"optimizer = a", "optimizer = b"} <= {text.strip() for text in texts(svg)}


def test_words_are_not_joined_by_lines() -> None:
    """Nothing lies between two optimizers, nor between two seeds; between two rates there is something."""
    pytest.importorskip("matplotlib", reason="plots need matplotlib: pip install matplotlib")

    def strokes(**choices: list) -> int:
        (svg,) = plots.draw(group(grid(**choices)))
        return len(re.findall(rf"stroke: {plots.COLOURS[0]}[^>]*stroke-width: 1.4", svg))

    assert strokes(lr=[0.1, 0.2, 0.3]) == 1
    assert strokes(optimizer=["a", "b", "c"]) == strokes(seed=[1, 2, 3]) == 0


def test_a_plot_with_equal_places_of_two_kinds() -> None:
    """1 and 1.0 are two values at one place; a place where all failed has no mean."""
    pytest.importorskip("matplotlib", reason="plots need matplotlib: pip install matplotlib")
    jobs = grid(lr=[1, 1.0, 2], seed=[1, 2])
    for job in jobs[:2]:
        job["status"] = "failed"

    assert len(plots.draw(group(jobs))) == 1


@pytest.mark.long
@pytest.mark.slow
def test_two_hundred_jobs_stay_readable(tmp_path: Path) -> None:
    """The page is small, has few plots however many notebooks there are, and links to its parts."""
    pytest.importorskip("matplotlib", reason="plots need matplotlib: pip install matplotlib")
    jobs = grid(lr=[0.001, 0.01, 0.1, 1, 10], width=[32, 64, 128, 256, 512], optimizer=["a", "b"], seed=[1, 2, 3, 4])
    many = [
        run_results.job(
            f"n{n}-{lr}", notebook=f"/n{n}.ipynb", parameters={"lr": lr}, recorded={f"m{m}": lr * n for m in range(6)}
        )
        for n in range(1, 41)
        for lr in (1, 2)
    ]

    report.write(run_results.results(*jobs), tmp_path / "")
    size = (tmp_path / "report.html").stat().st_size
    described = tables.describe(many)

    assert size < 400_000
    assert sum(len(one["plots"]) for one in described) == tables.ALL_PLOTS
    assert len(described) == 40
    assert '<a href="#recorded">' in (tmp_path / "report.html").read_text()


def test_a_hostile_name_fills_no_page(tmp_path: Path) -> None:
    """Ten thousand characters, a newline, a mark that turns text around, and markup: short, and text."""
    pytest.importorskip("matplotlib", reason="plots need matplotlib: pip install matplotlib")
    jobs = [
        run_results.job(
            f"a{number}",
            notebook=f"/{HOSTILE}",
            parameters={HOSTILE: f"{number}{HOSTILE}", "lr": number},
            recorded={HOSTILE: number, "loss": number},
            warnings=[HOSTILE],
        )
        for number in (1, 2)
    ]
    before = {"status": "killed", "message": HOSTILE, "seconds": None, "devices": [], "files": {"log": HOSTILE[:99]}}
    error = {"name": HOSTILE, "value": HOSTILE, "cell": 1, "cell_index": 0, "source": "x"}
    jobs.append(run_results.job("b", "failed", error=error, attempts=[before], parameters={HOSTILE: HOSTILE}))
    report.write(run_results.results(*jobs), tmp_path)
    text = (tmp_path / "report.html").read_text()

    assert "<script" not in text
    assert "x" * 700 not in text
    assert (tmp_path / "report.html").stat().st_size < 80_000


def test_earlier_attempts_are_told(tmp_path: Path) -> None:
    """What a retried job has been through: next to the job that made it, in full where it failed at last."""
    gpu = {**run_results.GPU, "index": 1}
    died = {
        "status": "kernel died",
        "message": "the kernel was ended by SIGKILL",
        "started": "2026-11-21T02:47:51.000Z",
        "seconds": 3.14,
        "devices": [gpu],
        "files": {"log": "lucky.attempt1.log"},
    }
    results = run_results.results(
        run_results.job("lucky", attempts=[died]),
        run_results.job("unlucky", "kernel died", attempts=[died, {**died, "files": {}}]),
        run_results.job("once"),
    )
    jsonschema.Draft202012Validator(run_results.schema()).validate(results)
    report.write(results, tmp_path)
    text = (tmp_path / "report.html").read_text()

    line = "1st attempt: kernel died after 3.1 s on GPU 1: the kernel was ended by SIGKILL"
    assert text.count(line) == 2
    assert text.count("2nd attempt: kernel died") == 1
    assert '<small class="attempt">3rd attempt</small>' in text
    assert "./lucky.attempt1.log" in text
    junit = (tmp_path / "junit.xml").read_text()
    assert 'name="unlucky: attempts" value="3"' in junit
    assert "once: attempts" not in junit


def test_of_many_failures_the_first_are_shown_whole(tmp_path: Path) -> None:
    """Each is named with its error, and the page can still be opened."""
    jobs = [run_results.job(f"bad{number}", "failed") for number in range(page.WHOLE_FAILURES + 5)]
    report.write(run_results.results(*jobs), tmp_path)
    text = (tmp_path / "report.html").read_text()

    assert text.count("<article") == len(jobs)
    assert text.count('<pre class="source">') == page.WHOLE_FAILURES
    assert "the others are in their executed notebooks" in text


def test_parameters_in_a_name_are_not_repeated() -> None:
    """`tune-lr=0.1` needs no `lr=0.1` below it."""
    job = run_results.job("tune-lr=0.1", parameters={"lr": 0.1, "epochs": 5})

    assert page.unnamed(job) == "epochs=5"


def test_means_read_well() -> None:
    """A mean has the digits that its deviation leaves it."""
    assert formatting.spread(0.98123, 0.01234) == "0.981 ± 0.012"
    assert formatting.spread(1234.5, 67.0) == "1234 ± 67"
    assert formatting.spread(5.0, 0.0) == "5 ± 0"
    assert formatting.spread(2.5, None) == "2.5"
    assert formatting.spread(1e-9, 2e-10) == "1e-09 ± 2e-10"
    assert formatting.spread(3e7, 1.5e6) == "3e+07 ± 1.5e+06"
    assert [formatting.ordinal(count) for count in (1, 2, 3, 4, 11, 12, 21, 112)] == [
        "1st", "2nd", "3rd", "4th", "11th", "12th", "21st", "112th",
    ]  # fmt: skip
    assert formatting.energy(7.2e6) == "2.00 kWh"
