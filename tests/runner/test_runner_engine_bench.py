"""`rocmlab bench runner`: what a notebook costs, ours and papermill's in turn."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest

from rocmlab.cli import bench as verb
from rocmlab.errors import RocmlabError
from rocmlab.runner import bench


def test_both_sides_are_measured_in_turn() -> None:
    """A real notebook on both sides; nobody needs a hundredth of a second, and ours needs less."""
    figures = bench.measure(1, ["empty_notebook"])

    assert figures.units == {"empty_notebook": "s"}
    assert 0.1 < figures.ours["empty_notebook"][0] < figures.theirs["empty_notebook"][0]


def test_a_cost_counts_the_processes_below(tmp_path: Path) -> None:
    """CPU seconds of a child that was waited for, and the memory of both."""
    child = "x = bytearray(60_000_000)\nfor _ in range(3_000_000): pass\nimport time; time.sleep(0.3)"
    parent = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {child!r}], check=True)"

    cost = bench._cost([sys.executable, "-c", parent], os.environ, tmp_path / "log")

    assert cost.peak_bytes > 60_000_000
    assert 0 < cost.cpu_seconds < cost.wall_seconds + 0.1
    assert cost.wall_seconds > 0.3


def test_a_notebook_that_fails_is_no_figure(tmp_path: Path) -> None:
    """The error has the program's own words."""
    with pytest.raises(RocmlabError, match="no such thing"):
        bench._cost([sys.executable, "-c", "raise SystemExit('no such thing')"], os.environ, tmp_path / "log")


def test_the_report_has_the_form_of_every_benchmark(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The rows carry the names of the bars, medians and ratios."""
    values = {name: [1.0, 2.0, 3.0] for name in bench.WORKS}
    theirs = {name: [4.0, 8.0, 12.0] for name in bench.WORKS}
    units = {name: work.unit for name, work in bench.WORKS.items()}
    monkeypatch.setattr(bench, "measure", lambda runs: bench.Figures(units, values, theirs))

    assert verb.main("bench", ["runner", "--runs", "3", "--json"]) == 0

    report = json.loads(capsys.readouterr().out)
    assert report["bench"] == "runner"
    assert {"papermill", "nbclient", "python"} <= set(report["versions"])
    rows = {row["name"]: row for row in report["rows"]}
    assert set(rows) == {"hundred_cells_cpu", "plots_20mb_cpu", "output_200mb_memory", "empty_notebook"}
    assert (rows["hundred_cells_cpu"]["ours"], rows["hundred_cells_cpu"]["ratio"]) == (2.0, 4.0)
