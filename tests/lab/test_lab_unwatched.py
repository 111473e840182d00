"""While no page is open the history has the GPUs that are awake in any case, and keeps none awake."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Coroutine, Sequence
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest

from rocmlab.devices import Device, device_id, discover, roots
from rocmlab.lab.server.app import has_amdgpu
from rocmlab.lab.server.paths import Shown
from rocmlab.lab.server.telemetry import Telemetry
from rocmlab.lab.server.unwatched import Unwatched
from rocmlab.simulation import write_host
from rocmlab.telemetry import ticks
from rocmlab.telemetry.awake import Awake
from rocmlab.telemetry.history import History

Read = Callable[[], Coroutine[Any, Any, None]]


@pytest.fixture(autouse=True)
def punctual(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let each reading be in time."""
    monkeypatch.setattr(ticks, "is_punctual", lambda now: True)


def kept(
    root: Path, during: Callable[[Read, Telemetry], Coroutine[Any, Any, None]], others: Collection[str] = ()
) -> History:
    """Return the history after something has happened."""

    async def run() -> History:
        telemetry = Telemetry(root, list, Shown(root))
        unwatched = Unwatched(root, telemetry, lambda: others)
        try:
            await during(unwatched.read, telemetry)
            return (await telemetry.hub()).history
        finally:
            await unwatched.close()
            await telemetry.close()

    return asyncio.run(run())


async def once(read: Read, telemetry: Telemetry) -> None:
    """Read once."""
    await read()


def gpus(root: Path) -> list[str]:
    """Return the GPUs of a host, by `device_id`."""
    return [device_id(device) for device in discover(root) if device.backend == "rocm"]


def test_what_others_do_on_a_gpu_is_in_the_history(tmp_path: Path) -> None:
    """A page that is opened later shows it: cards that never sleep, and one that is awake and may sleep."""
    write_host(tmp_path, products=["mi210", "rx7900xtx"], gpus=2, busy="60")

    history = kept(tmp_path, once)

    for name in gpus(tmp_path):
        assert history.series(name, "busy_percent", 900)[1] == [pytest.approx(60, abs=10)]


def test_a_sleeping_gpu_and_one_that_would_stay_awake_are_not_touched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of the one only its state is read, and so of one whose time until it sleeps is longer than the pause."""
    write_host(tmp_path, profile="radeon", gpus=3, faults=["asleep:0"])
    asleep, slow, awake = gpus(tmp_path)
    (tmp_path / f"sys/bus/pci/devices/{slow}/power/autosuspend_delay_ms").write_text("20000\n")

    async def twice(read: Read, telemetry: Telemetry) -> None:
        await read()
        touched: list[str] = []
        monkeypatch.setattr(roots, "on_read", touched.append)
        await read()
        for name in (asleep, slow):
            found = {Path(path).name for path in touched if name in path}
            assert found <= {"control", "runtime_status", "autosuspend_delay_ms"}
        assert any(awake in path and path.endswith("gpu_busy_percent") for path in touched)

    assert kept(tmp_path, twice).names == [awake]


def test_what_is_read_for_a_lease_is_not_read_again(tmp_path: Path) -> None:
    """The leased GPU has its own reading, awake or not."""
    write_host(tmp_path, profile="instinct", gpus=2)
    leased, other = gpus(tmp_path)

    assert kept(tmp_path, once, [leased]).names == [other]


def test_nothing_is_read_twice_while_someone_watches(tmp_path: Path) -> None:
    """The history has the viewer's points alone."""
    write_host(tmp_path, profile="instinct", gpus=1)
    points: list[int] = []

    async def watched(read: Read, telemetry: Telemetry) -> None:
        hub = await telemetry.hub()
        async with aclosing(hub.watch()) as snapshots:
            await anext(snapshots)
            before = len(hub.history.times(900))
            await read()
            points.extend((before, len(hub.history.times(900))))

    kept(tmp_path, watched)

    assert points[0] == points[1]


def test_a_reading_that_is_late_is_omitted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between those of other labs it would keep a GPU awake."""
    write_host(tmp_path, profile="instinct", gpus=1)
    monkeypatch.setattr(ticks, "is_punctual", lambda now: False)

    assert kept(tmp_path, once).names == []


def test_a_failure_is_reported_once_and_does_not_end_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The next reading is retried, and the log does not fill."""
    write_host(tmp_path, profile="instinct", gpus=1)
    monkeypatch.setattr(ticks, "pause", lambda now: 0.001)
    caplog.set_level(logging.WARNING, logger="rocmlab")
    count = 0
    find = Awake.devices

    def fails(awake: Awake) -> Sequence[Device]:
        nonlocal count
        count += 1
        if count < 4:
            raise OSError("the bus is on fire")
        return find(awake)

    monkeypatch.setattr(Awake, "devices", fails)

    async def run() -> None:
        telemetry = Telemetry(tmp_path, list, Shown(tmp_path))
        unwatched = Unwatched(tmp_path, telemetry, lambda: ())
        unwatched.start()
        while not (await telemetry.hub()).history.names:
            await asyncio.sleep(0.01)
        await unwatched.close()
        await telemetry.close()

    asyncio.run(asyncio.wait_for(run(), 30))

    assert caplog.text.count("the history is not kept while no page is open") == 1
    assert "the bus is on fire" in caplog.text


def test_a_host_without_the_driver_has_nothing_to_keep(tmp_path: Path) -> None:
    """Then nothing is imported for it."""
    write_host(tmp_path / "amd", gpus=1)
    write_host(tmp_path / "none", gpus=1, faults=["no-driver"])

    assert has_amdgpu({"ROCMLAB_ROOT": str(tmp_path / "amd")})
    assert not has_amdgpu({"ROCMLAB_ROOT": str(tmp_path / "none")})
