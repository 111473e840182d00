"""What a job used of its devices: peaks, means and energies of simulated hosts whose values move."""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from types import SimpleNamespace

import notebook_files
import pytest

from rocmlab.base import formatting
from rocmlab.devices import Device, device_id, discover, integral, recording, roots, sample
from rocmlab.reports import values
from rocmlab.runs.command import main
from rocmlab.runs.scheduling import usage
from rocmlab.runs.scheduling.usage import UNKNOWN, Meters
from rocmlab.simulation import Live

pytestmark = pytest.mark.slow

TIMEOUT_SECONDS = 10.0


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Readings every 20 ms."""
    monkeypatch.setattr(usage, "YOUNG_EVERY_SECONDS", 0.02)
    monkeypatch.setattr(usage, "TOGETHER_SECONDS", 0.002)


@pytest.fixture
def meters(tmp_path: Path) -> Iterator[Meters]:
    """Meters of the host in `tmp_path`."""
    made = Meters(tmp_path)
    yield made
    made.close()


def gpus(root: Path) -> list[Device]:
    """Return the GPUs of a simulated host."""
    return [device for device in discover(root) if device.backend == "rocm"]


def wait_for(condition: Callable[[], bool]) -> None:
    """Wait until something is true."""
    until = time.monotonic() + TIMEOUT_SECONDS
    while not condition():
        assert time.monotonic() < until, "it never came true"
        time.sleep(0.002)


def readers(before: Collection[threading.Thread] = ()) -> list[threading.Thread]:
    """Threads that read devices, but for those of before: another test may have left one with a card that hangs."""
    return [each for each in threading.enumerate() if each.name == "rocmlab-meters" and each not in before]


def test_a_job_of_an_instant_has_figures(tmp_path: Path, meters: Meters) -> None:
    """One reading at its begin and one at its end are enough."""
    Live(tmp_path, gpus=2, busy="0:95,1:10")
    devices = gpus(tmp_path)

    meters.begin("a", devices)
    found = meters.end("a")

    assert [one["mean_busy_percent"] for one in found] == [95, 10]
    assert [one["peak_vram_bytes"] for one in found] == [sample(one, tmp_path).vram_used_bytes for one in devices]


def test_what_was_read_is_in_the_file_after_a_flush(tmp_path: Path) -> None:
    """Its last line says that the job has ended; a node of a cluster hands the file over then."""
    Live(tmp_path / "host", gpus=2, busy="0:95,1:10")
    meters = Meters(tmp_path / "host")
    try:
        for number in range(20):
            file = tmp_path / f"{number}.jsonl"
            meters.begin("a", gpus(tmp_path / "host"), file)
            meters.end("a")
            assert meters.flush(TIMEOUT_SECONDS)
            assert '"ended"' in file.read_text().splitlines()[-1]
    finally:
        meters.close()


@pytest.mark.usefixtures("quick")
def test_the_peak_is_the_highest_reading_and_lies_in_the_middle(tmp_path: Path, meters: Meters) -> None:
    """What a device held for a while counts, though it held less before and after."""
    live = Live(tmp_path, gpus=1, busy="idle")
    device = gpus(tmp_path)[0]
    live.pattern = lambda gpu, seconds: 100.0 if 10 <= seconds < 20 else 0.0
    meters.begin("a", [device])
    wait_for(lambda: meters.latest(device)[0] == 0)
    live.step(10.0)
    highest = sample(device, tmp_path).vram_used_bytes
    wait_for(lambda: meters.latest(device) == (100, highest))
    live.step(20.0)
    wait_for(lambda: meters.latest(device)[0] == 0)

    found = meters.end("a")

    assert found[0]["peak_vram_bytes"] == highest > 2**30
    assert 0 < found[0]["mean_busy_percent"] < 100


def test_mean_and_energy_are_weighted_by_time(tmp_path: Path, meters: Meters, monkeypatch: pytest.MonkeyPatch) -> None:
    """A device that was busy for 4 s of 12, and was read twice busy and five times idle; the clock is the test's."""
    live = Live(tmp_path, gpus=1, busy="100")
    device = gpus(tmp_path)[0]
    live.pattern = lambda gpu, seconds: 100.0 if seconds < 10 else 0.0
    high = sample(device, tmp_path).power_watts
    file, begin = tmp_path / "samples.jsonl", time.monotonic() + 1000
    clock = SimpleNamespace(monotonic=lambda: clock.now, time=time.time, now=begin)
    monkeypatch.setattr(usage, "time", clock)
    monkeypatch.setattr(usage, "EVERY_SECONDS", 0.02)

    def read_at(seconds: float, count: int) -> None:
        """Set the clock, which stands still, and wait for the reading that is due then."""
        clock.now = begin + seconds
        wait_for(lambda: file.read_text().count('"power_watts"') == count)

    meters.begin("a", [device], file)
    read_at(0.0, 1)
    read_at(4.0, 2)
    live.step(10.0)
    low = sample(device, tmp_path).power_watts
    for number, seconds in enumerate((4.1, 4.2, 4.3, 4.4, 12.0)):
        read_at(seconds, 3 + number)

    found = meters.end("a")[0]

    busy_seconds, idle_seconds = 4.05, 7.95  # between two readings it is their mean
    assert found["mean_busy_percent"] == pytest.approx(100 * busy_seconds / 12, abs=0.1)
    assert found["energy_joules"] == pytest.approx(high * busy_seconds + low * idle_seconds, abs=0.1)
    assert high > 5 * low


def test_a_card_that_counts_its_energy_is_believed(tmp_path: Path) -> None:
    """What it used between two readings is in the result and the file of samples, though no reading saw its power."""
    live = Live(tmp_path / "host", profile="instinct", gpus=2, busy="idle")
    devices, file = gpus(tmp_path / "host"), tmp_path / "samples.jsonl"
    live.pattern = lambda gpu, seconds: 100.0 if seconds == 10 and not gpu else 0.0
    meters = Meters(tmp_path / "host")
    try:
        meters.begin("a", devices, file)
        wait_for(lambda: all(meters.latest(device)[0] == 0 for device in devices))
        low = [sample(device, tmp_path / "host").power_watts for device in devices]
        live.step(10.0)
        high = [sample(device, tmp_path / "host").power_watts for device in devices]
        live.step(10.001)
        found = meters.end("a")
        assert meters.flush(TIMEOUT_SECONDS)
    finally:
        meters.close()

    assert max(high) > 3 * max(low)
    assert [one["energy_joules"] for one in found] == [pytest.approx(10 * watts, rel=0.05) for watts in high]
    kept = recording.read(file).energy_joules
    assert [kept[device_id(device)] for device in devices] == [one["energy_joules"] for one in found]


@pytest.mark.usefixtures("quick")
def test_energy_over_a_gap_is_marked_as_a_part(tmp_path: Path, meters: Meters, monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine slept while the job ran: what is known is kept, and the sum of the run is at least that."""
    Live(tmp_path, gpus=1, busy="50")
    device = gpus(tmp_path)[0]
    meters.begin("a", [device])
    wait_for(lambda: _is_measured(meters))
    monkeypatch.setattr(integral, "GAP_SECONDS", 0.0)
    wait_for(lambda: not meters._jobs["a"][0].energy.is_whole)

    (found,) = meters.end("a")

    assert found["energy_joules"] > 0
    assert found["energy_is_partial"] is True
    job = {"seconds": 1.0, "devices": [{"backend": "rocm", **found}]}
    assert values.gpu_totals([job]).is_whole is False


@pytest.mark.usefixtures("quick")
def test_energy_of_a_card_that_slept_is_marked_as_a_part(tmp_path: Path, meters: Meters) -> None:
    """It fell asleep while the job did something else: what it used asleep is not known."""
    Live(tmp_path, gpus=1, busy="50")
    device = gpus(tmp_path)[0]
    meters.begin("a", [device])
    wait_for(lambda: _is_measured(meters))

    (tmp_path / f"sys/bus/pci/devices/{device.pci_address}/power/runtime_status").write_text("suspended\n")
    wait_for(lambda: meters._sources[usage._identity(device)].sample.is_asleep)
    (found,) = meters.end("a")

    assert found["energy_joules"] > 0
    assert found["energy_is_partial"] is True


@pytest.mark.usefixtures("quick")
def test_two_jobs_after_another_on_one_device_are_kept_apart(tmp_path: Path, meters: Meters) -> None:
    """What the first one held is not the second's."""
    live = Live(tmp_path, gpus=1, busy="idle")
    device = gpus(tmp_path)[0]
    live.pattern = lambda gpu, seconds: 100.0 if seconds < 1 else 5.0
    live.step(0.5)
    meters.begin("first", [device])
    first = meters.end("first")[0]
    live.step(2.0)
    meters.begin("second", [device])
    second = meters.end("second")[0]

    assert first["mean_busy_percent"] == 100
    assert second["mean_busy_percent"] == 5
    assert second["peak_vram_bytes"] < first["peak_vram_bytes"]


@pytest.mark.usefixtures("quick")
def test_nothing_is_read_when_no_job_runs(tmp_path: Path, meters: Meters, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not before the first job, not of another device, and not after the last."""
    Live(tmp_path, gpus=2, busy="steady")
    first, second = gpus(tmp_path)
    names: list[str] = []
    monkeypatch.setattr(roots, "on_read", names.append)

    meters.begin("a", [first])
    wait_for(lambda: len(names) > 50)
    meters.end("a")
    wait_for(lambda: _is_quiet(names))

    assert any(first.pci_address in name for name in names)
    assert not any(second.pci_address in name for name in names)
    assert meters.latest(first) == (None, None)


def _is_quiet(names: list[str]) -> bool:
    """Whether nothing is read for five periods."""
    before = len(names)
    time.sleep(0.1)
    return len(names) == before


@pytest.mark.usefixtures("quick")
def test_a_sleeping_card_is_not_woken(tmp_path: Path, meters: Meters, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only whether it sleeps is read, and its figures are unknown."""
    Live(tmp_path, gpus=1, busy="steady", faults=["asleep:0"])
    device = gpus(tmp_path)[0]
    names: list[str] = []
    monkeypatch.setattr(roots, "on_read", names.append)

    meters.begin("a", [device])
    wait_for(lambda: sum(name.endswith("runtime_status") for name in names) > 3)
    found = meters.end("a")

    read = {Path(name).name for name in names if os.path.isfile(name)}
    assert read == {"runtime_status"}
    assert found == [UNKNOWN]


@pytest.mark.usefixtures("quick")
def test_a_card_that_vanishes_keeps_what_was_read(tmp_path: Path, meters: Meters) -> None:
    """Its figures are those up to then; the other card's go on."""
    live = Live(tmp_path, gpus=2, busy="steady", faults=["vanish:1:10"])
    devices = gpus(tmp_path)
    held = sample(devices[1], tmp_path).vram_used_bytes
    meters.begin("a", devices)
    wait_for(lambda: meters.latest(devices[1])[1] == held)

    live.step(11.0)
    wait_for(lambda: meters.latest(devices[1]) == (None, None))

    assert meters.latest(devices[0])[0] == 97
    assert [one["peak_vram_bytes"] for one in meters.end("a")][1] == held


@pytest.mark.usefixtures("quick")
def test_a_file_that_fails_costs_its_figure_alone(tmp_path: Path, meters: Meters) -> None:
    """VRAM and energy are known where the load is not."""
    faults = ["ebusy:0:gpu_busy_percent", "ebusy:0:gpu_metrics"]
    Live(tmp_path, gpus=1, busy="steady", faults=faults)
    device = gpus(tmp_path)[0]
    meters.begin("a", [device])
    wait_for(lambda: meters.latest(device)[1] is not None)
    wait_for(lambda: _is_measured(meters))

    found = meters.end("a")[0]

    assert found["mean_busy_percent"] is None
    assert found["peak_vram_bytes"] > 0
    assert found["energy_joules"] > 0


def _is_measured(meters: Meters) -> bool:
    """Whether more than one reading was taken."""
    return meters._jobs["a"][0].energy.seconds > 0.05


def test_a_card_that_hangs_holds_nobody_up(tmp_path: Path) -> None:
    """Begin, end, latest and close return while a read does not; what is unknown is said to be."""
    before = readers()
    Live(tmp_path, gpus=1, busy="steady", faults=["hang:0"])
    device = gpus(tmp_path)[0]
    made = Meters(tmp_path)
    begin = time.monotonic()

    made.begin("a", [device])
    latest = made.latest(device)
    found = made.end("a")
    took = time.monotonic() - begin

    assert latest == (None, None)
    assert found == [UNKNOWN]
    assert took < 10
    made.close()
    (tmp_path / roots.FAULTS_FILE).unlink()  # the card answers again, and the thread ends
    wait_for(lambda: not readers(before))


def test_the_end_of_a_job_waits_for_a_reading_alone(
    tmp_path: Path, meters: Meters, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Eight devices are read for the last time, and that they were read is noticed long before the limit."""
    monkeypatch.setattr(usage, "LAST_SECONDS", 60.0)
    Live(tmp_path, gpus=8, busy="steady")
    devices = gpus(tmp_path)
    begin = time.monotonic()
    for number in range(20):
        meters.begin(f"job {number}", devices)
        meters.end(f"job {number}")

    assert time.monotonic() - begin < 60


def test_the_processor_is_not_measured(tmp_path: Path) -> None:
    """Its figures are unknown, and there is no thread for them; a job that never began has none."""
    before = readers()
    made = Meters(tmp_path)
    cpu = Device(backend="cpu", index=0, name="a processor", is_usable=True)

    made.begin("a", [cpu])

    assert not readers(before)
    assert made.end("a") == [UNKNOWN]
    assert made.end("a") == made.end("b") == []
    made.close()


def test_eight_devices_are_read_twice_a_second_and_not_more(
    tmp_path: Path, meters: Meters, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is read costs; how much, `rocmlab bench` measures."""
    Live(tmp_path, gpus=8, busy="steady")
    devices = gpus(tmp_path)
    for number, device in enumerate(devices):
        meters.begin(str(number), [device])
    wait_for(lambda: all(meters.latest(device)[0] is not None for device in devices))
    names: list[str] = []
    monkeypatch.setattr(roots, "on_read", names.append)
    begin = time.monotonic()

    def readings(device: Device) -> int:
        return sum(str(device.pci_address) in name and name.endswith("runtime_status") for name in names)

    wait_for(lambda: min(map(readings, devices)) >= 3)

    seconds = time.monotonic() - begin
    assert max(map(readings, devices)) <= seconds / usage.YOUNG_EVERY_SECONDS + 2


@pytest.mark.long
def test_a_run_reports_what_its_notebooks_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """From the command to results, report and junit.xml: the figures of the device that the job was given."""
    root = tmp_path / "host"
    Live(root, gpus=2, busy="0:95,1:95")
    monkeypatch.setenv("ROCMLAB_ROOT", str(root))
    monkeypatch.setenv("ROCMLAB_SHARE", str(tmp_path / "share"))
    monkeypatch.chdir(tmp_path)
    notebooks = [notebook_files.write(tmp_path / f"{name}.ipynb", "print(1)") for name in ("a", "b")]

    assert main([*map(str, notebooks), "--gpus", "2", "--json"]) == 0

    results = json.loads(capsys.readouterr().out)
    devices = {gpu.index: gpu for gpu in gpus(root)}
    for job in results["jobs"]:
        (found,) = job["devices"]
        expected = sample(devices[found["index"]], root)
        assert found["peak_vram_bytes"] == expected.vram_used_bytes
        assert found["mean_busy_percent"] == 95
        assert found["energy_joules"] == pytest.approx(expected.power_watts * job["seconds"], rel=0.3)
    folder = Path(results["run"]["folder"])
    assert formatting.size(expected.vram_used_bytes) in (folder / "report.html").read_text()
    assert "a: mean_busy_percent" in (folder / "junit.xml").read_text()


@pytest.mark.usefixtures("quick")
def test_a_card_that_hangs_costs_no_other_its_figures(
    tmp_path: Path, meters: Meters, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The others are still read; the energy of the job whose card hangs is marked as a part, until it answers."""
    monkeypatch.setattr(usage, "FRESH_SECONDS", 0.1)
    Live(tmp_path, gpus=2, busy="steady")
    hangs, answers = gpus(tmp_path)
    for device in (hangs, answers):
        meters.begin(str(device.index), [device])

    def joules(device: Device) -> float:
        return meters._jobs[str(device.index)][0].energy.joules or 0.0

    wait_for(lambda: joules(hangs) > 0 and joules(answers) > 0)
    answers_again = threading.Event()

    def read(name: str) -> None:
        if str(hangs.pci_address) in name:
            answers_again.wait(TIMEOUT_SECONDS)

    monkeypatch.setattr(roots, "on_read", read)
    wait_for(lambda: meters._sources[usage._identity(hangs)].hangs)
    before = joules(answers)
    wait_for(lambda: joules(answers) > before)
    (of_hanging,), (of_answering,) = (meters.end(str(device.index)) for device in (hangs, answers))
    answers_again.set()
    meters.begin("later", [hangs])
    wait_for(lambda: meters.latest(hangs)[0] is not None)

    assert of_hanging.get("energy_is_partial") is True
    assert "energy_is_partial" not in of_answering
