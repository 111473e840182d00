"""Each job's readings are in a file next to it, and in the report."""

from __future__ import annotations

import json
import os
import stat
import time
from collections.abc import Iterator
from pathlib import Path

import notebook_files
import pytest

from rocmlab.devices import Device, discover, recording
from rocmlab.runs.command import main
from rocmlab.runs.scheduling import usage
from rocmlab.runs.scheduling.usage import Meters
from rocmlab.simulation import Live

TIMEOUT_SECONDS = 60.0


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Readings every 20 ms."""
    monkeypatch.setattr(usage, "YOUNG_EVERY_SECONDS", 0.02)
    monkeypatch.setattr(usage, "TOGETHER_SECONDS", 0.002)


@pytest.fixture
def meters(tmp_path: Path) -> Iterator[Meters]:
    """Meters of the host in `tmp_path`."""
    made = Meters(tmp_path / "host")
    yield made
    made.close()


def gpus(root: Path) -> list[Device]:
    """Return the GPUs of a simulated host."""
    return [device for device in discover(root, {}) if device.backend == "rocm"]


def ended(path: Path) -> recording.Recording:
    """Wait until a file has its end, and read it."""
    limit = time.monotonic() + TIMEOUT_SECONDS
    while recording.read(path).ended is None:
        assert time.monotonic() < limit
        time.sleep(0.01)
    return recording.read(path)


def test_readings_go_to_the_file_of_their_job(tmp_path: Path, meters: Meters) -> None:
    """Two jobs, one on two devices; each file has its devices alone, and the last reading too."""
    Live(tmp_path / "host", gpus=3, busy="0:95,1:10,2:50")
    devices = gpus(tmp_path / "host")
    both, one = tmp_path / "a.samples.jsonl", tmp_path / "b.samples.jsonl"

    meters.begin("a", devices[:2], both)
    meters.begin("b", devices[2:], one)
    assert both.exists()
    limit = time.monotonic() + TIMEOUT_SECONDS
    while len(both.read_text().splitlines()) < 9:
        assert time.monotonic() < limit
        time.sleep(0.01)
    meters.end("a")
    meters.end("b")

    first, second = ended(both), ended(one)
    assert first.simulated
    loads = [{line["busy_percent"] for line in lines} for lines in first.samples.values()]
    assert list(first.samples) == [recording.device_id(device) for device in devices[:2]]
    assert loads == [{95}, {10}]
    assert {line["busy_percent"] for lines in second.samples.values() for line in lines} == {50}
    assert all(line["power_watts"] > 0 for lines in first.samples.values() for line in lines)


def test_a_full_disk_costs_only_the_samples(tmp_path: Path, meters: Meters, caplog: pytest.LogCaptureFixture) -> None:
    """The job has its figures, and one warning says why there are no more samples."""
    Live(tmp_path / "host", gpus=1, busy="80")
    try:  # a link to it is rejected
        os.mknod(tmp_path / "a.samples.jsonl", stat.S_IFCHR | 0o600, os.stat("/dev/full").st_rdev)
    except PermissionError:
        pytest.skip("a file that is always full needs root: run .ci/run")

    meters.begin("a", gpus(tmp_path / "host"), tmp_path / "a.samples.jsonl")
    meters.begin("b", gpus(tmp_path / "host"), tmp_path / "nowhere/b.samples.jsonl")
    found = meters.end("a")

    assert found[0]["mean_busy_percent"] == 80
    assert [record.message for record in caplog.records] == [
        "no more samples in a.samples.jsonl: No space left on device",
        "no more samples in b.samples.jsonl: No such file or directory",
    ]


def test_the_processor_has_no_file(tmp_path: Path, meters: Meters) -> None:
    """Nothing is read of it, so there is nothing to keep."""
    meters.begin("a", [Device(backend="cpu", index=0, name="a processor", is_usable=True)], tmp_path / "a.jsonl")

    meters.end("a")

    assert not (tmp_path / "a.jsonl").exists()


@pytest.mark.long
@pytest.mark.slow
def test_a_run_keeps_samples_and_shows_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The file is named in results.json, linked in the report, and drawn there; a job on the CPU has none."""
    Live(tmp_path / "host", gpus=1, busy="0:95")
    monkeypatch.setenv("ROCMLAB_ROOT", str(tmp_path / "host"))
    monkeypatch.setenv("ROCMLAB_SHARE", str(tmp_path / "share"))
    monkeypatch.chdir(tmp_path)
    path = notebook_files.write(tmp_path / "a.ipynb", "import time\ntime.sleep(0.5)")

    assert main([str(path), "--json"]) == 0
    on_gpu = json.loads(capsys.readouterr().out)
    assert main([str(path), "--gpus", "none", "--json"]) == 0
    on_cpu = json.loads(capsys.readouterr().out)

    folder = Path(on_gpu["run"]["folder"])
    (job,) = on_gpu["jobs"]
    assert job["files"]["samples"] == "a.samples.jsonl"
    samples = recording.read(folder / "a.samples.jsonl")
    (lines,) = samples.samples.values()
    assert len(lines) > 3
    assert (samples.simulated, {line["busy_percent"] for line in lines}) == (True, {95})
    page = (folder / "report.html").read_text()
    assert '<a href="./a.samples.jsonl">samples</a>' in page
    assert page.count("<polyline") == 3
    assert "Use of the devices" in page
    assert "samples" not in on_cpu["jobs"][0]["files"]
    assert "<polyline" not in (Path(on_cpu["run"]["folder"]) / "report.html").read_text()
