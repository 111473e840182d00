"""`rocmlab bench runner`: what a notebook costs, ours and papermill's alternately."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import notebook_files
import pytest

from benchmarks import runner
from benchmarks.results import Results
from rocmlab.base.errors import RocmlabError
from rocmlab.cli import bench as verb

pytestmark = pytest.mark.slow


def test_a_cost_counts_the_processes_below(tmp_path: Path) -> None:
    """CPU seconds of a child that was waited for, and the memory of both."""
    child = (
        "import time\nx = bytearray(60_000_000)\nfor _ in range(3_000_000): pass\n"
        "print(time.process_time(), flush=True)\ntime.sleep(0.3)"
    )
    parent = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {child!r}], check=True)"

    cost = runner._cost([sys.executable, "-c", parent], os.environ, tmp_path / "log")

    assert cost.peak_bytes > 60_000_000
    assert cost.cpu_seconds >= float((tmp_path / "log").read_text()) > 0  # as the child says it
    assert cost.wall_seconds > 0.3


def test_a_notebook_that_fails_is_no_figure(tmp_path: Path) -> None:
    """The error has the program's own words."""
    with pytest.raises(RocmlabError, match="no such thing"):
        runner._cost([sys.executable, "-c", "raise SystemExit('no such thing')"], os.environ, tmp_path / "log")


def test_the_report_has_the_form_of_every_benchmark(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The rows carry the names of the bars, medians and ratios."""
    values = {name: [1.0, 2.0, 3.0] for name in runner.WORKS}
    theirs = {name: [4.0, 8.0, 12.0] for name in runner.WORKS}
    units = {name: work.unit for name, work in runner.WORKS.items()}
    units["supervision_cpu_percent"], values["supervision_cpu_percent"] = "percent", [0.5]
    skipped = {"warm_start_torch": "there is no kernelspec torch"}
    monkeypatch.setattr(
        runner,
        "measure",
        lambda runs, names: Results("any", simulated=False, units=units, ours=values, theirs=theirs, skipped=skipped),
    )

    assert verb.main("bench", ["runner", "--runs", "3", "--json"]) == 0

    report = json.loads(capsys.readouterr().out)
    assert report["bench"] == "runner"
    assert {"papermill", "nbclient", "python"} <= set(report["versions"])
    rows = {row["name"]: row for row in report["rows"]}
    assert set(rows) == {*runner.WORKS, "supervision_cpu_percent"}
    assert (rows["supervision_cpu_percent"]["ours"], rows["supervision_cpu_percent"]["theirs"]) == (0.5, None)
    assert report["skipped"] == skipped
    assert (rows["hundred_cells_cpu"]["ours"], rows["hundred_cells_cpu"]["ratio"]) == (2.0, 4.0)

    assert verb.main("bench", ["runner", "--runs", "3"]) == 0
    assert capsys.readouterr().err.endswith("warm_start_torch: not measured, there is no kernelspec torch\n")


@pytest.mark.long
def test_a_row_whose_kernel_is_not_there_is_skipped(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The others are measured with a real notebook on both sides; the reason is shown."""
    monkeypatch.setenv("JUPYTER_PATH", str(tmp_path))
    rows = ["--row", "empty_notebook", "--row", "warm_start_torch"]

    assert verb.main("bench", ["runner", "--runs", "1", "--json", *rows]) == 0

    said = capsys.readouterr()
    (row,) = json.loads(said.out)["rows"]
    assert (row["name"], row["unit"]) == ("empty_notebook", "s")
    assert row["ours"] > 0
    assert row["theirs"] > 0
    assert json.loads(said.out)["skipped"] == {"warm_start_torch": "no kernelspec found: torch"}


def test_a_row_that_does_not_exist_is_named() -> None:
    """With those that do."""
    with pytest.raises(RocmlabError, match=r"no such row: speed\n.*hundred_cells_cpu"):
        runner.measure(1, ["speed"])


@pytest.mark.long
def test_a_warm_start_is_measured_against_a_cold_one(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The real thing, with a package in the framework's place that notes whether its kernel has imported it itself."""
    log = tmp_path / "log"
    (tmp_path / "torch.py").write_text(
        "import os\nimported = os.getpid()\n"
        "class ones:\n    def __init__(self, *_): pass\n    __matmul__ = lambda self, _: self\n"
        "    def sum(self):\n"
        f"        open({str(log)!r}, 'a').write('cold\\n' if imported == os.getpid() else 'warm\\n')\n"
        "        return 8e6\n"
        "class default_generator:\n    seed = staticmethod(lambda: 0)\n"
    )
    notebook_files.write_kernel(tmp_path / "jupyter/kernels/torch", sys.executable)
    monkeypatch.setenv("JUPYTER_PATH", str(tmp_path / "jupyter"))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join((str(tmp_path), os.environ["PYTHONPATH"])))

    figures = runner.measure(1, ["warm_start_torch"])

    assert figures.units == {"warm_start_torch": "s"}
    assert min(figures.theirs["warm_start_torch"][0], figures.ours["warm_start_torch"][0]) > 0
    assert log.read_text().split() == ["warm", "cold"] * 2  # one round does not count
    assert os.environ["JUPYTER_PATH"] == str(tmp_path / "jupyter")
