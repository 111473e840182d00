"""`junit.xml`: valid for Jenkins' and for Ant's schema, which want different things."""

from __future__ import annotations

import re
from pathlib import Path
from xml.etree import ElementTree

import pytest
import run_results

from rocmlab.reports import junit
from rocmlab.reports.failures import Failure
from rocmlab.runs.outcome import report

# What both schemas allow: attributes (all required by Ant but `skipped`) and children, in this order.
SUITE = {"name", "package", "id", "timestamp", "hostname", "tests", "failures", "errors", "skipped", "time"}
ORDER = ["properties", "testcase", "system-out", "system-err"]
SECONDS = re.compile(r"\d+\.\d{3}")
HOSTILE = "\"><script>'é😀\x00\x07\x1b[31m\ud800]]>\r\n"


def parse(*jobs: dict, failures: dict | None = None, **options: object) -> ElementTree.Element:
    """Return the root of the document of these jobs, read by a parser that takes nothing but XML."""
    text = junit.render(run_results.results(*jobs, **options), failures or {})
    return ElementTree.fromstring(text.encode())


def check(root: ElementTree.Element) -> None:
    """Check the structure that both schemas prescribe."""
    assert (root.tag, root.attrib, [child.tag for child in root]) == ("testsuites", {}, ["testsuite"])
    suite = root[0]
    assert set(suite.attrib) == SUITE
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d", suite.get("timestamp"))
    assert SECONDS.fullmatch(suite.get("time"))
    assert sorted((child.tag for child in suite), key=ORDER.index) == [child.tag for child in suite]
    assert [len(suite.findall(tag)) for tag in ("properties", "system-out", "system-err")] == [1, 1, 1]
    for entry in suite.find("properties"):
        assert (entry.tag, set(entry.attrib)) == ("property", {"name", "value"})
    for case in suite.findall("testcase"):
        assert set(case.attrib) == {"name", "classname", "time"}
        assert SECONDS.fullmatch(case.get("time"))
        assert len(case) <= 1
        for child in case:
            assert child.tag in ("failure", "error", "skipped")
            assert child.tag == "skipped" or set(child.attrib) == {"type", "message"}
    for attribute, tag in (("failures", "failure"), ("errors", "error"), ("skipped", "skipped")):
        assert suite.get(attribute) == str(len(suite.findall(f"testcase/{tag}")))
    assert suite.get("tests") == str(len(suite.findall("testcase")))


@pytest.mark.parametrize(
    ("status", "fields", "tag"),
    [
        ("ok", {}, None),
        ("failed", {}, "failure"),
        ("timeout", {}, "error"),
        ("killed", {}, "error"),
        ("kernel died", {}, "error"),
        ("not run", {}, "error"),
        ("not run", {"error": None}, "skipped"),
    ],
)
def test_each_end_has_its_element(status: str, fields: dict, tag: str | None) -> None:
    """Only what completed is a passed test; only a job that never started is skipped."""
    root = parse(run_results.job("a", status, **fields))

    check(root)
    assert [child.tag for child in root.find("testsuite/testcase")] == ([tag] if tag else [])


def test_a_mixed_run_is_counted_and_described() -> None:
    """Counts, times and properties are those of the run; simulated results report it."""
    jobs = [
        run_results.job("good", simulated=True),
        run_results.job("bad", "failed"),
        run_results.job("slow", "timeout"),
        run_results.job("late", "not run", error=None),
    ]

    root = parse(*jobs, status="interrupted")

    check(root)
    properties = {each.get("name"): each.get("value") for each in root.find("testsuite/properties")}
    assert properties["simulated"] == "true"
    assert properties["status"] == "interrupted"
    assert root[0].get("time") == "3661.250"


def test_the_failure_reads_as_a_person_wants_it() -> None:
    """Where it was, the cell, what it printed, the traceback; no colours."""
    told = Failure(source="x / 0", output="so far", traceback="\x1b[31mTraceback\x1b[0m …")

    root = parse(run_results.job("a", "failed", simulated=True), failures={"a": told})

    failure = root.find("testsuite/testcase/failure")
    assert failure.get("message") == "ZeroDivisionError: division by zero"
    assert failure.text == "failed in cell 2 of 5 on GPU 0 (SIMULATED)\n\nx / 0\n\nso far\n\nTraceback …"


def test_a_problem_comes_with_its_fix() -> None:
    """Why and fix are in the log of the CI too."""
    error = parse(run_results.job("a", "not run")).find("testsuite/testcase/error")

    assert error.get("message") == "no such kernel: julia-9"
    assert error.text.endswith("why: none has that name\nfix: install it")


def test_names_stay_the_same_from_run_to_run() -> None:
    """A case is called by notebook and parameters, and by its job only where these are not enough."""
    jobs = [
        run_results.job("grid", notebook="/a/work/grid.ipynb", parameters={"lr": 0.1}),
        run_results.job("grid-2", notebook="/a/work/grid.ipynb", parameters={"lr": 0.01, "optimizer": "adam"}),
        run_results.job("plain", notebook="/a/work/plain.ipynb"),
        run_results.job("plain-2", notebook="/a/work/plain.ipynb"),
    ]

    names = [case.get("name") for case in parse(*jobs).iter("testcase")]

    assert names == ["grid[lr=0.1]", "grid[lr=0.01, optimizer=adam]", "plain (plain)", "plain (plain-2)"]


def test_any_text_makes_a_document(tmp_path: Path) -> None:
    """Control characters, half characters and markup, wherever a notebook can put them."""
    error = {"name": HOSTILE, "value": HOSTILE, "cell": 2, "cell_index": 2, "source": HOSTILE, "fix": HOSTILE}
    job = run_results.job("a", "failed", error=error, parameters={HOSTILE: HOSTILE}, warnings=[HOSTILE])
    job["notebook"] = f"/{HOSTILE}.ipynb"
    results = run_results.results(job, name=HOSTILE)
    results["versions"][HOSTILE] = HOSTILE
    run_results.write_failed_notebook(tmp_path, "a", source=HOSTILE, printed=HOSTILE)

    report.write(results, tmp_path)

    root = ElementTree.parse(tmp_path / "junit.xml").getroot()
    check(root)
    assert "<script>'é😀" in root.find("testsuite/testcase/failure").text


def test_what_jobs_used_of_their_devices_are_properties() -> None:
    """By case, in base units; what is unknown has none."""
    used = {**run_results.GPU, "peak_vram_bytes": 2**30, "mean_busy_percent": 80.0, "energy_joules": 1800.5}
    jobs = [
        run_results.job("a", notebook="/a.ipynb", parameters={"lr": 0.1}, devices=[used, {**used, "energy_joules": 2}]),
        run_results.job("b", devices=[{**run_results.CPU, "peak_vram_bytes": None}]),
    ]

    root = parse(*jobs)

    check(root)
    properties = {each.get("name"): each.get("value") for each in root.find("testsuite/properties")}
    assert properties["a[lr=0.1]: peak_vram_bytes"] == str(2**30)
    assert properties["a[lr=0.1]: mean_busy_percent"] == "80.0"
    assert properties["a[lr=0.1]: energy_joules"] == "1802.5"
    assert not any(name.startswith("b:") for name in properties)


def test_no_part_of_an_energy_is_given_as_all_of_it() -> None:
    """Where it is unknown of one GPU, or for a part of the time, there is no property; the report has "at least"."""
    known = {**run_results.GPU, "peak_vram_bytes": 2**30, "energy_joules": 5000.0}
    jobs = [
        run_results.job("one-unknown", devices=[known, {**known, "energy_joules": None}]),
        run_results.job("in-part", devices=[known, {**known, "energy_is_partial": True}]),
        run_results.job("whole", devices=[known, known]),
    ]

    root = parse(*jobs)

    properties = {each.get("name"): each.get("value") for each in root.find("testsuite/properties")}
    found = {name: value for name, value in properties.items() if name.endswith("energy_joules")}
    assert found == {"whole: energy_joules": "10000.0"}
    assert properties["in-part: peak_vram_bytes"] == str(2**30)
