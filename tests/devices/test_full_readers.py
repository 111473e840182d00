"""Full readings through open descriptors are the Samples of `sample`, at every instant and with every fault."""

from __future__ import annotations

import gc
import json
import os
import random
import resource
import struct
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rocmlab.devices import Device, Sample, cuda, discover, gpu_metrics, kept_file, nvml, roots, sample
from rocmlab.devices.card_reader import CardReader
from rocmlab.devices.readers import Reader, Readers
from rocmlab.simulation import KINDS, PRODUCTS, Live, write_host

HANGS = ("hang",)  # a reading that never returns is the sampler's business


def gpus(root: Path) -> list[Device]:
    """Return the AMD GPUs of a simulated host."""
    return [device for device in discover(root, {}) if device.backend == "rocm"]


def opened(root: Path, **options: float) -> list[tuple[Device, Reader]]:
    """Return each GPU with what reads it."""
    readers = Readers(root)
    found = [(device, readers.open(device, full=True, **options)) for device in gpus(root)]
    return [(device, reader) for device, reader in found if reader is not None]


def assert_equal(readers: list[tuple[Device, Reader]], root: Path) -> None:
    """Read each device both ways."""
    assert readers
    for device, reader in readers:
        expected = sample(device, root)
        assert replace(reader.read(), time_seconds=0) == replace(expected, time_seconds=0)


def descriptors() -> int:
    """Return how many descriptors this process has open."""
    return len(os.listdir("/proc/self/fd"))


def folder_of(device: Device, root: Path) -> Path:
    """Return a card's folder."""
    return root / "sys/bus/pci/devices" / str(device.pci_address)


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of all system files and folders that are read."""
    names: list[str] = []
    monkeypatch.setattr(roots, "on_read", names.append)
    return names


class TestEquality:
    """Nothing differs from a Sample but the time."""

    @pytest.mark.long
    @pytest.mark.parametrize("profile", ["radeon", "instinct", "apu", "mixed"])
    @pytest.mark.parametrize("busy", ["waves", "training", "100"])
    def test_every_profile_as_it_moves(self, tmp_path: Path, profile: str, busy: str) -> None:
        """Values that change under open descriptors are followed."""
        live = Live(tmp_path, profile=profile, busy=busy)
        readers = opened(tmp_path)

        for seconds in (0.0, 0.5, 7.0, 30.0, 31.0, 300.0):
            live.step(seconds)
            assert_equal(readers, tmp_path)
            assert_equal(readers, tmp_path)

    @pytest.mark.parametrize("product", sorted(PRODUCTS))
    def test_every_product(self, tmp_path: Path, product: str) -> None:
        """Each has another set of files, and another revision of the table."""
        profile = "apu" if PRODUCTS[product].is_apu else "radeon"
        live = Live(tmp_path, profile=profile, gpus=1, products=(product,), busy="waves")
        readers = opened(tmp_path)

        for seconds in (0.0, 10.0, 20.0):
            live.step(seconds)
            assert_equal(readers, tmp_path)

    @pytest.mark.long
    @pytest.mark.slow
    @pytest.mark.parametrize("kind", sorted(set(KINDS) - set(HANGS)))
    @pytest.mark.parametrize("profile", ["radeon", "instinct", "mixed"])
    def test_every_fault(self, tmp_path: Path, kind: str, profile: str) -> None:
        """Faults that come and go while descriptors are open, and those that are there from the beginning."""
        Live(tmp_path, profile=profile, gpus=2, busy="waves")
        readers = opened(tmp_path)
        assert_equal(readers, tmp_path)

        for faults in ([f"{kind}:0"], [kind], []):
            live = Live(tmp_path, profile=profile, gpus=2, busy="waves", faults=faults)
            assert_equal(readers, tmp_path)
            live.step(3.0)
            assert_equal(readers, tmp_path)
            if fresh := opened(tmp_path):
                assert_equal(fresh, tmp_path)

    @pytest.mark.slow
    @pytest.mark.long
    @pytest.mark.parametrize("word", ["EIO", "EBUSY", "EPERM"])
    def test_every_file_that_fails(self, tmp_path: Path, word: str) -> None:
        """Each file by itself, from one reading to the next: its field goes to the next source, and comes back."""
        live = Live(tmp_path, gpus=1, busy="waves", products=("mi210",), profile="instinct")
        readers = opened(tmp_path)
        folder = os.path.relpath(os.path.realpath(folder_of(readers[0][0], tmp_path)), tmp_path)
        names = [os.path.relpath(path, tmp_path) for path in (tmp_path / folder).rglob("*") if is_read_again(path)]
        faults = tmp_path / roots.FAULTS_FILE

        for seconds, name in enumerate(sorted(names)):
            faults.write_text(json.dumps({name: word}))
            os.utime(faults, ns=(seconds * 10**9, seconds * 10**9))
            live.step(float(seconds))
            assert_equal(readers, tmp_path)

        faults.unlink()
        assert_equal(readers, tmp_path)
        assert readers[0][1].read().busy_percent is not None

    @pytest.mark.parametrize("seed", range(4))
    def test_damaged_content(self, tmp_path: Path, seed: int) -> None:
        """Whatever a file holds, both say the same of it."""
        chance = random.Random(seed)
        write_host(tmp_path, gpus=1, busy="60", products=("w7900",))
        readers = opened(tmp_path)
        folder = Path(os.path.realpath(folder_of(readers[0][0], tmp_path)))
        paths = sorted(path for path in folder.rglob("*") if is_read_again(path))
        contents = [b"", b"\n", b"0\n", b"-1\n", b"101\n", b"150\n", b"1_0\n", b"+5\n", b"12", b" 7 \n", b"9" * 25]
        contents += [
            b"\xff\xfe",
            b"5\0\0\0",
            b"1\n2\n",
            b"x" * 5000,
            b"18446744073709551615\n",
            b"007\n",
            b"\xd9\xa3\n",
        ]
        contents += [b"65000\n", b"100000000\n", b"0: 500Mhz *\n1: 900Mhz\n", b"S: 19Mhz *\n0: 500Mhz\n1: 900Mhz\n"]

        for _ in range(60):
            path = chance.choice(paths)
            path.write_bytes(chance.choice(contents))
            assert_equal(readers, tmp_path)


# Files that need not be read again as long as the driver is loaded: sensors.CONSTANT, and which sensor is which.
CONSTANT_NAMES = (
    *("mem_info_vram_total", "mem_info_gtt_total", "power1_cap_max", "fan1_max", "name", "uevent"),
    *("temp1_crit", "temp2_crit", "temp3_crit"),
)


def is_read_again(path: Path) -> bool:
    """Return whether a reader must notice what becomes of a file."""
    return path.is_file() and path.name not in CONSTANT_NAMES and not path.name.endswith("_label")


class TestCards:
    """What becomes of open descriptors."""

    def test_nothing_is_opened_twice_and_all_is_given_back(self, tmp_path: Path) -> None:
        """The second reading opens nothing; after the end none is left."""
        write_host(tmp_path, gpus=1, profile="instinct", busy="50")
        before = descriptors()
        _, reader = opened(tmp_path)[0]

        reader.read()
        first = descriptors()
        reader.read()

        assert first == descriptors() > before
        reader.close()
        assert descriptors() == before
        assert reader.read().busy_percent == 50
        reader.close()

    def test_what_is_dropped_is_closed(self, tmp_path: Path) -> None:
        """Readers of every kind, whose owner forgets to close them."""
        write_host(tmp_path, gpus=2, profile="instinct", busy="50")
        gc.collect()
        before = descriptors()
        few, cpu = Readers(tmp_path).open(gpus(tmp_path)[0]), Readers(tmp_path).open(discover(tmp_path)[-1], full=True)
        readers = [*(reader for _, reader in opened(tmp_path)), few, cpu]
        for reader in readers:
            assert reader is not None
            reader.read()
        assert descriptors() > before + 20

        del reader, readers, few, cpu
        gc.collect()

        assert descriptors() == before

    def test_a_file_that_always_fails_is_left_alone(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """It is opened a few times and then rests, the others are read once each; later it is retried."""
        write_host(tmp_path, gpus=1, busy="50")
        device = gpus(tmp_path)[0]
        (path,) = (folder_of(device, tmp_path) / "hwmon").glob("hwmon*/temp2_input")
        content = path.read_bytes()
        path.unlink()
        path.symlink_to("/proc/self/mem")  # reading its beginning fails with EIO
        calls: list[Any] = []
        pread, open_file = os.pread, roots.open_file
        monkeypatch.setattr(os, "pread", lambda *arguments: calls.append(arguments[0]) or pread(*arguments))
        monkeypatch.setattr(roots, "open_file", lambda name: calls.append(Path(name).name) or open_file(name))
        _, reader = opened(tmp_path)[0]
        counts = []
        for _ in range(10):
            assert reader.read().busy_percent == 50
            counts.append(calls.count("temp2_input"))
        assert counts[-1] == counts[4] < 5
        calls.clear()

        found = reader.read()

        assert found.busy_percent == 50
        assert [call for call in calls if isinstance(call, str)] == []
        assert len(calls) == len(set(calls))  # no file twice
        path.unlink()
        path.write_bytes(content)
        clock = time.monotonic
        monkeypatch.setattr(time, "monotonic", lambda: clock() + kept_file.REST_SECONDS)
        assert replace(reader.read(), time_seconds=0) == replace(sample(device, tmp_path), time_seconds=0)
        assert "temp2_input" in calls
        reader.close()

    def test_old_counts_are_no_sign_of_life(self, tmp_path: Path) -> None:
        """A card of which every file fails tells nothing, however young its counts of memory errors are."""
        write_host(tmp_path, profile="instinct", gpus=1, products=("mi210",), busy="30")
        device, reader = opened(tmp_path, errors_seconds=3600.0)[0]
        assert reader.read().ecc_corrected
        folder = os.path.relpath(os.path.realpath(folder_of(device, tmp_path)), tmp_path)
        names = [os.path.relpath(path, tmp_path) for path in (tmp_path / folder).rglob("*") if path.is_file()]
        (tmp_path / roots.FAULTS_FILE).write_text(json.dumps(dict.fromkeys(names, "EIO")))

        found = reader.read()

        assert found == Sample(found.time_seconds)
        (tmp_path / roots.FAULTS_FILE).unlink()
        assert reader.read().busy_percent == 30

    def test_few_descriptors_are_enough(self, tmp_path: Path) -> None:
        """Of the descriptors that a process may have, half is left to others."""
        write_host(tmp_path, gpus=4, profile="instinct", busy="50")
        limits = resource.getrlimit(resource.RLIMIT_NOFILE)
        before = descriptors()
        resource.setrlimit(resource.RLIMIT_NOFILE, (2 * before + 60, limits[1]))
        try:
            readers = opened(tmp_path)
            assert_equal(readers, tmp_path)
            assert_equal(readers, tmp_path)

            assert descriptors() < before + 45
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, limits)
            for _, reader in readers:
                reader.close()

    def test_a_sleeping_card_is_not_woken(self, tmp_path: Path, reads: list[str]) -> None:
        """Nothing is read but whether it sleeps; awake, asleep again and gone, it is what a Sample says."""
        write_host(tmp_path, gpus=1, busy="50", faults=["asleep:0"])
        device, reader = opened(tmp_path)[0]
        reads.clear()

        found = [reader.read(), reader.read()]

        assert {Path(name).name for name in reads} == {"runtime_status"}
        assert found[0].is_asleep
        assert found[1] == Sample(found[1].time_seconds, is_asleep=True)
        status = folder_of(device, tmp_path) / "power/runtime_status"
        status.write_text("active\n")
        assert reader.read().busy_percent == 50
        status.write_text("suspending\n")
        reads.clear()
        assert reader.read().is_asleep
        assert {Path(name).name for name in reads} == {"runtime_status"}
        Live(tmp_path, gpus=1, busy="50", faults=["vanish:0"])
        assert not reader.read().is_asleep

    def test_a_card_that_vanishes_and_returns(self, tmp_path: Path) -> None:
        """Another card in its place is read, with sensors of another number."""
        live = Live(tmp_path, gpus=2, busy="50", faults=["vanish:1:10"])
        readers = opened(tmp_path)
        assert_equal(readers, tmp_path)

        live.step(11.0)

        assert_equal(readers, tmp_path)
        gone = readers[1][1].read()
        assert gone == Sample(gone.time_seconds)
        write_host(tmp_path, gpus=2, busy="70")
        hwmon = next((folder_of(readers[1][0], tmp_path) / "hwmon").iterdir())
        hwmon.rename(hwmon.with_name("hwmon63"))
        assert_equal(readers, tmp_path)
        assert readers[1][1].read().busy_percent == 70

    def test_a_real_card_that_goes_away_fails_every_reading(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """On a real host deleted files of sysfs say ENODEV; nothing is asked of the folder there."""
        write_host(tmp_path, gpus=1, busy="40")
        device = gpus(tmp_path)[0]
        monkeypatch.setattr(roots, "is_simulated", lambda root: False)
        reader = CardReader(folder_of(device, tmp_path), tmp_path)
        assert reader.read().busy_percent == 40
        for handle in [file.handle for file in reader._card._files]:
            null = os.open("/proc/self/mem", os.O_RDONLY)  # reading its beginning fails with EIO
            os.dup2(null, handle)
            os.close(null)

        again = reader.read()

        assert again.busy_percent == 40  # every file was opened again
        reader.close()

    def test_errors_of_memory_may_be_older(self, tmp_path: Path) -> None:
        """Each look at them asks the card's firmware, so it can be told to ask less often."""
        write_host(tmp_path, profile="instinct", gpus=1, products=("mi210",), busy="30")
        device, seldom = opened(tmp_path, errors_seconds=3600.0)[0]
        assert seldom.read().ecc_corrected["umc"] == 0
        (folder_of(device, tmp_path) / "ras/umc_err_count").write_text("ue: 2\nce: 9\n")
        (folder_of(device, tmp_path) / "gpu_busy_percent").write_text("31\n")

        found = seldom.read()

        assert (found.ecc_corrected["umc"], found.busy_percent) == (0, 31)
        assert opened(tmp_path)[0][1].read().ecc_corrected["umc"] == 9


class TestTable:
    """Numbers of `gpu_metrics` that are read without parsing all of it."""

    @pytest.mark.parametrize("revision", sorted(gpu_metrics.LAYOUTS))
    def test_a_column_is_what_parse_says(self, revision: tuple[int, int]) -> None:
        """For every revision and every column, with values at random and with absent ones."""
        chance = random.Random(str(revision))
        size = gpu_metrics._layout(revision).form.size
        for content in (bytes(chance.randrange(256) for _ in range(size)), b"\xff" * size):
            table = struct.pack("<HBB", size, *revision) + content[4:]
            parsed = gpu_metrics.parse(table) or gpu_metrics.Metrics(revision)
            columns = gpu_metrics.columns(revision)
            assert columns is not None

            for name, column in columns.items():
                found = column.read(table)
                if name == "throttle":
                    assert parsed.throttle_reasons == (None if found is None else gpu_metrics.throttle_words(found))
                elif name == "energy_count":
                    assert parsed.energy_joules == (None if found is None else found * gpu_metrics.JOULES_PER_COUNT)
                else:
                    assert getattr(parsed, name) == found
            told = gpu_metrics.provided(revision)
            assert {name for name, value in parsed._asdict().items() if value is not None} - told <= {"revision"}

    def test_the_table_is_not_read_where_files_tell_all(self, tmp_path: Path, reads: list[str]) -> None:
        """An APU's table has nothing that its files lack; a card's tells why it throttles."""
        write_host(tmp_path / "apu", profile="apu", busy="50")
        write_host(tmp_path / "card", profile="radeon", gpus=1, busy="100")
        apu, card = opened(tmp_path / "apu")[0][1], opened(tmp_path / "card")[0][1]
        apu.read(), card.read()
        reads.clear()

        apu.read()
        assert not [name for name in reads if name.endswith("gpu_metrics")]
        assert card.read().throttle_reasons == ("PPT0",)
        assert [name for name in reads if name.endswith("gpu_metrics")]

    def test_energy_is_counted_by_cards_that_can(self, tmp_path: Path) -> None:
        """The accumulator of an MI300X, in joules; a Radeon has none."""
        live = Live(tmp_path / "a", profile="instinct", gpus=1, busy="80")
        counted = opened(tmp_path / "a")[0][1]
        write_host(tmp_path / "b", gpus=1, busy="80")
        other = opened(tmp_path / "b")[0][1]
        watts = counted.read().power_watts
        before = counted.energy_joules

        live.step(10.0)
        counted.read(), other.read()

        assert counted.energy_joules - before == pytest.approx(10 * watts, rel=0.02)
        assert other.energy_joules is None


class TestOthers:
    """Devices that are no AMD GPUs."""

    def test_the_cpu(self, tmp_path: Path) -> None:
        """Its memory is what a Sample says; its load is the share of time since the reading before."""
        write_host(tmp_path, gpus=1)
        device = discover(tmp_path)[-1]
        reader = Readers(tmp_path).open(device, full=True)
        times = tmp_path / "proc/stat"

        assert replace(reader.read(), time_seconds=0) == replace(sample(device, tmp_path), time_seconds=0)
        times.write_text("cpu  100 0 100 700 100 0 0 0 50 0\ncpu0 1 2 3 4 5 6 7 8 9 10\n")
        assert reader.read().busy_percent is None
        times.write_text("cpu  150 0 150 740 160 0 0 0 90 0\n")
        assert reader.read().busy_percent == 50
        assert reader.read().busy_percent is None
        times.write_text("intr what\n")
        assert reader.read().busy_percent is None
        reader.close()

    def test_this_machines_cpu(self) -> None:
        """A real /proc/stat moves on by itself."""
        device = discover(Path("/"), {})[-1]
        reader = Readers(Path("/")).open(device, full=True)
        reader.read()
        total = sum(range(3_000_000))

        found = reader.read()

        assert total
        assert found.busy_percent is None or 0 < found.busy_percent <= 100
        assert found.gtt_used_bytes > 0
        reader.close()

    def test_an_nvidia_gpu_keeps_its_session(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Everything that NVML tells, with the energy that it counts."""

        class Driver:
            def __getattr__(self, call: str) -> Any:
                return lambda *arguments: self.answer(call, arguments)

            def answer(self, call: str, arguments: tuple[Any, ...]) -> int:
                numbers = {"nvmlDeviceGetTotalEnergyConsumption": 5_000, "nvmlDeviceGetPowerUsage": 345_000}
                numbers |= {"nvmlDeviceGetTemperature": 61, "nvmlDeviceGetFanSpeed": 30, "nvmlDeviceGetCount_v2": 1}
                if call == "nvmlDeviceGetUUID":
                    arguments[1].value = b"GPU-0000"
                elif call in numbers:
                    arguments[-1]._obj.value = numbers[call]
                elif call != "nvmlDeviceGetHandleByIndex_v2":
                    return 3
                return nvml.SUCCESS

        @contextmanager
        def session() -> Iterator[nvml.Nvml]:
            yield nvml.Nvml(Driver())

        monkeypatch.setattr(nvml, "session", session)
        monkeypatch.setattr(cuda, "has_driver", lambda root: True)
        device = Device(backend="cuda", index=0, name="H100", is_usable=True, unique_id="GPU-0000")
        reader = Readers(Path("/")).open(device, full=True)

        found = reader.read()

        assert replace(found, time_seconds=0) == replace(sample(device, Path("/")), time_seconds=0)
        assert (found.power_watts, found.edge_celsius, found.fan_percent) == (pytest.approx(345), 61, 30)
        assert reader.energy_joules == 5
