"""What some work costs: the numbers of `rocmlab.measure()` on simulated hosts, its line and its chart."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest
from hosts import make_host
from pretenders import gpus

import rocmlab
from rocmlab.devices import discover, roots, sample
from rocmlab.devices.recording import Recording
from rocmlab.simulation import GpuUse, Live, write_host
from rocmlab.telemetry.cost import gpu_totals

GIB = 2**30


@pytest.fixture(autouse=True)
def _host_is_simulated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each test reads a host in its folder, without masks."""
    monkeypatch.setenv("ROCMLAB_ROOT", str(tmp_path))
    for name in ("HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES"):
        monkeypatch.delenv(name, raising=False)


def measured(seconds: float = 0.0) -> rocmlab.telemetry.cost.Cost:
    """Return what it costs to sleep."""
    with rocmlab.measure(show=False) as measurement:
        time.sleep(seconds)
    assert measurement.cost is not None
    return measurement.cost


def spent() -> float:
    """Return the CPU seconds of this process and of its children that have exited."""
    return time.process_time() + sum(os.times()[2:4])


@pytest.mark.slow
def test_one_gpu_is_what_its_samples_say(tmp_path: Path) -> None:
    """Memory, load, power and its energy are those of the card; the part of this process is known."""
    uses = [GpuUse(os.getpid(), vram_bytes=3 * GIB), GpuUse(1, vram_bytes=2 * GIB)]
    write_host(tmp_path, gpus=1, busy="50", processes=uses)
    expected = sample(gpus(tmp_path)[0], tmp_path)

    cost = measured(0.5)

    assert cost.peak_memory_bytes == cost.mean_memory_bytes == expected.vram_used_bytes
    assert cost.own_memory_bytes == 3 * GIB
    assert not cost.is_own_estimated
    assert (cost.mean_busy_percent, cost.mean_power_watts) == (50, pytest.approx(expected.power_watts))
    assert cost.busy_seconds == pytest.approx(cost.wall_seconds / 2)
    times = [reading["time_seconds"] for reading in cost.recording.samples["0000:03:00.0"]]
    assert len(times) >= 3
    assert times[-1] - times[0] >= 0.5
    assert cost.energy_joules == pytest.approx(expected.power_watts * (times[-1] - times[0]), rel=0.2)
    assert (cost.throttled_percent, cost.throttle_reasons) == (0, ())


@pytest.mark.parametrize("first", [2, 6])
def test_the_peak_counts_wherever_it_is(tmp_path: Path, first: int) -> None:
    """At the beginning or at the end; the mean is between, and the process's own part is its largest."""
    live = Live(tmp_path, gpus=1, busy="50", processes=[GpuUse(os.getpid(), vram_bytes=first * GIB)])
    with rocmlab.measure(show=False) as measurement:
        live.processes = [GpuUse(os.getpid(), vram_bytes=(8 - first) * GIB)]
        live.step(1.0)

    cost = measurement.cost
    assert cost.own_memory_bytes == 6 * GIB
    assert 6 * GIB <= cost.peak_memory_bytes < 6.2 * GIB
    assert 2 * GIB < cost.mean_memory_bytes < cost.peak_memory_bytes


def test_several_gpus_are_added_up_and_hidden_ones_are_not_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Percentages are means; what a mask hides from this process is not its cost."""
    write_host(tmp_path, profile="instinct", gpus=3, busy="0:80,1:40,2:10", processes=[])
    monkeypatch.setenv("HIP_VISIBLE_DEVICES", "0,1")
    first, second = (sample(device, tmp_path) for device in gpus(tmp_path)[:2])

    cost = measured()

    assert cost.mean_busy_percent == pytest.approx(60, abs=1)
    assert cost.busy_seconds == pytest.approx(1.2 * cost.wall_seconds, rel=0.05)
    assert cost.peak_memory_bytes == first.vram_used_bytes + second.vram_used_bytes
    assert cost.mean_power_watts == pytest.approx(first.power_watts + second.power_watts, rel=0.01)
    assert "2 x AMD Instinct MI300X OAM (SIMULATED) ·" in str(cost)
    assert cost.own_memory_bytes is None
    assert "of this process" not in str(cost)
    assert cost._repr_html_().count("■") == 2


def test_a_sleeping_gpu_is_reported_and_not_woken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is known of it, and of its readings only the state of its power is read."""
    write_host(tmp_path, gpus=1, faults=["asleep:0"], processes=[])
    names: list[str] = []
    monkeypatch.setattr(roots, "on_read", names.append)
    discover(tmp_path)
    found = set(names)
    names.clear()

    cost = measured()

    touched = {Path(name).name for name in names if "/0000:03:00.0/" in name and name not in found}
    assert touched <= {"runtime_status"}
    assert "1 GPU asleep (SIMULATED) · CPU" in str(cost)
    assert (cost.peak_memory_bytes, cost.mean_busy_percent, cost.energy_joules, cost.throttled_percent) == (None,) * 4


def test_an_apu_has_the_memory_where_models_live(tmp_path: Path) -> None:
    """That is the host's; what the driver lists of a process is not that memory, and is omitted."""
    write_host(tmp_path, profile="apu", gpus=1, busy="50", processes=[GpuUse(os.getpid(), vram_bytes=GIB)])
    expected = sample(gpus(tmp_path)[0], tmp_path)

    cost = measured()

    assert (cost.memory, cost.peak_memory_bytes) == ("GTT", expected.gtt_used_bytes)
    assert cost.own_memory_bytes is None


def test_without_a_gpu_it_is_the_cpu(tmp_path: Path) -> None:
    """Time and memory of this process, and not one number of a GPU."""
    make_host(tmp_path, kfd=False)
    before = spent()
    with rocmlab.measure(show=False) as measurement:
        held = b"x" * (64 << 20)
        end = time.process_time() + 0.2
        while time.process_time() < end:
            pass
    after = spent()

    cost = measurement.cost
    assert 0.2 <= cost.cpu_seconds <= after - before  # what the work took, and nothing from before or after it
    assert cost.peak_process_bytes > len(held)
    assert "no usable GPU (SIMULATED) · CPU" in str(cost)
    assert not any(word in str(cost) for word in ("VRAM", " W", " J", "throttled", "GPU time"))
    assert {name for name, value in vars(cost).items() if value is None} >= {"energy_joules", "peak_memory_bytes"}
    assert "memory" in cost._repr_html_()


@pytest.mark.slow
def test_a_gpu_that_hangs_holds_the_work_up_for_a_moment(tmp_path: Path) -> None:
    """The line says that it does not answer."""
    write_host(tmp_path, gpus=1, busy="50", processes=[], faults=["hang:0"])

    began = time.monotonic()
    cost = measured()

    assert time.monotonic() - began < 10
    assert "not answer" in str(cost) or "1 GPU without readings" in str(cost)
    assert cost.peak_memory_bytes is None


def test_an_error_stays_what_it_is_and_the_line_is_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Outside Jupyter on stderr, also of a measurement within another."""
    write_host(tmp_path, gpus=1, busy="50", processes=[])
    error = KeyError("mine")

    with pytest.raises(KeyError) as raised, rocmlab.measure(), rocmlab.measure():
        raise error

    assert raised.value is error
    assert raised.value.__context__ is None
    shown = capsys.readouterr().err.splitlines()
    assert [line.split(" · ")[1] for line in shown[::2]] == ["AMD Radeon RX 7900 XTX (SIMULATED)"] * 2
    assert [line.partition("  ")[2] for line in shown[1::2]] == ["busy, 0 to 100 %: AMD Radeon RX 7900 XTX"] * 2
    assert set(shown[1].partition("  ")[0]) == {"▅"}


def test_the_chart_is_svg_that_names_a_simulated_host(tmp_path: Path) -> None:
    """With load, memory and power, below the line."""
    write_host(tmp_path, gpus=1, busy="50", processes=[])

    page = measured(0.05)._repr_html_()

    assert page.startswith("<div><code>")
    assert page.index("(SIMULATED)") < page.index("<svg")
    assert page.count("<polyline") == 3


def test_what_is_unknown_of_one_gpu_is_unknown_of_all() -> None:
    """A sum without it would be too small; how long the GPUs throttled is that of the one that did longest."""
    names = ("time_seconds", "power_watts", "throttle_reasons")
    first = [dict(zip(names, (now, 100.0, ["power"] if now < 2 else []), strict=True)) for now in (0.0, 1.0, 2.0, 3.0)]
    second = [{"time_seconds": now, "busy_percent": 10.0} for now in (0.0, 3.0)]
    devices = {"a": {"name": "A"}, "b": {"name": "B"}}

    both = gpu_totals(Recording(0, None, False, None, None, devices, {"a": first, "b": second}))
    one = gpu_totals(Recording(0, None, False, None, None, {"a": devices["a"]}, {"a": first}))

    assert (both["energy_joules"], both["mean_power_watts"], both["mean_busy_percent"]) == (None, None, None)
    assert (one["energy_joules"], one["mean_power_watts"]) == (300, 100)
    assert (both["throttled_percent"], both["throttle_reasons"]) == (50, ("power",))
