"""Every backend answers the same questions with the same types."""

from __future__ import annotations

import ctypes
import json
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
from hosts import Gpu, make_host, write

from rocmlab.devices import Backend, Device, Sample, cuda, discover, discovery, metal, nvml, sample, survey, visibility
from rocmlab.devices.cpu import Cpu
from rocmlab.devices.discovery import ALL


@pytest.mark.parametrize("backend", ALL, ids=lambda backend: backend.name)
class TestContract:
    """On this host, on a simulated one and on an empty one."""

    def _hosts(self, folder: Path) -> tuple[Path, ...]:
        (folder / "empty").mkdir()
        root = make_host(
            folder / "host", Gpu(1, 0x0300, 128), Gpu(2, 0x0400, 129), Gpu(None, 0x0500, 130), absent=(129,)
        )
        return Path("/"), root, folder / "empty"

    def test_devices_are_of_its_own_kind(self, backend: Backend, tmp_path: Path) -> None:
        """An index exactly where usable, counted from 0; a reason exactly where not; JSON at the end."""
        for root in self._hosts(tmp_path):
            found = backend.discover(root)

            assert all(isinstance(device, Device) and device.backend == backend.name for device in found)
            assert [device.index for device in found if device.is_usable] == list(
                range(sum(device.is_usable for device in found))
            )
            assert all((device.index is not None) == device.is_usable for device in found)
            assert all((device.why_not is None) == device.is_usable for device in found)
            assert all(device.name for device in found)
            written = [device.as_dict() for device in found]
            assert json.loads(json.dumps(written)) == written

    def test_a_sample_never_fails(self, backend: Backend, tmp_path: Path) -> None:
        """Also of a device that is missing: then everything but the time is unknown."""
        stranger = Device(backend=backend.name, index=0, name="gone", is_usable=True, pci_address="ffff:00:00.0")
        for root in self._hosts(tmp_path):
            for device in (*backend.discover(root), stranger):
                reading = sample(device, root)

                assert isinstance(reading, Sample)
                assert reading.time_seconds > 1_700_000_000
                json.dumps(reading.as_dict())

    def test_a_simulated_host_never_shows_this_machines_gpus(self, backend: Backend, tmp_path: Path) -> None:
        """Whatever is found there says that it is simulated."""
        root = make_host(tmp_path / "host", Gpu(1, 0x0300, 128))

        assert all(device.simulated for device in backend.discover(root))


class TestDiscover:
    """All backends together."""

    def test_the_cpu_is_always_there_and_last(self, tmp_path: Path) -> None:
        """A host with GPUs lists usable ones first, then the others; the CPU closes the list."""
        root = make_host(tmp_path, Gpu(1, 0x0300, 128), Gpu(2, 0x0400, 129), absent=(128,))

        found = discover(root, {})

        assert [(device.backend, device.is_usable) for device in found] == [
            ("rocm", True),
            ("rocm", False),
            ("cpu", True),
        ]

    def test_a_mask_hides_and_keeps_the_index(self, tmp_path: Path) -> None:
        """The masks of children are written with the index from before the mask."""
        root = make_host(tmp_path, Gpu(1, 0x0300, 128), Gpu(2, 0x0400, 129))

        found = discover(root, {"HIP_VISIBLE_DEVICES": "1"})

        assert [(device.index, device.is_usable) for device in found if device.backend == "rocm"] == [
            (1, True),
            (0, False),
        ]
        assert "HIP_VISIBLE_DEVICES" in str(found[1].why_not)

    def test_conflicts_of_masks_are_problems(self, tmp_path: Path) -> None:
        """They stand next to the devices."""
        root = make_host(tmp_path, Gpu(1, 0x0300, 128))

        _, problems = survey(root, {"HIP_VISIBLE_DEVICES": "0,9"})

        assert problems

    def test_a_sample_comes_from_the_devices_own_backend(self, tmp_path: Path) -> None:
        """The CPU's memory is read below the given root."""
        root = make_host(tmp_path)

        reading = sample(discover(root, {})[-1], root)

        assert (reading.gtt_total_bytes, reading.gtt_used_bytes) == (65536000 * 1024, 25536000 * 1024)


class TestCpu:
    """The processor."""

    def test_name_and_memory_are_those_of_proc(self, tmp_path: Path) -> None:
        """The first processor's name is enough, however many follow."""
        root = make_host(tmp_path)
        write(root / "proc/cpuinfo", "processor\t: 0\nmodel name\t: Simulated 9000\n\n" * 2000)

        device = Cpu().discover(root)[0]

        assert (device.name, device.gtt_bytes, device.vram_bytes) == ("Simulated 9000", 65536000 * 1024, None)

    def test_cores_are_those_this_process_may_use(self) -> None:
        """At least one, on every machine."""
        cores = Cpu().discover(Path("/"))[0].compute_units

        assert cores is not None
        assert cores >= 1


class FakeNvml:
    """A driver library of two GPUs: functions with NVML's names that write through pointers, as the real one does."""

    def __init__(self, *, missing: tuple[str, ...] = (), failing: tuple[str, ...] = ()) -> None:
        self.missing, self.failing = missing, failing
        self.numbers = {
            "nvmlDeviceGetCurrPcieLinkWidth": 8,
            "nvmlDeviceGetMaxPcieLinkWidth": 16,
            "nvmlDeviceGetCurrPcieLinkGeneration": 4,
            "nvmlDeviceGetMaxPcieLinkGeneration": 5,
            "nvmlDeviceGetNumGpuCores": 16896,
            "nvmlDeviceGetPowerUsage": 68500,
            "nvmlDeviceGetEnforcedPowerLimit": 700000,
            "nvmlDeviceGetTemperature": 41,
            "nvmlDeviceGetClockInfo": 1980,
        }
        self.texts = {
            "nvmlDeviceGetName": b"NVIDIA H100",
            "nvmlDeviceGetUUID": b"GPU-0000",
            "nvmlSystemGetDriverVersion": b"550.54.15",
        }

    def __getattr__(self, call: str) -> Any:
        if call in self.missing:
            raise AttributeError(call)
        return lambda *arguments: 999 if call in self.failing else self._answer(call, arguments)

    def _answer(self, call: str, arguments: tuple[Any, ...]) -> int:
        if call in self.numbers:
            arguments[-1]._obj.value = self.numbers[call]
        elif call in self.texts:
            arguments[-2].value = self.texts[call]
        elif call == "nvmlDeviceGetCount_v2":
            arguments[0]._obj.value = 2
        elif call == "nvmlDeviceGetHandleByIndex_v2":
            arguments[1]._obj.value = arguments[0].value + 1
        elif call == "nvmlDeviceGetPciInfo_v3":
            pci = arguments[1]._obj
            pci.domain, pci.bus, pci.device, pci.pci_device_id = 0x10000, 0x1B + arguments[0].value, 0, 0x233010DE
        elif call == "nvmlDeviceGetMemoryInfo":
            arguments[1]._obj.total, arguments[1]._obj.used = 85899345920, 1073741824
        elif call == "nvmlDeviceGetUtilizationRates":
            arguments[1]._obj.gpu, arguments[1]._obj.memory = 37, 12
        elif call == "nvmlDeviceGetCudaComputeCapability":
            arguments[1]._obj.value, arguments[2]._obj.value = 9, 0
        else:
            return 3  # not supported
        return nvml.SUCCESS


class TestNvml:
    """NVIDIA's GPUs, by a library with the real one's calling conventions."""

    def test_identity_is_what_the_driver_says(self) -> None:
        """Domain, ids, link and multiprocessors, each in the words of a Device."""
        first, second = cuda.listed(nvml.Nvml(FakeNvml()))

        assert (first.index, second.index, first.smi_index, second.smi_index) == (0, 1, 0, 1)
        assert (first.pci_address, second.pci_address) == ("10000:1c:00.0", "10000:1d:00.0")
        assert (first.pci_id, first.unique_id, first.driver) == ("10de:2330", "GPU-0000", "nvidia 550.54.15")
        assert (first.link_width, first.link_width_max) == (8, 16)
        assert (first.link_speed_gts, first.link_speed_max_gts) == (16.0, 32.0)
        assert (first.compute_units, first.vram_bytes, first.serial) == (132, 85899345920, None)

    def test_a_sample_is_in_base_units(self) -> None:
        """Milliwatts become watts, megahertz hertz."""
        reading = Sample(time_seconds=0, **nvml.Nvml(FakeNvml()).reading(ctypes.c_void_p(1)))

        assert (reading.power_watts, reading.power_cap_watts) == (pytest.approx(68.5), pytest.approx(700))
        assert (reading.core_clock_hertz, reading.edge_celsius, reading.busy_percent) == (1_980_000_000, 41, 37)
        assert (reading.vram_used_bytes, reading.fan_percent) == (1073741824, None)

    @pytest.mark.parametrize("how", ["missing", "failing"])
    def test_a_call_that_an_older_driver_lacks_leaves_its_field_unknown(self, how: str) -> None:
        """A function that is not in the library and one that fails are the same."""
        calls = ("nvmlDeviceGetNumGpuCores", "nvmlDeviceGetPciInfo_v3", "nvmlDeviceGetName", "nvmlDeviceGetMemoryInfo")

        device = cuda.listed(nvml.Nvml(FakeNvml(**{how: calls})))[0]

        assert (device.compute_units, device.pci_address, device.vram_bytes) == (None, None, None)
        assert device.name == "NVIDIA GPU"

    def test_without_a_driver_nothing_is_loaded(self, tmp_path: Path) -> None:
        """A host without NVIDIA's nodes does not even look for the library."""
        assert not cuda.has_device_nodes(tmp_path)
        assert cuda.Cuda().discover(tmp_path) == []


class TestMetal:
    """Apple's GPUs."""

    def test_metal_reads_what_macos_reports(self) -> None:
        """A Metal-capable GPU is usable under its model's name; one without Metal says why not."""
        report = {
            "SPDisplaysDataType": [
                {
                    "sppci_model": "Apple M3 Pro",
                    "spdisplays_mtlgpufamilysupport": "spdisplays_metal3",
                    "sppci_cores": "18",
                },
                {"sppci_model": "Old Card"},
            ]
        }

        first, second = metal.parse(json.dumps(report))

        assert (first.name, first.is_usable, first.index, first.compute_units) == ("Apple M3 Pro", True, 0, 18)
        assert (second.name, second.is_usable, second.index) == ("Old Card", False, None)


def test_every_field_of_a_device_is_written() -> None:
    """`--json` has everything, with the names of the model."""
    device = Device(backend="cpu", index=0, name="CPU", is_usable=True)

    assert [field.name for field in fields(Device)] == list(device.as_dict())
    assert [field.name for field in fields(Sample)] == list(Sample(time_seconds=0).as_dict())


def test_discovery_knows_every_mask_by_name() -> None:
    """The names that make discovery look at the masks at all are those that `visibility` reads."""
    assert set(visibility.VARIABLES) | {"HSA_OVERRIDE_GFX_VERSION"} == set(discovery.MASKS)


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (lambda path: None, "the folder does not exist"),
        (lambda path: path.touch(), "it is not a folder"),
        (lambda path: path.mkdir(), "it has no folder sys"),
    ],
)
def test_a_root_that_is_no_host_is_said(tmp_path: Path, make: Callable[[Path], None], why: str) -> None:
    """A typo in ROCMLAB_ROOT would look like a machine without GPUs, with this machine's CPU."""
    make(tmp_path / "typo")

    found, problems = survey(tmp_path / "typo", {})

    assert [(device.name, device.simulated) for device in found] == [("CPU", True)]
    assert [problem.why for problem in problems] == [why]
    assert f"{tmp_path}/typo is not a simulated host" in problems[0].what
    assert survey(make_host(tmp_path / "host"), {})[1] == []
    assert survey(Path("/"), {})[0][-1].name != "CPU"
