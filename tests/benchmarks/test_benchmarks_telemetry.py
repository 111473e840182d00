"""The benchmark measures what it says, and says what it could not measure."""

from __future__ import annotations

import json
import math
import os
import stat
import sys
from pathlib import Path

import pytest

from benchmarks import lab_server, telemetry
from rocmlab.base.errors import RocmlabError
from rocmlab.cli.main import main

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def _short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Few repetitions on two GPUs with few processes, and a day of two hours."""
    monkeypatch.setattr(telemetry, "GPUS", 2)
    monkeypatch.setattr(telemetry, "PROCESSES", 50)
    monkeypatch.setattr(telemetry, "SAMPLES", 5)
    monkeypatch.setattr(telemetry, "PASSES", 1)
    monkeypatch.setattr(telemetry, "DAY_SECONDS", 3600)
    monkeypatch.delenv("ORACLES", raising=False)


def command(path: Path, text: str) -> str:
    """Write a program, and return how it is called."""
    path.write_text(f"#!{sys.executable}\n{text}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return str(path)


def test_ours_and_theirs_take_turns(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A command that burns the CPU for a tenth of a second costs no less; it sees the simulated host."""
    burns = (
        "import os, sys, time\n"
        "assert os.path.isdir(sys.argv[1] + '/sys/class/kfd') and sys.argv[-1] == '--json'\n"
        "while time.process_time() < 0.1: pass\n"
        "print('{\"card0\": 1}')"
    )
    theirs = command(tmp_path / "theirs", burns)

    assert main(["bench", "telemetry", "--json", "--runs", "2", "--row", "sample_cpu", "--theirs", theirs]) == 0

    report = json.loads(capsys.readouterr().out)
    (row,) = report["rows"]
    assert (report["bench"], report["simulated"], report["device"]) == ("telemetry", True, "2x AMD Instinct MI300X OAM")
    assert (row["name"], row["unit"], row["runs"]) == ("sample_cpu", "ms", 2)
    assert row["ours"] > 0
    assert row["theirs"] >= 95  # what it has counted itself, but for a tick
    assert row["ratio"] == pytest.approx(row["theirs"] / row["ours"], rel=0.05)


def test_without_amds_tool_there_is_no_ratio() -> None:
    """The other rows have nothing to compare with either, and none is made up."""
    found = telemetry.measure(1, names=["sample_cpu", "sample_moving_cpu", "sample_guarded_cpu", "memory_24h"])

    assert set(found.ours) == {"sample_cpu", "sample_moving_cpu", "sample_guarded_cpu", "memory_24h"}
    assert found.theirs == {}
    assert all(value > 0 for name, values in found.ours.items() for value in values if name != "memory_24h")
    assert found.ours["memory_24h"][0] < 20


def test_a_measured_cell_costs_more_than_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """In percent of the cell's time; the host that it read is not left in the environment."""
    monkeypatch.setattr(telemetry, "CELL_SECONDS", 0.5)

    found = telemetry.measure(1, names=["cell_cost_percent"])

    assert found.ours["cell_cost_percent"][0] > 0
    assert "ROCMLAB_ROOT" not in os.environ


def test_all_processes_are_found() -> None:
    """A look at fifty is measured, the first one by itself."""
    found = telemetry.measure(2, names=["processes_cpu", "processes_first_cpu"])

    assert {name: len(values) for name, values in found.ours.items()} == {"processes_first_cpu": 1, "processes_cpu": 2}
    assert all(value > 0 for values in found.ours.values() for value in values)


@pytest.mark.parametrize("text", ["raise SystemExit(3)", "print('no json')"])
def test_a_command_that_fails_is_no_figure(tmp_path: Path, text: str) -> None:
    """It would be a cheap one."""
    with pytest.raises(RocmlabError, match=r"theirs .* failed"):
        telemetry.measure(1, command(tmp_path / "theirs", text), ["sample_cpu"])


def test_there_is_no_such_row() -> None:
    """The error names those that there are."""
    with pytest.raises(RocmlabError, match="no such row: speed"):
        telemetry.measure(1, names=["speed"])


def test_without_a_server_its_row_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """And the reason is told."""
    monkeypatch.setattr(lab_server, "EXTENSION", "rocmlab.lab.nowhere")

    found = telemetry.measure(1, names=["server_cpu_percent"])

    assert found.ours == {}
    assert found.skipped["server_cpu_percent"].startswith("there is no rocmlab.lab.nowhere")


@pytest.mark.long
def test_a_server_with_a_viewer_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two real servers, one with the panel; the viewer has seen its snapshots."""
    pytest.importorskip("jupyter_server", reason="needs jupyter_server: python -m pip install 'rocmlab[lab]'")
    monkeypatch.setattr(lab_server, "SETTLE_SECONDS", 5.0)
    monkeypatch.setattr(lab_server, "MEASURE_SECONDS", 6.0)
    monkeypatch.setattr(lab_server, "MIN_SNAPSHOTS", 2)

    found = telemetry.measure(1, names=["server_cpu_percent"])

    (percent,) = found.ours["server_cpu_percent"]
    assert math.isfinite(percent)  # the difference of two servers, which may be below zero
