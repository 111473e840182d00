"""`rocmlab bench cluster`: the rows with Ray, without one."""

from __future__ import annotations

import importlib.util
import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from benchmarks import cluster, environment, ray_nodes, ray_run
from rocmlab import simulation
from rocmlab.base.errors import RocmlabError
from rocmlab.benchmarking import rows as bench_rows
from rocmlab.cli import bench as verb

pytestmark = pytest.mark.slow

FIGURES = {
    "local": [16.0, 17.0, 16.0],
    "one_node": [18.0, 17.6, 17.6],
    "one_node_long": [36.0, 36.0, 35.0],
    "two_nodes": [18.0, 17.0, 18.0],
}


def test_what_ray_costs_is_ours_to_theirs_and_what_a_node_brings_theirs_to_ours(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A cost of 1.1 is ten percent more; a gain of 2 is twice as fast."""

    def measured(runs: int, names: Any) -> dict[str, list[float]]:
        assert (runs, list(names)) == (3, list(ray_nodes.ROWS))
        return FIGURES

    monkeypatch.setattr(ray_nodes, "missing", lambda: None)
    monkeypatch.setattr(ray_nodes, "measure", measured)
    words = ["cluster", "--runs", "3", "--json"]

    assert verb.main("bench", [*words, *(word for row in ray_nodes.ROWS for word in ("--row", row))]) == 0

    report = json.loads(capsys.readouterr().out)
    rows = {row["name"]: row for row in report["rows"]}
    assert (rows["ray_vs_local"]["ours"], rows["ray_vs_local"]["theirs"]) == (17.6, 16.0)
    assert rows["ray_vs_local"]["ratio"] == 1.1
    assert rows["two_nodes_vs_one"]["ratio"] == 2.0
    assert rows["two_nodes_vs_one"]["spread"] == [17.0, 18.0]
    assert report["simulated"] is True


def test_a_ratio_is_how_many_times_better_ours_is_unless_it_is_a_cost() -> None:
    """All other rows keep their direction."""
    assert bench_rows.row("any", "s", [2.0], [4.0]).ratio == 2.0
    assert bench_rows.row("any", "s", [2.0], [4.0], is_cost=True).ratio == 0.5
    assert bench_rows.row("any", "s", [2.0], is_cost=True).ratio is None


def test_without_ray_the_rows_are_left_out_with_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    """The reason names what installs it, and nothing is started."""
    found = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *more: None if name == "ray" else found(name, *more))
    monkeypatch.setattr(subprocess, "Popen", lambda *_, **__: pytest.fail("a node was started"))

    figures = cluster.measure(1, list(ray_nodes.ROWS))

    assert figures.ours == {}
    assert set(figures.skipped) == set(ray_nodes.ROWS)
    assert all("rocmlab[cluster]" in why for why in figures.skipped.values())


@pytest.mark.long
def test_a_local_run_is_timed_and_one_that_fails_is_an_error(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The process of one run says its seconds and slots; a notebook that fails is not a figure."""
    simulation.write_host(tmp_path / "host", gpus=2)
    environment.write_kernel(tmp_path)
    for name, value in {"JUPYTER_PATH": tmp_path, "ROCMLAB_ROOT": tmp_path / "host"}.items():
        monkeypatch.setenv(name, str(value))
    monkeypatch.setenv("ROCMLAB_BACKEND", "rocm")
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    monkeypatch.setattr(ray_nodes, "CELLS", ("1 + 1",))
    good = ray_nodes.write(tmp_path / "good.ipynb", 0)
    monkeypatch.setattr(ray_nodes, "CELLS", ("1 / 0",))
    bad = ray_nodes.write(tmp_path / "bad.ipynb", 0)

    assert ray_run.main([ray_run.LOCAL, str(tmp_path / "share"), good]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["slots"] == 2
    assert 0 < said["seconds"] < 300

    with pytest.raises(RocmlabError, match="did not run"):
        ray_run.main([ray_run.LOCAL, str(tmp_path / "share"), bad])
