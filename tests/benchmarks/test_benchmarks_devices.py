"""`rocmlab bench devices`: figures of whole commands, ours and theirs alternately."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest
from hosts import Gpu, make_host

from benchmarks import devices
from rocmlab.base.errors import RocmlabError
from rocmlab.cli import main as cli

pytestmark = pytest.mark.slow


@pytest.fixture
def two_gpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A host with GPUs of its own, so that none is simulated for the purpose."""
    root = make_host(tmp_path / "host", Gpu(1, 0x0300, 128), Gpu(2, 0x0400, 129))
    monkeypatch.setenv("ROCMLAB_ROOT", str(root))
    return root


@pytest.mark.long
def test_devices_are_measured_against_another_command(two_gpus: Path, tmp_path: Path) -> None:
    """Both as often, alternately, in milliseconds; the first round only fills caches and does not count."""
    log = tmp_path / "log"
    theirs = f"{sys.executable} -S -c \"open('{log}', 'a').write('x')\""

    figures = devices.measure(1, theirs)

    assert (figures.device, figures.simulated) == ("2x AMD Radeon RX 7900 XTX/XT/GRE", True)
    assert [len(values) for values in (figures.ours["devices_wall"], figures.theirs["devices_wall"])] == [1, 1]
    assert all(1 < value < 60_000 for value in figures.ours["devices_wall"])
    assert log.read_text() == "xx"


@pytest.mark.long
def test_a_host_without_amd_gpus_gets_eight_simulated_ones(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And the report says that they are."""
    monkeypatch.setenv("ROCMLAB_ROOT", str(make_host(tmp_path / "host")))

    figures = devices.measure(1)

    assert ((figures.device or "")[:3], figures.simulated) == ("8x ", True)
    assert list(figures.ours) == ["devices_wall", "up_checks_wall", "doctor_wall", "interpreter_wall"]


def test_rocm_smi_is_not_compared_on_a_host_it_cannot_see(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a real host it is, if it is installed; a command that was given always is."""
    (tmp_path / "rocm-smi").write_text("#!/bin/sh\n")
    (tmp_path / "rocm-smi").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))

    assert devices.their_command(None, simulated=True) == []
    assert devices.their_command(None, simulated=False) == ["rocm-smi", "--showallinfo", "--json"]
    assert devices.their_command("a 'b c'", simulated=True) == ["a", "b c"]


@pytest.mark.parametrize("command", [[sys.executable, "-c", "raise SystemExit('broken')"], ["/no/such/command"]])
def test_a_command_that_fails_is_no_figure(command: list[str]) -> None:
    """The error names the command and what it said."""
    with pytest.raises(RocmlabError) as caught:
        devices.milliseconds(command, dict(os.environ))

    assert command[0] in caught.value.problem.what
    assert "broken" in caught.value.problem.why or "No such file" in caught.value.problem.why


@pytest.mark.long
def test_the_report_has_the_form_of_every_benchmark(
    two_gpus: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Rows with ours, theirs, ratio, unit, runs and spread; in a clone also those of the checks."""
    assert cli(["bench", "devices", "--runs", "1", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)

    assert set(report) == {"bench", "device", "simulated", "versions", "rows"}
    assert (report["bench"], report["simulated"], report["device"][:3]) == ("devices", True, "2x ")
    assert [row["name"] for row in report["rows"]] == [
        "devices_wall",
        "up_checks_wall",
        "doctor_wall",
        "interpreter_wall",
    ]
    assert {row["unit"] for row in report["rows"]} == {"ms"}
    assert set(report["rows"][0]) == {"name", "unit", "ours", "theirs", "ratio", "runs", "spread"}


def test_a_number_of_runs_that_is_none_is_refused() -> None:
    """As a usage error."""
    assert cli(["bench", "devices", "--runs", "0"]) == 2


@pytest.mark.parametrize(("theirs", "why"), [("a 'b", "No closing quotation"), ("", "it is empty")])
def test_a_command_that_is_none_is_said(
    two_gpus: Path, capsys: pytest.CaptureFixture[str], theirs: str, why: str
) -> None:
    """Before anything is measured."""
    assert cli(["bench", "devices", "--theirs", theirs]) == 2
    assert why in capsys.readouterr().err
