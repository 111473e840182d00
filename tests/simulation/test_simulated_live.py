"""Moving values of simulated hosts, by times that the tests give."""

from __future__ import annotations

import os
import threading
from collections import Counter
from pathlib import Path

import pytest

from rocmlab.devices import discover, sample
from rocmlab.devices.model import Sample
from rocmlab.simulation import Live
from rocmlab.simulation.trees import rewrite


def samples(root: Path) -> list[Sample]:
    """What the AMD GPUs of a host report now, in HIP order."""
    return [sample(device, root) for device in discover(root, {}) if device.backend == "rocm"]


class TestPatterns:
    """How busy GPUs are over time."""

    @pytest.mark.parametrize(("busy", "percent"), [("idle", 0), ("steady", 97), ("35", 35)])
    def test_some_stay_as_they_are(self, tmp_path: Path, busy: str, percent: int) -> None:
        """Load is the same at all times."""
        live = Live(tmp_path, busy=busy)
        seen = []
        for seconds in (1.0, 30.0, 600.0):
            live.step(seconds)
            seen += [read.busy_percent for read in samples(tmp_path)]

        assert set(seen) == {percent}

    def test_training_works_hard_and_pauses_at_each_epoch(self, tmp_path: Path) -> None:
        """Most of the time above 90 percent, now and then near nothing."""
        live = Live(tmp_path, gpus=1, busy="training")
        seen = []
        for seconds in range(120):
            live.step(float(seconds))
            seen.append(samples(tmp_path)[0].busy_percent or 0)

        assert 6 <= sum(percent < 20 for percent in seen) <= 12
        assert sum(percent > 90 for percent in seen) > 100

    def test_waves_are_not_the_same_on_all_gpus(self, tmp_path: Path) -> None:
        """Each GPU is in another phase."""
        Live(tmp_path, gpus=4, busy="waves")

        assert len({read.busy_percent for read in samples(tmp_path)}) > 2

    def test_heat_follows_slowly(self, tmp_path: Path) -> None:
        """Power drops at once at the end of an epoch, temperature takes its time."""
        live = Live(tmp_path, gpus=1, busy="training")
        live.step(28.0)
        working = samples(tmp_path)[0]

        live.step(30.0)

        paused = samples(tmp_path)[0]
        assert paused.power_watts < working.power_watts / 2
        assert working.junction_celsius - 10 < paused.junction_celsius < working.junction_celsius

    def test_steps_depend_on_time_alone(self, tmp_path: Path) -> None:
        """Two hosts stepped alike hold the same files."""
        for name in ("a", "b"):
            live = Live(tmp_path / name, profile="mixed", busy="waves", seed=3)
            for seconds in (2.0, 9.0, 31.0):
                live.step(seconds)
        first, second = (
            {path.relative_to(tmp_path / name): path.read_bytes() for path in (tmp_path / name).rglob("*_percent")}
            for name in ("a", "b")
        )

        assert first == second

    def test_a_process_comes_and_goes_with_the_load(self, tmp_path: Path) -> None:
        """KFD's list is empty while the GPU rests."""
        live = Live(tmp_path, gpus=1, busy="waves", faults=())
        folder = tmp_path / "sys/class/kfd/kfd/proc"
        live.pattern = lambda gpu, seconds: 90.0 if 10 <= seconds < 20 else 0.0
        counts = []
        for seconds in (5.0, 15.0, 25.0):
            live.step(seconds)
            counts.append(len(list(folder.iterdir())))

        assert counts == [0, 1, 0]


class TestReaders:
    """Those who read while values change."""

    def test_a_kept_descriptor_sees_the_change(self, tmp_path: Path) -> None:
        """Samplers keep files open; sysfs gives them new values, and so do we."""
        live = Live(tmp_path, gpus=1, busy="waves")
        handle = os.open(next((tmp_path / "sys/devices").rglob("gpu_busy_percent")), os.O_RDONLY)
        try:
            before = os.pread(handle, 64, 0)
            live.step(20.0)
            assert os.pread(handle, 64, 0) != before
        finally:
            os.close(handle)

    def test_no_reader_ever_sees_an_empty_file(self, tmp_path: Path) -> None:
        """Texts of different lengths written without a pause are never missing, and mostly read whole."""
        path = tmp_path / "value"
        values = [b"7\n", b"100\n", b"25753026560\n", b"36\n"]
        path.write_bytes(values[0])
        seen: Counter[bytes] = Counter()
        done = threading.Event()

        def read() -> None:
            while not done.is_set():
                seen[path.read_bytes().strip()] += 1

        reader = threading.Thread(target=read)
        reader.start()
        for turn in range(3000):
            rewrite(path, values[turn % len(values)])
        done.set()
        reader.join()

        assert seen[b""] == 0
        # A file's text and length cannot change at once. How often that shows depends on the machine: 1 to 6 % here.
        assert sum(seen[value.strip()] for value in values) > 0.7 * seen.total()
        assert path.read_bytes() == values[2999 % len(values)]

    def test_a_card_vanishes_while_it_runs(self, tmp_path: Path) -> None:
        """It is there before its time, and gone after with all that was its own."""
        live = Live(tmp_path, gpus=3, busy="steady", faults=["vanish:1:10"])
        live.step(9.0)
        before = [device.pci_address for device in discover(tmp_path, {}) if device.backend == "rocm"]

        live.step(10.0)

        after = [device.pci_address for device in discover(tmp_path, {}) if device.backend == "rocm"]
        assert after == [before[0], before[2]]
        assert not (tmp_path / "sys/bus/pci/devices" / str(before[1])).is_symlink()
        assert not (tmp_path / "dev/dri/renderD129").exists()
        live.step(11.0)
        assert [read.busy_percent for read in samples(tmp_path)] == [97, 97]
