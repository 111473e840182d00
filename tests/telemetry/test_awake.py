"""Which GPUs are read while no one watches: a reading must neither wake them nor keep them awake."""

from __future__ import annotations

from pathlib import Path

import pytest

from rocmlab.devices import device_id, roots
from rocmlab.simulation import Live, write_host
from rocmlab.telemetry import awake, ticks
from rocmlab.telemetry.awake import Awake, may_be_read

SLEEPS_IN_TIME = {"control": "auto", "runtime_status": "active", "autosuspend_delay_ms": "5000"}


@pytest.mark.parametrize(
    ("changes", "is_read"),
    [
        ({}, True),
        ({"autosuspend_delay_ms": "0"}, True),
        ({"runtime_status": "suspended"}, False),
        ({"runtime_status": "suspending"}, False),
        ({"runtime_status": "resuming"}, False),
        ({"runtime_status": "error"}, False),
        ({"autosuspend_delay_ms": "9000"}, False),
        ({"autosuspend_delay_ms": "60000"}, False),
        ({"autosuspend_delay_ms": "-1"}, False),
        ({"autosuspend_delay_ms": ""}, False),
        ({"autosuspend_delay_ms": None}, False),
        ({"runtime_status": None}, False),
        ({"control": None}, True),
        ({"control": "on", "autosuspend_delay_ms": ""}, True),
        ({"control": "on", "autosuspend_delay_ms": "60000"}, True),
    ],
)
def test_a_gpu_is_read_if_it_sleeps_in_time_or_never(
    tmp_path: Path, changes: dict[str, str | None], is_read: bool
) -> None:
    """Whatever is unknown, longer than the pause, or asleep is left alone."""
    (tmp_path / "power").mkdir()
    for name, content in {**SLEEPS_IN_TIME, **changes}.items():
        if content is not None:
            (tmp_path / "power" / name).write_text(f"{content}\n")

    assert may_be_read(tmp_path) is is_read


def test_one_look_touches_no_file_of_the_driver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After the devices are known it asks the kernel about sleep, and not the cards."""
    write_host(tmp_path, profile="radeon", gpus=2, faults=["asleep:1"])
    found = Awake(tmp_path)
    first = [device_id(device) for device in found.devices()]
    touched: list[str] = []
    monkeypatch.setattr(roots, "on_read", touched.append)
    second = [device_id(device) for device in found.devices()]

    assert first == second
    assert len(first) == 1
    names = {Path(name).name for name in touched if "/devices/" in name}
    assert names == {"control", "runtime_status", "autosuspend_delay_ms"}


def test_finding_them_does_not_touch_what_wakes_a_sleeping_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its link is not read, nor any sensor; NVIDIA's library is not opened."""
    write_host(tmp_path, profile="radeon", gpus=1, faults=["asleep:0"])
    touched: list[str] = []
    monkeypatch.setattr(roots, "on_read", touched.append)
    monkeypatch.setattr("rocmlab.devices.cuda.Cuda.discover", lambda *_: pytest.fail("NVIDIA's GPUs are looked for"))

    assert Awake(tmp_path).devices() == []

    names = {Path(name).name for name in touched} - {"io_links", "p2p_links"}
    assert not [name for name in names if "link" in name or "busy" in name or "hwmon" in name]


def test_devices_are_found_again_only_where_there_are_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Finding them costs a hundred times as much as to look whether that is needed."""
    live = Live(tmp_path, profile="instinct", gpus=2)
    count = 0
    discover = awake.ROCM.discover

    def counted(root: Path) -> list:
        nonlocal count
        count += 1
        return discover(root)

    monkeypatch.setattr(awake.ROCM, "discover", counted)
    found = Awake(tmp_path)
    before = [len(found.devices()) for _ in range(5)]
    live.step(1.0)
    Live(tmp_path, profile="instinct", gpus=3)
    after = [len(found.devices()) for _ in range(5)]

    assert (before, after, count) == ([2] * 5, [3] * 5, 2)


def test_a_gpu_of_another_driver_is_not_read(tmp_path: Path) -> None:
    """How it sleeps is not known: one given to a virtual machine, or of the old driver radeon."""
    write_host(tmp_path, profile="instinct", gpus=1, faults=["no-driver"])

    assert Awake(tmp_path).devices() == []


@pytest.mark.parametrize(
    ("now", "seconds"), [(1000.0, 10.0), (1000.4, 9.6), (1003.0, 7.0), (1008.9, 1.1), (1009.9999, 10.0001)]
)
def test_readings_are_at_the_same_moments_in_all_labs_of_a_host(now: float, seconds: float) -> None:
    """At whole tens of seconds; one that came a little early is not repeated."""
    assert ticks.pause(now) == pytest.approx(seconds)


@pytest.mark.parametrize(
    ("now", "is_punctual"), [(1000.0, True), (1000.9, True), (1009.9999, True), (1001.1, False), (1005.0, False)]
)
def test_a_late_reading_does_not_fall_together_with_others(now: float, is_punctual: bool) -> None:
    """It would start the time until a GPU sleeps again."""
    assert ticks.is_punctual(now) is is_punctual


def test_a_gpu_that_may_be_read_falls_asleep_between_two_readings() -> None:
    """The longest time until it sleeps is shorter than the shortest time between two readings that are punctual."""
    shortest = ticks.EVERY_SECONDS - 2 * ticks.LATE_SECONDS

    assert shortest > awake.MAX_DELAY_MS / 1000
