"""One sampler for many viewers, that reads only while someone looks."""

from __future__ import annotations

import asyncio
import gc
import json
import threading
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import aclosing, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from rocmlab.base import background
from rocmlab.devices import Device, roots
from rocmlab.simulation import Live, write_host
from rocmlab.telemetry.hub import Hub
from rocmlab.telemetry.model import GpuProcess, Snapshot, device_id
from rocmlab.telemetry.sampler import Sampler

pytestmark = pytest.mark.slow

TIMEOUT_SECONDS = 60.0


def run(test: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Run a test's event loop, but not for ever."""
    asyncio.run(asyncio.wait_for(test(), TIMEOUT_SECONDS * 2))


@asynccontextmanager
async def opened(root: Path, interval_seconds: float = 0.05, **options: Any) -> AsyncIterator[Hub]:
    """Make a hub, and close it."""
    hub = Hub(root, interval_seconds, **options)
    try:
        yield hub
    finally:
        await hub.close()


async def until(hub: Hub, condition: Callable[[Snapshot], bool]) -> Snapshot:
    """Watch until a Snapshot is as it should be."""
    end = time.monotonic() + TIMEOUT_SECONDS
    async with aclosing(hub.watch()) as snapshots:
        async for snapshot in snapshots:
            if condition(snapshot):
                return snapshot
            assert time.monotonic() < end
    raise AssertionError


async def at_rest(hub: Hub) -> None:
    """Wait until nothing is read any more."""
    end = time.monotonic() + TIMEOUT_SECONDS
    while hub.is_reading:
        assert time.monotonic() < end
        await asyncio.sleep(0.01)


def loads(snapshot: Snapshot) -> list[float | None]:
    """Return how busy each GPU is."""
    return [sample.busy_percent for name, sample in snapshot.samples.items() if name != "cpu"]


class TestWatching:
    """What viewers see."""

    def test_a_change_arrives(self, tmp_path: Path) -> None:
        """Each Snapshot has all devices, and their values as they are now."""
        live = Live(tmp_path, gpus=2, busy="waves")

        async def test() -> None:
            async with opened(tmp_path) as hub:
                first = await until(hub, lambda found: len(found.samples) == 3)
                live.step(20.0)
                await until(hub, lambda found: loads(found) != loads(first))
                assert [device.backend for device in hub.devices] == ["rocm", "rocm", "cpu"]
                assert hub.latest is not None

        run(test)

    def test_many_viewers_cost_one_reading(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """Two hundred viewers see the very same Snapshots."""
        write_host(tmp_path, gpus=1, busy="30")
        count = 0
        read = Sampler.read

        def counted(self: Sampler) -> Snapshot:
            nonlocal count
            count += 1
            return read(self)

        monkeypatch.setattr(Sampler, "read", counted)

        async def view(hub: Hub) -> list[Snapshot]:
            found = []
            async with aclosing(hub.watch()) as snapshots:
                async for snapshot in snapshots:
                    found.append(snapshot)
                    if len(found) == 5:
                        break
            return found

        async def test() -> None:
            async with opened(tmp_path) as hub:
                everything = await asyncio.gather(*(view(hub) for _ in range(200)))
                assert len({id(found) for seen in everything for found in seen}) <= count
                assert count < 50

        run(test)

    def test_a_slow_viewer_skips_and_holds_nobody_up(self, tmp_path: Path) -> None:
        """One that takes nothing keeps one Snapshot, the newest."""
        write_host(tmp_path, gpus=1, busy="30")

        async def test() -> None:
            async with opened(tmp_path, 0.01) as hub, aclosing(hub.watch()) as slow:
                first = await anext(slow)
                seen = 0
                async with aclosing(hub.watch()) as fast:
                    async for _ in fast:
                        seen += 1
                        if seen == 30:
                            break
                newest = hub.latest
                again = await anext(slow)
                assert newest is not None
                assert again.time_seconds >= newest.time_seconds > first.time_seconds

        run(test)

    def test_nothing_is_read_when_nobody_looks(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """Neither before the first viewer nor after the last; recording counts as one."""
        write_host(tmp_path, gpus=1, busy="30")
        names: list[str] = []
        monkeypatch.setattr(roots, "on_read", names.append)

        async def test() -> None:
            async with opened(tmp_path) as hub:
                assert not names
                await until(hub, lambda found: len(found.samples) == 2)
                await at_rest(hub)
                names.clear()
                await asyncio.sleep(0.3)
                assert not names
                assert hub.history.times(900)
                with hub.keep():
                    before = len(hub.history.times(900))
                    while not names or len(hub.history.times(900)) == before:
                        await asyncio.sleep(0.02)
                await at_rest(hub)
                await until(hub, lambda found: bool(found.samples))

        run(test)

    def test_dropped_viewers_leave_nothing(self, tmp_path: Path) -> None:
        """Hundreds that come and go, some cancelled while they wait, some simply forgotten."""
        write_host(tmp_path, gpus=1, busy="30")

        async def view(hub: Hub) -> None:
            async for _ in hub.watch():
                pass

        async def test() -> None:
            async with opened(tmp_path) as hub:
                for _ in range(20):
                    tasks = [asyncio.create_task(view(hub)) for _ in range(20)]
                    await asyncio.sleep(0.01)
                    for task in tasks:
                        task.cancel()
                    await asyncio.gather(*tasks, return_exceptions=True)
                forgotten = hub.watch()
                await anext(forgotten)
                del forgotten
                gc.collect()
                await at_rest(hub)
                assert not hub._viewers

        run(test)

    def test_closing_ends_every_iteration(self, tmp_path: Path) -> None:
        """Viewers do not wait for ever, and the threads end."""
        write_host(tmp_path, gpus=1, busy="30")
        before = set(threading.enumerate())  # other tests of this process share one

        async def test() -> None:
            hub = Hub(tmp_path, 0.05)
            started = asyncio.Event()

            async def view() -> str:
                async for _ in hub.watch():
                    started.set()
                return "ended"

            task = asyncio.create_task(view())
            await started.wait()
            await hub.close()
            assert await task == "ended"
            assert [found async for found in hub.watch()] == []

        run(test)
        end = time.monotonic() + TIMEOUT_SECONDS
        while set(threading.enumerate()) - before:
            assert time.monotonic() < end
            time.sleep(0.01)


class TestHosts:
    """Devices that come, go, sleep and hang."""

    def test_devices_are_found_again(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """A card that vanishes leaves the list; one more is added to it."""
        monkeypatch.setattr("rocmlab.telemetry.hub.FIND_SECONDS", 0.1)
        live = Live(tmp_path, gpus=2, busy="30", faults=["vanish:1:10"])

        async def test() -> None:
            async with opened(tmp_path) as hub:
                await until(hub, lambda found: loads(found) == [30, 30])
                live.step(11.0)
                await until(hub, lambda found: loads(found) == [30])
                write_host(tmp_path, gpus=3, busy="60")
                await until(hub, lambda found: loads(found) == [60, 60, 60])
                assert len(hub.devices) == 4

        run(test)

    def test_a_card_that_hangs_stops_nobody(self, tmp_path: Path) -> None:
        """The event loop continues, and so do the readings of the other card."""
        write_host(tmp_path, gpus=2, busy="30")

        async def test() -> None:
            async with opened(tmp_path) as hub:
                first = await until(hub, lambda found: loads(found) == [30, 30])
                address = next(name for name in first.samples if name != "cpu")
                folder = (tmp_path / "sys/bus/pci/devices" / address).resolve().relative_to(tmp_path.resolve())
                (tmp_path / roots.FAULTS_FILE).write_text(json.dumps({f"{folder}/gpu_busy_percent": "hang"}))
                await until(hub, lambda found: loads(found) == [None, 30])
                (tmp_path / roots.FAULTS_FILE).unlink()
                await until(hub, lambda found: loads(found) == [30, 30])

        run(test)

    def test_sleeping_cards_are_asked_less_often(self, tmp_path: Path) -> None:
        """While all sleep there is time; as soon as one is awake there is not."""
        write_host(tmp_path, gpus=2, busy="30", faults=["asleep"])

        async def test() -> None:
            async with opened(tmp_path) as hub:
                found = await until(hub, lambda found: len(found.samples) == 3)
                assert [sample.is_asleep for name, sample in found.samples.items() if name != "cpu"] == [True, True]
                assert hub._pause_seconds() > 1
                write_host(tmp_path, gpus=2, busy="30", faults=["asleep:1"])
                await until(hub, lambda found: loads(found) == [30, None])
                assert hub._pause_seconds() == 0.05

        run(test)

    def test_a_defect_in_finding_devices_is_a_problem(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """The readings go on with the devices of before; when it works again nothing is said any more."""
        monkeypatch.setattr("rocmlab.telemetry.hub.FIND_SECONDS", 0.05)
        write_host(tmp_path, gpus=1, busy="30")

        def defective(root: Path) -> None:
            raise KeyError("on purpose")

        async def test() -> None:
            async with opened(tmp_path) as hub:
                await until(hub, lambda found: loads(found) == [30])
                assert list(hub.problems) == []
                with monkeypatch.context() as patch:
                    patch.setattr("rocmlab.telemetry.hub.survey", defective)
                    write_host(tmp_path, gpus=2, busy="40")
                    found = await until(hub, lambda _: bool(hub.problems))
                    assert "the devices could not be found" in hub.problems[0].what
                    assert "on purpose" in hub.problems[0].why
                    assert len(loads(found)) == 1
                await until(hub, lambda found: loads(found) == [40, 40] and not hub.problems)

        run(test)


class Threads:
    """Starts threads in place of `background.start`, but for those for which there is none left."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.missing = 0
        self._start = background.start
        monkeypatch.setattr(background, "start", self.start)

    def start(self, work: Callable[[], Any]) -> Any:
        """Do it, or raise what Python does at the limit of processes."""
        if self.missing:
            self.missing -= 1
            raise RuntimeError("can't start new thread")
        return self._start(work)


class TestThreads:
    """What happens where none can be started for a moment."""

    def test_a_viewer_hears_of_it_and_then_sees_more(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """The error is a problem until the next reading, which is tried as long as someone looks."""
        write_host(tmp_path, gpus=1, busy="30")
        threads = Threads(monkeypatch)

        async def test() -> None:
            async with opened(tmp_path) as hub, aclosing(hub.watch()) as snapshots:
                await anext(snapshots)
                await anext(snapshots)
                threads.missing = 1_000_000
                end = time.monotonic() + TIMEOUT_SECONDS
                while not (found := [each.why for each in hub.problems if "could not be read" in each.what]):
                    assert time.monotonic() < end
                    await asyncio.sleep(0.01)
                assert found == ["RuntimeError: can't start new thread"]
                assert hub.latest is not None
                last = hub.latest.time_seconds
                threads.missing = 0
                while (await anext(snapshots)).time_seconds <= last:
                    pass
                assert not [each for each in hub.problems if "could not be read" in each.what]

        run(test)

    def test_a_recording_continues(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """One thread that cannot be started does not end it."""
        write_host(tmp_path, gpus=1, busy="30")
        threads = Threads(monkeypatch)

        async def test() -> None:
            async with opened(tmp_path) as hub:
                with hub.keep():
                    while len(hub.history.times(900)) < 2:
                        await asyncio.sleep(0.01)
                    threads.missing = 1
                    while threads.missing:
                        await asyncio.sleep(0.01)
                    before = len(hub.history.times(900))
                    end = time.monotonic() + TIMEOUT_SECONDS
                    while len(hub.history.times(900)) < before + 2:
                        assert time.monotonic() < end
                        await asyncio.sleep(0.01)

        run(test)


class TestProcesses:
    """Who uses the devices."""

    def test_those_of_the_last_viewing_are_forgotten(self, tmp_path: Path) -> None:
        """The next viewer sees none before they have been looked for again."""
        write_host(tmp_path, gpus=1, busy="30")
        may_answer = threading.Event()
        may_answer.set()
        calls: list[int] = []

        def attribute(devices: Sequence[Device]) -> list[GpuProcess]:
            may_answer.wait(TIMEOUT_SECONDS)
            calls.append(100 + len(calls))
            return [GpuProcess(device_id(devices[0]), calls[-1])]

        async def test() -> None:
            async with opened(tmp_path, 0.02, attribute=attribute, processes_seconds=0.05) as hub:
                await until(hub, lambda found: bool(found.processes))
                await at_rest(hub)
                may_answer.clear()
                last = calls[-1]
                async with aclosing(hub.watch()) as snapshots:
                    for _ in range(5):
                        assert (await anext(snapshots)).processes is None
                    may_answer.set()
                await until(hub, lambda found: bool(found.processes) and found.processes[0].pid > last)

        run(test)

    def test_a_viewer_who_only_glances_is_no_end(self, tmp_path: Path) -> None:
        """Gone before the first reading, and so is the next one: whoever comes then sees the devices."""
        write_host(tmp_path, gpus=1, busy="30")

        def attribute(devices: Sequence[Device]) -> list[GpuProcess]:
            return [GpuProcess(device_id(devices[0]), 100)]

        async def test() -> None:
            async with opened(tmp_path, 0.02, attribute=attribute) as hub:
                await until(hub, lambda found: bool(found.processes))
                await at_rest(hub)
                for _ in range(2):
                    with hub.keep():
                        pass
                    await at_rest(hub)
                await until(hub, lambda found: bool(found.processes))

        run(test)

    def test_looking_for_them_may_hang(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """Devices are still found again; the processes of before are not shown, and a problem says why."""
        monkeypatch.setattr("rocmlab.telemetry.hub.FIND_SECONDS", 0.05)
        monkeypatch.setattr("rocmlab.telemetry.hub.LONG_SECONDS", 0.5)
        write_host(tmp_path, gpus=1, busy="30")
        may_answer = threading.Event()
        may_answer.set()

        def attribute(devices: Sequence[Device]) -> list[GpuProcess]:
            may_answer.wait(TIMEOUT_SECONDS)
            return [GpuProcess(device_id(devices[0]), 100)]

        def is_told(hub: Hub) -> bool:
            return any("looking for the processes" in problem.what for problem in hub.problems)

        async def test() -> None:
            async with opened(tmp_path, 0.02, attribute=attribute, processes_seconds=0.05) as hub:
                await until(hub, lambda found: bool(found.processes))
                may_answer.clear()
                async with aclosing(hub.watch()) as _:
                    await until(hub, lambda found: found.processes is None and is_told(hub))
                    write_host(tmp_path, gpus=2, busy="40")
                    await until(hub, lambda found: loads(found) == [40, 40])
                    assert is_told(hub)
                    may_answer.set()
                    await until(hub, lambda found: bool(found.processes) and not is_told(hub))

        run(test)

    def test_processes_are_part_of_each_snapshot(self, tmp_path: Path) -> None:
        """They are requested less often than the devices are read; an error is not an end."""
        write_host(tmp_path, gpus=1, busy="30")
        calls: list[int] = []

        def attribute(devices: Sequence[Device]) -> list[GpuProcess]:
            calls.append(len(devices))
            if len(calls) == 2:
                raise ValueError("an odd process")
            return [GpuProcess(device_id(devices[0]), 100 + len(calls))]

        async def test() -> None:
            async with opened(tmp_path, 0.02, attribute=attribute, processes_seconds=0.2) as hub:
                await until(hub, lambda found: bool(found.processes) and found.processes[0].pid == 101)
                await until(hub, lambda found: found.processes is None)
                await until(hub, lambda found: bool(found.processes) and found.processes[0].pid > 102)

        run(test)
        assert set(calls) == {2}
