"""Readings through descriptors that stay open are those of a Sample, and wake no one."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from rocmlab.devices import Device, cuda, discover, nvml, roots, sample
from rocmlab.devices.card_reader import CardReader
from rocmlab.devices.readers import Readers
from rocmlab.simulation import Live, write_host

FIELDS = ("busy_percent", "vram_used_bytes", "vram_total_bytes", "power_watts", "is_asleep")


def gpus(root: Path) -> list[Device]:
    """Return the GPUs of a simulated host."""
    return [device for device in discover(root) if device.backend == "rocm"]


def descriptors() -> int:
    """Return how many descriptors this process has open."""
    return len(os.listdir("/proc/self/fd"))


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of all system files and folders that are read."""
    names: list[str] = []
    monkeypatch.setattr(roots, "on_read", names.append)
    return names


class TestFiles:
    """AMD GPUs of a simulated host."""

    @pytest.mark.parametrize("profile", ["radeon", "instinct", "apu", "mixed"])
    def test_a_reading_is_what_a_sample_says(self, tmp_path: Path, profile: str) -> None:
        """For every kind of card, also after its values have moved under the open descriptors."""
        live = Live(tmp_path, profile=profile, busy="waves")
        readers = Readers(tmp_path)
        opened = [(device, readers.open(device)) for device in gpus(tmp_path)]
        for seconds in (0.0, 7.0, 30.0):
            live.step(seconds)
            for device, reader in opened:
                expected = sample(device, tmp_path)

                found = reader.read()

                assert [getattr(found, name) for name in FIELDS] == [getattr(expected, name) for name in FIELDS]
                assert found.busy_percent is not None
                assert found.power_watts is not None

    def test_descriptors_are_kept_and_given_back(self, tmp_path: Path) -> None:
        """The second reading opens nothing, and after the end none is left."""
        write_host(tmp_path, gpus=1, busy="50")
        before = descriptors()
        reader = Readers(tmp_path).open(gpus(tmp_path)[0])

        reader.read()
        first = descriptors()
        reader.read()

        assert first == descriptors() > before
        reader.close()
        assert descriptors() == before

    def test_a_sleeping_card_is_not_woken(self, tmp_path: Path, reads: list[str]) -> None:
        """Nothing is read but whether it sleeps; once awake it is read like any other."""
        write_host(tmp_path, gpus=1, busy="50", faults=["asleep:0"])
        reader = Readers(tmp_path).open(gpus(tmp_path)[0])
        reads.clear()

        found = [reader.read(), reader.read()]

        assert {Path(name).name for name in reads} == {"runtime_status"}
        assert all(one.is_asleep and one.vram_used_bytes is None for one in found)
        status = tmp_path / "sys/bus/pci/devices" / gpus(tmp_path)[0].pci_address / "power/runtime_status"
        status.write_text("active\n")
        assert reader.read().busy_percent == 50
        status.write_text("suspending\n")
        reads.clear()
        assert reader.read().is_asleep
        assert {Path(name).name for name in reads} == {"runtime_status"}

    def test_a_card_that_vanishes_and_returns(self, tmp_path: Path) -> None:
        """Its open descriptors say nothing any more, and none stays open; a new card in its place is read."""
        live = Live(tmp_path, gpus=2, busy="50", faults=["vanish:1:10"])
        device = gpus(tmp_path)[1]
        before = descriptors()
        reader = Readers(tmp_path).open(device)
        assert reader.read().busy_percent == 50

        live.step(11.0)

        gone = reader.read()
        assert (gone.busy_percent, gone.vram_used_bytes, gone.power_watts) == (None, None, None)
        assert descriptors() == before
        write_host(tmp_path, gpus=2, busy="70")
        assert reader.read().busy_percent == 70

    def test_a_card_that_gets_its_driver_later(self, tmp_path: Path) -> None:
        """Its PCIe link can be read without a driver; the sensors are found at the first reading after it is loaded."""
        write_host(tmp_path, gpus=1, busy="50", faults=["no-driver"])
        address = gpus(tmp_path)[0].pci_address
        reader = CardReader(tmp_path / "sys/bus/pci/devices" / str(address), Path("/"))  # as on a real host

        without = reader.read()
        write_host(tmp_path, gpus=1, busy="50")
        bound = reader.read()

        assert (without.link_width, without.busy_percent, without.vram_total_bytes) == (16, None, None)
        assert bound.busy_percent == 50
        assert None not in (bound.fan_percent, bound.power_cap_watts, bound.vram_total_bytes)
        reader.close()

    @pytest.mark.parametrize("fault", ["ebusy", "eio"])
    def test_a_read_that_fails_leaves_its_field_to_the_table(self, tmp_path: Path, fault: str) -> None:
        """One file that fails costs no other; the card's own table says how busy it is, where it has one."""
        write_host(tmp_path / "a", gpus=1, busy="50", faults=[f"{fault}:0:gpu_busy_percent"])
        write_host(tmp_path / "b", gpus=1, busy="50", faults=[f"{fault}:0:gpu_busy_percent", f"{fault}:0:gpu_metrics"])

        with_table, without = (Readers(root).open(gpus(root)[0]).read() for root in (tmp_path / "a", tmp_path / "b"))

        assert (with_table.busy_percent, without.busy_percent) == (50, None)
        assert with_table.vram_used_bytes == without.vram_used_bytes > 0
        assert with_table.power_watts == without.power_watts > 0

    def test_what_cannot_be_read_has_no_reader(self, tmp_path: Path) -> None:
        """The CPU, a second partition, a card of another host, and an NVIDIA GPU next to a simulated host."""
        write_host(tmp_path, profile="instinct", gpus=1, partition="cpx")
        found = discover(tmp_path)
        readers = Readers(tmp_path)
        nvidia = Device(backend="cuda", index=0, name="H100", is_usable=True, unique_id="GPU-0000", simulated=True)

        assert [readers.open(device) is not None for device in found if device.backend == "rocm"] == [
            device.partition == 0 for device in found if device.backend == "rocm"
        ]
        assert readers.open(found[-1]) is None
        assert readers.open(nvidia) is None
        assert Readers(Path("/")).open(found[0]) is None


class Driver:
    """A driver library of one NVIDIA GPU, with the calling conventions of the real one."""

    calls: tuple[str, ...] = ()

    def __getattr__(self, call: str) -> Any:
        return lambda *arguments: self.answer(call, arguments)

    def answer(self, call: str, arguments: tuple[Any, ...]) -> int:
        """Write through the pointers."""
        self.calls = (*self.calls, call)
        if call == "nvmlDeviceGetCount_v2":
            arguments[0]._obj.value = 1
        elif call == "nvmlDeviceGetUUID":
            arguments[1].value = b"GPU-0000"
        elif call == "nvmlDeviceGetMemoryInfo_v2":
            arguments[1]._obj.used, arguments[1]._obj.total = 3 << 30, 80 << 30
        elif call == "nvmlDeviceGetUtilizationRates":
            arguments[1]._obj.gpu, arguments[1]._obj.memory = 88, 40
        elif call == "nvmlDeviceGetPowerUsage":
            arguments[1]._obj.value = 345_000
        elif call == "nvmlDeviceGetTotalEnergyConsumption":
            arguments[1]._obj.value = 5_000  # mJ
        elif call != "nvmlDeviceGetHandleByIndex_v2":
            return 3  # not supported
        return nvml.SUCCESS


class TestNvidia:
    """NVIDIA's GPUs, by a library that is none."""

    DEVICE = Device(backend="cuda", index=0, name="H100", is_usable=True, unique_id="GPU-0000")

    def test_one_session_serves_all_and_four_calls_make_a_reading(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Nothing is asked that is not wanted, for some calls take milliseconds."""
        driver, sessions = Driver(), []

        @contextmanager
        def session() -> Iterator[nvml.Nvml]:
            sessions.append("opened")
            yield nvml.Nvml(driver)
            sessions.append("closed")

        monkeypatch.setattr(nvml, "session", session)
        monkeypatch.setattr(cuda, "has_driver", lambda root: True)
        readers = Readers(Path("/"))
        first, second = readers.open(self.DEVICE), readers.open(self.DEVICE)
        driver.calls = ()

        found = first.read()

        assert (found.busy_percent, found.vram_used_bytes, found.power_watts) == (88, 3 << 30, pytest.approx(345))
        assert len(driver.calls) == 4
        assert first.energy_joules == 5
        assert second.read().busy_percent == 88
        assert sessions == ["opened"]
        readers.close()
        assert sessions == ["opened", "closed"]

    @pytest.mark.parametrize("has_node", [True, False])
    def test_without_nvml_nothing_is_known(self, monkeypatch: pytest.MonkeyPatch, has_node: bool) -> None:
        """Neither where there is no driver nor where its library cannot be loaded."""

        def missing(name: str) -> ctypes.CDLL:
            raise OSError(f"{name}: cannot open shared object file")

        monkeypatch.setattr(nvml.ctypes, "CDLL", missing)
        monkeypatch.setattr(cuda, "has_driver", lambda root: has_node)
        readers = Readers(Path("/"))

        assert readers.open(self.DEVICE) is None
        readers.close()
