"""`reports.html`: what it says, in which order, and that no name or output can do anything in it."""

from __future__ import annotations

import builtins
import html.parser
import json
import re
import sys
from pathlib import Path
from xml.etree import ElementTree

import jsonschema
import notebook_files
import pytest
import run_results

from rocmlab.base import prices
from rocmlab.base.errors import RocmlabError
from rocmlab.devices import Device
from rocmlab.reports import SCHEMA_VERSION, failures, page, plots, values
from rocmlab.runs import run
from rocmlab.runs.folder import RunFolder
from rocmlab.runs.jobs import Result
from rocmlab.runs.outcome import report
from rocmlab.runs.scheduling.placement import Slots

HOSTILE = "\"><script>alert(1)</script>'é😀../{{ 7*7 }}\x07\x1b[31m\ud800"


class Page(html.parser.HTMLParser):
    """Remembers elements, their attributes, and the text in order."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.links: list[str] = []
        self.events: list[str] = []
        self.classes: list[str] = []
        self.text = ""
        self.feed(text)

    def handle_starttag(self, tag, attrs) -> None:
        """Remember an element."""
        self.tags.append(tag)
        found = dict(attrs)
        self.events += [name for name in found if name.startswith("on")]
        self.classes += (found.get("class") or "").split()
        if tag == "a":
            self.links.append(found["href"])

    def handle_data(self, data) -> None:
        """Remember text."""
        self.text += data


def write(folder: Path, *jobs: dict, **options: object) -> Page:
    """Write the report of these jobs and read it."""
    folder.mkdir(parents=True, exist_ok=True)
    report.write(run_results.results(*jobs, **options), folder)
    return Page((folder / "report.html").read_text(encoding="utf-8"))


def grid(*, statuses: tuple[str, ...] = ("ok",) * 4) -> list[dict]:
    """Return four jobs of one notebook over two parameters."""
    pairs = [(0.001, "adam"), (0.001, "sgd"), (0.1, "adam"), (0.1, "sgd")]
    return [
        run_results.job(
            f"grid-{number}",
            status,
            notebook="/a/work/grid.ipynb",
            parameters={"lr": lr, "_optimizer": name, "seed": 7},
            recorded={"test_loss": 0.5 / (number + 1), "lr": lr, "$a$": number, "constant": 1, "history": [1, 2]},
        )
        for number, ((lr, name), status) in enumerate(zip(pairs, statuses, strict=True))
    ]


def test_the_failing_cell_comes_first(tmp_path: Path) -> None:
    """Outcome, then the failing cell with source, output and traceback, then what could not run, then the table."""
    run_results.write_failed_notebook(tmp_path, "broken", printed="epoch 1\repoch 2\n")

    found = write(
        tmp_path, run_results.job("good"), run_results.job("julia", "not run"), run_results.job("broken", "failed")
    )

    order = ["2 of 3 notebooks", "broken", "cell 2 of 5", "# Divide", "epoch 2", "Traceback", "julia-9", "good"]
    positions = [found.text.index(part) for part in order]
    assert positions == sorted(positions)
    assert "epoch 1" not in found.text
    assert "why none has that name" in found.text
    assert {"ansi-red-fg", "bad"} <= set(found.classes)
    assert "\x1b" not in found.text


def test_a_good_run_says_so(tmp_path: Path) -> None:
    """There is no section on failures, and no column on what no one has measured."""
    found = write(tmp_path, run_results.job("a"), run_results.job("b"))

    assert "All 2 notebooks completed" in found.text
    assert "went wrong" not in found.text
    assert "VRAM" not in found.text
    assert "SIMULATED" not in found.text


def test_an_interrupted_run_says_so(tmp_path: Path) -> None:
    """A job that never started is not a failure."""
    waiting = run_results.job("b", "not run", error=None)

    found = write(tmp_path, run_results.job("a"), waiting, status="interrupted")

    assert "Interrupted: 1 of 2 notebooks" in found.text
    assert "went wrong" not in found.text


def test_simulated_results_are_marked(tmp_path: Path) -> None:
    """In the head, and next to each device that was none; how many where others were real."""
    simulated = run_results.job("a", simulated=True)

    alone, mixed = write(tmp_path, simulated), write(tmp_path, simulated, run_results.job("b"))

    assert alone.text.count("SIMULATED") == 3
    assert "1 SIMULATED" in mixed.text
    assert mixed.text.count("SIMULATED") == 2


def test_samples_are_shown_where_there_are_some(tmp_path: Path) -> None:
    """The peak is that of the fullest device, use is a mean, energy a sum."""
    first = {**run_results.GPU, "peak_vram_bytes": 2**30, "mean_busy_percent": 80.0, "energy_joules": 1800}
    second = {
        **run_results.GPU,
        "index": 1,
        "peak_vram_bytes": 3 * 2**30,
        "mean_busy_percent": 40,
        "energy_joules": 5400,
    }

    found = write(tmp_path, run_results.job("both", devices=[first, second]), run_results.job("unknown"))

    assert "3.0 GiB" in found.text
    assert "60 %" in found.text
    assert "2.0 Wh" in found.text
    assert re.search(r"GPU time\s*37.5 s", found.text)
    assert "at least 2.0 Wh" in found.text  # of the other job it is unknown


def test_with_prices_the_report_has_what_gpus_cost() -> None:
    """Of each notebook and of the run, as an estimate; `at least` where an energy is unknown; the CPU is free."""
    gpu = {**run_results.GPU, "energy_joules": 3.6e6}
    jobs = [
        run_results.job("known", devices=[gpu, gpu], seconds=1800.0),
        run_results.job("unknown", seconds=1800.0),
        run_results.job("cpu", devices=[run_results.CPU], seconds=1800.0),
    ]
    results = run_results.results(*jobs)
    set_prices = {"currency": "EUR", "per_kwh": 0.30, "per_gpu_hour": 1.0}

    plain = page.render(results, {})
    priced = page.render({**results, "run": {**results["run"], "prices": set_prices}}, {})

    assert "EUR" not in plain
    assert re.search(r"<dt>GPUs cost</dt><dd>at least 2.10 EUR</dd>", priced)
    assert re.findall(r'number">((?:about|at least) [^<]*EUR)<', priced) == ["about 1.60 EUR", "at least 0.50 EUR"]
    assert re.search(r'number">1:00:00<', priced)  # GPU time of two GPUs for half an hour


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({}, "None"),
        ({"PRICE_PER_KWH": "0.30 EUR"}, "about 0.30 EUR"),
        ({"PRICE_PER_KWH": "0.0001eur"}, "about 0.0001 EUR"),
        ({"PRICE_PER_GPU_HOUR": "2 €"}, "about 1.00 €"),
        ({"PRICE_PER_KWH": "0.30 EUR", "PRICE_PER_GPU_HOUR": "2 EUR"}, "about 1.30 EUR"),
    ],
)
def test_an_amount_is_of_energy_and_gpu_time(settings: dict[str, str], text: str) -> None:
    """A kWh in half an hour of one GPU, by the prices that are set."""
    found = prices.parse(settings)

    assert str(found and found.amount(3.6e6, 1800.0)) == text


def test_an_amount_without_the_energy_is_at_least_that_of_the_time() -> None:
    """Where only energy has a price, nothing is claimed; where only time has one, the energy does not matter."""
    both = prices.Prices("EUR", 0.3, 2.0)

    assert str(both.amount(None, 1800.0)) == "at least 1.00 EUR"
    assert str(both.amount(3.6e6, 1800.0, is_whole=False)) == "at least 1.30 EUR"
    assert prices.Prices("EUR", 0.3).amount(None, 1800.0) is None
    assert str(prices.Prices("EUR", None, 2.0).amount(None, 1800.0, is_whole=False)) == "about 1.00 EUR"
    assert both.amount(None, None) is None


@pytest.mark.parametrize(
    ("settings", "what"),
    [
        ({"PRICE_PER_KWH": "0.30"}, "PRICE_PER_KWH='0.30' is not a price"),
        ({"PRICE_PER_GPU_HOUR": "-1 EUR"}, "is not a price"),
        ({"PRICE_PER_KWH": "1 EUR", "PRICE_PER_GPU_HOUR": "1 USD"}, "are in EUR and USD"),
    ],
)
def test_a_price_that_cannot_be_read_is_an_error(settings: dict[str, str], what: str) -> None:
    """It names the setting and what would be one."""
    with pytest.raises(RocmlabError, match=re.escape(what)) as wrong:
        prices.parse(settings)

    assert wrong.value.problem.fix


def test_gpu_time_and_energy_of_a_run_include_attempts_and_no_cpu() -> None:
    """A job of two GPUs counts twice its time, a job on the CPU nothing, and what is unknown is not 0."""
    gpu = {**run_results.GPU, "energy_joules": 1800}
    before = {"status": "kernel died", "seconds": 10.0, "devices": [gpu]}
    devices = [gpu, {**gpu, "index": 1}]
    retried = run_results.job("retried", seconds=20.0, devices=devices) | {"attempts": [before, {"status": "failed"}]}
    cpu = run_results.job("cpu", devices=[run_results.CPU])

    assert str(values.gpu_totals([retried, cpu])) == "GPU time 50.0 s, energy 1.5 Wh"
    assert str(values.gpu_totals([retried, run_results.job("unknown")])) == "GPU time 1:02, energy at least 1.5 Wh"
    assert str(values.gpu_totals([run_results.job("unknown")])) == "GPU time 12.5 s"
    assert str(values.gpu_totals([cpu, run_results.job("absent", "not run")])) == ""


@pytest.mark.slow
def test_nothing_that_a_notebook_says_can_act(tmp_path: Path) -> None:
    """Hostile names, parameters, records, errors and outputs are text, and nothing is fetched."""
    run_results.write_failed_notebook(tmp_path, "bad", source=HOSTILE, printed=f"{HOSTILE}\x1b]8;;http://x\x07link")
    error = {"name": HOSTILE, "value": HOSTILE, "cell": 2, "cell_index": 2, "source": HOSTILE}
    fields = {"notebook": f"/{HOSTILE}.ipynb", "parameters": {HOSTILE: HOSTILE}, "recorded": {HOSTILE: 1.5}}
    bad = run_results.job("bad", "failed", error=error, warnings=[HOSTILE], **fields)
    other = {**bad, "parameters": {HOSTILE: 2}, "recorded": {HOSTILE: 2.5}, "name": HOSTILE}
    other["files"] = {"html": "../../etc/passwd", "log": "javascript:alert(1)", "notebook": 'a b"é#?.ipynb'}

    found = write(tmp_path, bad, other, name=HOSTILE)

    assert "script" not in found.tags
    assert not {"img", "iframe", "object", "base"} & set(found.tags)
    assert found.events == []
    assert "<script>alert(1)</script>" in found.text
    assert "{{ 7*7 }}" in found.text
    expected = {"./..%2F..%2Fetc%2Fpasswd", "./javascript%3Aalert%281%29", "./a%20b%22%C3%A9%23%3F.ipynb", "./bad.html"}
    assert expected <= set(found.links)
    parts = {"#failed", "#jobs", "#recorded"}  # of the page itself
    assert parts <= set(found.links)
    assert all(link.startswith("./") and "/" not in link[2:] for link in found.links if link not in parts)
    written = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert "default-src 'none'" in written
    assert not failures.FORBIDDEN.search(written)
    ElementTree.parse(tmp_path / "junit.xml")


def test_files_are_replaced_at_once(tmp_path: Path) -> None:
    """A second report takes the place of the first, and no draft is left."""
    write(tmp_path, run_results.job("a"))

    found = write(tmp_path, run_results.job("b"))

    assert {path.name for path in tmp_path.iterdir()} == {"report.html", "junit.xml"}
    assert "b" in found.text


@pytest.mark.parametrize(
    "content",
    [None, "{", "[]", '{"cells": 3}', '{"cells": [[]]}', '{"cells": [1, 2, {"outputs": [3], "source": ["a", 5]}]}'],
)
def test_a_damaged_notebook_costs_only_its_cell(tmp_path: Path, content: str | None) -> None:
    """The report has the source that the results kept, or what can be read, and the end of the log."""
    if content is not None:
        (tmp_path / "a.ipynb").write_text(content)
    (tmp_path / "a.log").write_bytes(b"first\n" * 5000 + b"\xff last lines\n")

    found = write(tmp_path, run_results.job("a", "killed"))

    assert "ZeroDivisionError: division by zero" in found.text
    assert "last lines" in found.text or "a5" in found.text
    assert found.text.count("first") < 100


def test_long_texts_are_shortened(tmp_path: Path) -> None:
    """Of the output the end is kept, of the source the beginning."""
    source = "\n".join(f"line_{number} = 1" for number in range(500))
    run_results.write_failed_notebook(tmp_path, "a", source=source, printed="x = 5\n" * 100_000 + "the end\n")

    found = write(tmp_path, run_results.job("a", "failed"))

    assert "line_0 = 1" in found.text
    assert "… 440 more lines" in found.text
    assert "the beginning is omitted" in found.text
    assert "the end" in found.text
    assert (tmp_path / "report.html").stat().st_size < 60_000


@pytest.mark.parametrize(
    ("raw", "shown"),
    [
        ("10%\r50%\r100%\nok\r\n", "100%\nok\n"),
        ("\x1b[2Ka\x1b]0;title\x07b\x1b]8;;http://x\x1b\\c\x1b7", "abc"),
        ("\x1b[31mred\x1b[0m", "\x1b[31mred\x1b[0m"),
        ("a\x00\x08\ud800\ufffeb", "ab"),
    ],
)
def test_terminal_sequences_are_folded(raw: str, shown: str) -> None:
    """Only colours are left, and of a progress bar its end."""
    assert failures.clean(raw) == shown
    assert "\x1b" not in failures.plain(raw)


def test_records_become_numbers_with_dotted_names() -> None:
    """Flags, lists, texts and what is not finite are none; what a notebook is judged by is."""
    recorded = {
        "test_loss": {"keras": 0.1, "torch": 0.2, "note": "x"},
        "epochs": 3,
        "is_equal": True,
        "history": [1.0],
        "diverged": None,
        "infinite": float("inf"),
        "acceptance": {"name": "gap", "value": 0.015, "threshold": 0.02, "ok": True},
    }

    found = values.numbers(recorded)

    assert found == {"test_loss.keras": 0.1, "test_loss.torch": 0.2, "epochs": 3, "gap": 0.015}


def test_jobs_are_grouped_by_notebook_with_what_varies() -> None:
    """A parameter that never changes, and a record that repeats a parameter, say nothing."""
    first, second = values.groups([*grid(), run_results.job("other", notebook="/elsewhere/grid.ipynb")])

    assert (first.title, second.title) == ("work/grid", "elsewhere/grid")
    assert first.varying == ["lr", "_optimizer"]
    assert first.metrics == ["test_loss", "$a$", "constant"]
    assert (second.varying, second.metrics) == ([], [])


@pytest.mark.long
@pytest.mark.slow
def test_a_grid_is_plotted(tmp_path: Path) -> None:
    """One plot for each number that changes; names are text, whatever is in them; a cross marks a bad end."""
    pytest.importorskip("matplotlib", reason="plots need matplotlib: pip install matplotlib")
    found = write(tmp_path, *grid(statuses=("ok", "ok", "ok", "failed")))

    assert found.tags.count("svg") == 2
    assert "_optimizer = adam" in found.text
    assert "$a$" in found.text
    assert "0.001" in found.text
    svgs = plots.draw(values.groups(grid())[0])
    ids = [element.get("id") for svg in svgs for element in ElementTree.fromstring(svg).iter() if element.get("id")]
    assert len(ids) == len(set(ids)) > 4
    assert svgs == plots.draw(values.groups(grid())[0])


def test_a_grid_of_anything_can_be_plotted() -> None:
    """Words, flags, nothing at all, missing parameters and more series than colours."""
    pytest.importorskip("matplotlib", reason="plots need matplotlib: pip install matplotlib")
    choices = ["$x^$", None, True, [1, 2], "日本\x07", 3, {"a": 1}, -2.5, "", "é"]
    jobs = [
        run_results.job(f"a-{x}-{y}", notebook="/a.ipynb", parameters={"x": one, "y": other}, recorded={"loss": x * y})
        for x, one in enumerate(choices)
        for y, other in enumerate(choices)
    ]
    jobs.append(run_results.job("bare", notebook="/a.ipynb", recorded={"loss": 9}))

    svgs = plots.draw(values.groups(jobs)[0])

    assert len(svgs) == 1
    assert "日本" in "".join(ElementTree.fromstring(svgs[0]).itertext())


def test_without_matplotlib_there_are_tables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The report says what is missing and how to get it."""
    original = builtins.__import__

    def refuse(name: str, *rest: object, **options: object) -> object:
        if name.partition(".")[0] == "matplotlib":
            raise ImportError(name)
        return original(name, *rest, **options)

    for name in [name for name in sys.modules if name.partition(".")[0] == "matplotlib"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr(builtins, "__import__", refuse)

    found = write(tmp_path, *grid())

    assert "svg" not in found.tags
    assert "Plots could not be drawn: matplotlib is not installed" in found.text
    assert "test_loss" in found.text


def test_five_hundred_notebooks_fit_in_one_report(tmp_path: Path) -> None:
    """The page stays small enough to open, and each notebook is in it."""
    jobs = [run_results.job(f"job-{n}", recorded={"loss": float(n)}) for n in range(500)]

    found = write(tmp_path, *jobs)

    assert found.text.count("job-499") == 2
    assert (tmp_path / "report.html").stat().st_size < 1_000_000


def test_every_field_of_a_result_is_in_the_schema() -> None:
    """A new field cannot be forgotten in what is published."""
    published = run_results.schema()["$defs"]["job"]["properties"]

    assert set(run_results.job("a")) == set(Result.__dataclass_fields__)
    assert set(Result.__dataclass_fields__) - set(published) == set()
    assert run_results.schema()["properties"]["schema"]["const"] == SCHEMA_VERSION == run_results.results()["schema"]


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("schema",), 2),
        (("run", "status"), "fine"),
        (("run", "started"), "yesterday"),
        (("jobs", 0, "status"), "completed"),
        (("jobs", 0, "error"), {"name": "E", "value": "an ok job has none"}),
        (("jobs", 0, "files"), {"log": "../a.log"}),
        (("jobs", 0, "devices", 0, "backend"), "gpu"),
        (("jobs", 0, "seconds"), -1),
    ],
)
def test_the_schema_refuses_what_is_wrong(path: tuple, value: object) -> None:
    """It is a real test of a file, not one that anything passes."""
    good = run_results.results(run_results.job("a"), run_results.job("b", "failed"), run_results.job("c", "not run"))
    validator = jsonschema.Draft202012Validator(run_results.schema())
    validator.check_schema(run_results.schema())
    validator.validate(good)
    bad = json.loads(json.dumps(good))
    place = bad
    for step in path[:-1]:
        place = place[step]
    place[path[-1]] = value

    assert not validator.is_valid(bad)


@pytest.mark.slow
def test_a_real_run_leaves_a_report(tmp_path: Path, cpu: Device, run_folder: RunFolder, watcher: object) -> None:
    """From kernels to the page: results by the schema, the failing cell with its output, links that lead somewhere."""
    paths = [
        notebook_files.write(tmp_path / "it's <b>.ipynb", "import rocmlab\nrocmlab.record(loss=0.25)"),
        notebook_files.write(tmp_path / "fails.ipynb", "x = 1", "# Divide\nprint('so far <i>')\nx / 0"),
    ]
    jobs = runs_jobs(paths)

    run.run(jobs, folder=run_folder, slots=Slots([], cpu), display=watcher)

    results = json.loads(run_folder.results_path.read_text(encoding="utf-8"))
    jsonschema.Draft202012Validator(run_results.schema()).validate(results)
    found = Page((run_folder.path / "report.html").read_text(encoding="utf-8"))
    assert "1 of 2 notebooks did not complete" in found.text
    assert found.text.index("so far <i>") < found.text.index("Traceback") < found.text.index("loss 0.25")
    assert "b" not in found.tags[found.tags.index("table") :]
    local = [run_folder.path / link.removeprefix("./") for link in found.links if link[0] != "#"]
    assert len(local) >= 9
    assert all(path.is_file() for path in local)
    assert ElementTree.parse(run_folder.path / "junit.xml").find("testsuite").get("failures") == "1"


def runs_jobs(paths: list[Path]) -> list:
    """Return the jobs of these notebooks."""
    return notebook_files.jobs(paths)


def test_a_report_that_fails_does_not_cost_the_results(run_folder: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    """The night's work is kept, and the summary says that there is no report."""
    monkeypatch.setattr(page, "render", lambda *_: 1 / 0)
    result = Result("a", "a", {}, "k", "ok", 0)
    outcome = run.Run(run_folder, [result], "2026-11-21T02:47:51.123Z", 1.0, False, 1)

    outcome.save()

    assert json.loads(run_folder.results_path.read_text())["run"]["status"] == "ok"
    assert outcome.warnings == ["no report: ZeroDivisionError: division by zero"]
