"""All devices at one instant: whatever one of them does, the others are read."""

from __future__ import annotations

import gc
import json
import os
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from rocmlab.devices import Device, Sample, discover, roots, sample
from rocmlab.devices.card_reader import CardReader
from rocmlab.simulation import Live, write_host
from rocmlab.telemetry.energy import EnergyMeter
from rocmlab.telemetry.model import device_id
from rocmlab.telemetry.sampler import Sampler

TIMEOUT_SECONDS = 60.0


def until(condition: Callable[[], object]) -> None:
    """Wait for a condition, with patience for a loaded machine."""
    end = time.monotonic() + TIMEOUT_SECONDS
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


def gpus(root: Path) -> list[Device]:
    """Return the AMD GPUs of a simulated host."""
    return [device for device in discover(root, {}) if device.backend == "rocm"]


def set_faults(root: Path, faults: dict[str, str]) -> None:
    """Have files fail or hang, by their path below the root."""
    path = root / roots.FAULTS_FILE
    path.write_text(json.dumps(faults))


def busy_file(root: Path, device: Device) -> str:
    """Return the path of a card's load below the root."""
    return str((root / "sys/bus/pci/devices" / str(device.pci_address)).resolve().relative_to(root.resolve())) + (
        "/gpu_busy_percent"
    )


class TestSnapshot:
    """What a reading has."""

    @pytest.mark.parametrize("profile", ["radeon", "instinct", "apu", "mixed"])
    @pytest.mark.parametrize("limit_seconds", [None, TIMEOUT_SECONDS])
    def test_every_device_has_its_sample(self, tmp_path: Path, profile: str, limit_seconds: float | None) -> None:
        """All of them, the CPU too, each as `sample` reads it."""
        live = Live(tmp_path, profile=profile, busy="waves")
        found = discover(tmp_path, {})
        sampler = Sampler(found, tmp_path, limit_seconds)

        for seconds in (0.0, 20.0):
            live.step(seconds)
            snapshot = sampler.read()

            assert list(snapshot.samples) == [device_id(device) for device in found]
            for device in found:
                expected = replace(sample(device, tmp_path), time_seconds=0)
                assert replace(snapshot.samples[device_id(device)], time_seconds=0) == expected
            assert snapshot.processes is None
            assert abs(snapshot.time_seconds - time.time()) < TIMEOUT_SECONDS
        json.dumps(snapshot.as_dict())
        sampler.close()

    def test_partitions_do_not_count_twice(self, tmp_path: Path) -> None:
        """The first partition speaks for its GPU; of the others nothing is known."""
        write_host(tmp_path, profile="instinct", gpus=1, partition="cpx", busy="50")
        sampler = Sampler(gpus(tmp_path), tmp_path)

        samples = list(sampler.read().samples.values())

        assert [found.busy_percent for found in samples] == [50, *[None] * 7]
        sampler.close()


class TestTrouble:
    """Devices that do not answer as they should."""

    @pytest.mark.slow
    def test_a_card_that_hangs_costs_the_others_nothing(self, tmp_path: Path) -> None:
        """It is waited for once; the others are read, and it is read again when it has come back."""
        write_host(tmp_path, gpus=3, busy="40")
        found = gpus(tmp_path)
        sampler = Sampler(found, tmp_path, limit_seconds=1.0)
        names = [device_id(device) for device in found]
        set_faults(tmp_path, {busy_file(tmp_path, found[1]): "hang"})

        until(lambda: sampler.read() and sampler.hanging == [names[1]])
        threads = threading.active_count()
        until(lambda: [one.busy_percent for one in sampler.read().samples.values()] == [40, None, 40])

        assert threading.active_count() <= threads + 1
        (tmp_path / roots.FAULTS_FILE).unlink()
        until(lambda: [one.busy_percent for one in sampler.read().samples.values()] == [40, 40, 40])
        assert sampler.hanging == []
        sampler.close()

    def test_all_cards_may_hang(self, tmp_path: Path) -> None:
        """A reading still ends, and so does the sampler."""
        write_host(tmp_path, gpus=2, busy="40", faults=["hang"])
        sampler = Sampler(gpus(tmp_path), tmp_path, limit_seconds=0.2)

        snapshot = sampler.read()

        assert [found.busy_percent for found in snapshot.samples.values()] == [None, None]
        assert len(sampler.hanging) == 2
        sampler.close()
        (tmp_path / roots.FAULTS_FILE).unlink()

    @pytest.mark.slow
    def test_most_cards_hang_and_the_others_are_read(self, tmp_path: Path) -> None:
        """Six of eight take no longer than one, and the two that answer have their samples in the same reading."""
        write_host(tmp_path, profile="instinct", gpus=8, busy="40", faults=[f"hang:{place}" for place in range(6)])
        found = gpus(tmp_path)
        before = set(threading.enumerate())
        sampler = Sampler(found, tmp_path, limit_seconds=4.0)
        began = time.monotonic()

        snapshot = sampler.read()

        assert 4 <= time.monotonic() - began < 20  # six one after another would take 24
        assert [one.power_watts is None for one in snapshot.samples.values()] == [*[True] * 6, False, False]
        assert sampler.hanging == [device_id(device) for device in found[:6]]
        (tmp_path / roots.FAULTS_FILE).unlink()
        until(lambda: sampler.read() and not sampler.hanging)
        sampler.close()
        until(lambda: not set(threading.enumerate()) - before)

    @pytest.mark.parametrize("limit_seconds", [None, TIMEOUT_SECONDS])
    def test_a_defect_of_one_reader_is_told_once(
        self,
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
        caplog: pytest.LogCaptureFixture,
        limit_seconds: float | None,
    ) -> None:
        """Nothing is known of its device, which does not count as hanging; it is retried later."""
        monkeypatch.setattr("rocmlab.telemetry.sampler.AGAIN_SECONDS", 0.0)
        write_host(tmp_path, gpus=2, busy="40")
        found = gpus(tmp_path)
        read = CardReader.read

        def defective(self: CardReader) -> Sample:
            if str(self._folder).endswith(str(found[0].pci_address)):
                raise KeyError("on purpose")
            return read(self)

        sampler = Sampler(found, tmp_path, limit_seconds)
        with monkeypatch.context() as patch:
            patch.setattr(CardReader, "read", defective)
            for _ in range(3):
                assert [one.busy_percent for one in sampler.read().samples.values()] == [None, 40]

        assert sampler.hanging == []
        (record,) = [record for record in caplog.records if record.name == "rocmlab"]
        assert device_id(found[0]) in record.getMessage()
        assert [one.busy_percent for one in sampler.read().samples.values()] == [40, 40]
        sampler.close()

    @pytest.mark.slow
    def test_a_sampler_that_is_forgotten_leaves_nothing(self, tmp_path: Path) -> None:
        """Neither a thread nor open files, though no one closes it."""
        write_host(tmp_path, gpus=2, busy="40")
        gc.collect()
        threads, files = set(threading.enumerate()), len(os.listdir("/proc/self/fd"))
        sampler = Sampler(gpus(tmp_path), tmp_path, TIMEOUT_SECONDS)
        sampler.read()
        assert len(os.listdir("/proc/self/fd")) > files + 20

        del sampler
        gc.collect()

        until(lambda: not set(threading.enumerate()) - threads)
        until(lambda: gc.collect() >= 0 and len(os.listdir("/proc/self/fd")) <= files)

    def test_a_card_that_vanishes_and_returns(self, tmp_path: Path) -> None:
        """It stays in the snapshot, and says nothing as long as it is gone."""
        live = Live(tmp_path, gpus=2, busy="50", faults=["vanish:1:10"])
        sampler = Sampler(gpus(tmp_path), tmp_path, TIMEOUT_SECONDS)
        assert [found.busy_percent for found in sampler.read().samples.values()] == [50, 50]

        live.step(11.0)

        gone = list(sampler.read().samples.values())[1]
        assert gone == Sample(gone.time_seconds)
        write_host(tmp_path, gpus=2, busy="70")
        assert [found.busy_percent for found in sampler.read().samples.values()] == [70, 70]
        sampler.close()

    def test_a_sleeping_card_is_not_woken(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """Of its files only the one that reports it is read."""
        write_host(tmp_path, gpus=2, busy="50", faults=["asleep:0"])
        found = gpus(tmp_path)
        sampler = Sampler(found, tmp_path, TIMEOUT_SECONDS)
        names: list[str] = []
        monkeypatch.setattr(roots, "on_read", names.append)

        snapshots = [sampler.read(), sampler.read()]

        assert [one.is_asleep for one in snapshots[1].samples.values()] == [True, False]
        touched = {Path(name).name for name in names if f"/{found[0].pci_address}/" in name}
        assert touched == {"runtime_status"}
        sampler.close()

    def test_other_devices_may_come(self, tmp_path: Path) -> None:
        """Those that stay keep their energy; those that are gone give their files back."""
        live = Live(tmp_path, profile="instinct", gpus=4, busy="80")
        found = gpus(tmp_path)
        sampler = Sampler(found[:2], tmp_path, TIMEOUT_SECONDS)
        sampler.read()
        live.step(10.0)
        kept = sampler.read().energy_joules[device_id(found[1])]

        sampler.devices = found[1:]

        snapshot = sampler.read()
        assert list(snapshot.samples) == [device_id(device) for device in found[1:]]
        assert snapshot.energy_joules[device_id(found[1])] >= kept > 0
        sampler.close()


class TestEnergy:
    """Joules since the sampler was started."""

    def test_a_card_that_counts_is_believed(self, tmp_path: Path) -> None:
        """Ten simulated seconds are ten seconds of its power, however fast they passed here."""
        live = Live(tmp_path, profile="instinct", gpus=1, busy="80")
        sampler = Sampler(gpus(tmp_path), tmp_path, TIMEOUT_SECONDS)
        (first,) = sampler.read().samples.values()

        live.step(10.0)

        (joules,) = sampler.read().energy_joules.values()
        assert joules == pytest.approx(10 * first.power_watts, rel=0.05)
        sampler.close()

    def test_power_is_integrated_by_trapezoids(self) -> None:
        """From 100 W to 300 W within 10 s are 2 kJ; nothing is known after one reading."""
        meter = EnergyMeter()
        meter.add(0.0, 100.0, None)
        assert meter.joules is None

        meter.add(10.0, 300.0, None)
        meter.add(12.0, 300.0, None)

        assert meter.joules == 2600

    def test_nothing_is_claimed_for_a_long_silence(self) -> None:
        """A card slept for an hour, or no one read it; its own count knows."""
        silent, counting = EnergyMeter(), EnergyMeter()
        for meter, counts in ((silent, (None,) * 3), (counting, (0.0, 200.0, 50_000.0))):
            for now, count in zip((0.0, 2.0, 3600.0), counts, strict=True):
                meter.add(now, 100.0, count)

        assert (silent.joules, silent.is_whole) == (200, False)
        assert (counting.joules, counting.is_whole) == (50_000, True)

    def test_nothing_is_claimed_for_a_sleep(self) -> None:
        """However short it was: from the power before and after it does not follow; the card's own count knows."""
        silent, counting = EnergyMeter(), EnergyMeter()
        for meter, counts in ((silent, (None,) * 4), (counting, (0.0, 600.0, 900.0, 1500.0))):
            meter.pause()  # before the first power it is not counted
            meter.add(0.0, 300.0, counts[0])
            meter.add(2.0, 300.0, counts[1])
            before = meter.is_whole
            meter.pause()
            meter.add(80.0, 300.0, counts[2])
            meter.add(82.0, 300.0, counts[3])
            assert before

        assert (silent.joules, silent.is_whole) == (1200, False)
        assert (counting.joules, counting.is_whole) == (1500, True)
        counting.pause()
        counting.end(84.0, 7.0)
        assert not counting.is_whole  # how much it counted since it fell asleep is not known

    def test_a_card_that_slept_has_used_more(self, tmp_path: Path) -> None:
        """The sampler adds nothing between the reading before the sleep and that after it."""
        write_host(tmp_path, gpus=1, busy="50")
        (device,) = gpus(tmp_path)
        name, status = device_id(device), tmp_path / f"sys/bus/pci/devices/{device.pci_address}/power/runtime_status"
        sampler = Sampler([device], tmp_path, TIMEOUT_SECONDS)
        sampler.read()
        before = sampler.read().energy_joules[name]
        was_whole = sampler.is_whole(name)

        for state in ("suspended\n", "active\n"):
            status.write_text(state)
            after = sampler.read().energy_joules[name]

        assert (was_whole, sampler.is_whole(name)) == (True, False)
        assert after == before
        sampler.close()

    @pytest.mark.parametrize("factor", [0.0, 0.1, 5.0])
    def test_a_count_that_cannot_be_true_is_not_believed(self, factor: float) -> None:
        """It stands still, or has another unit than its revision says."""
        meter = EnergyMeter()

        for second in range(61):
            meter.add(float(second), 200.0, 1000 + factor * 200 * second)

        assert meter.joules == pytest.approx(12_000, rel=0.15 if factor < 1 else 0.9)

    def test_it_never_falls_when_the_count_begins_anew(self) -> None:
        """The driver was loaded again, and one reading failed."""
        meter, seen = EnergyMeter(), []
        for second in range(100):
            count = None if second == 30 else 100.0 * second if second < 50 else 100.0 * (second - 50)
            meter.add(float(second), 100.0, count)
            seen.append(meter.joules or 0.0)

        assert seen == sorted(seen)
        assert seen[-1] == pytest.approx(9_900, rel=0.03)
