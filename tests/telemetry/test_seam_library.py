"""The object in place of NVIDIA's library, asked through the real nvidia-ml-py."""

from __future__ import annotations

import ctypes
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pynvml
import pytest

from rocmlab.devices import discover, roots, sample
from rocmlab.simulation import GpuUse, Live, write_host
from rocmlab.telemetry.seam import answers
from rocmlab.telemetry.seam.gpus import FRESH_SECONDS, PID_LIMIT, Gpus
from rocmlab.telemetry.seam.library import ABSENT, INVALID_ARGUMENT, NOT_SUPPORTED, Library
from rocmlab.telemetry.smi_cells import memory_bytes

PROFILES = ("radeon", "instinct", "apu", "mixed")
MEGA = 1_000_000


@pytest.fixture(autouse=True)
def _forget_functions(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nvidia-ml-py keeps every function that it has found."""
    monkeypatch.setattr(pynvml, "_nvmlGetFunctionPointer_cache", {})
    monkeypatch.setattr(pynvml, "nvmlLib", None)


@contextmanager
def nvml(gpus: Gpus) -> Iterator[Library]:
    """Let nvidia-ml-py ask these GPUs."""
    pynvml._nvmlGetFunctionPointer_cache.clear()
    library = pynvml.nvmlLib = Library(gpus)
    pynvml.nvmlInit()
    try:
        yield library
    finally:
        pynvml.nvmlShutdown()


def handles() -> list[ctypes.c_void_p]:
    """Return a handle of every GPU."""
    return [pynvml.nvmlDeviceGetHandleByIndex(number) for number in range(pynvml.nvmlDeviceGetCount())]


def answer(function: str, *arguments: object) -> object:
    """Return what a function of nvidia-ml-py returns; None where it is not supported."""
    try:
        return getattr(pynvml, function)(*arguments)
    except pynvml.NVMLError_NotSupported:
        return None


def scaled(number: float | None, factor: float = 1.0) -> int | None:
    """Return a value of a Sample in NVML's unit."""
    return None if number is None else round(number * factor)


@pytest.mark.parametrize("busy", ["idle", "training"])
@pytest.mark.parametrize("profile", PROFILES)
def test_values_are_those_of_the_sampler(tmp_path: Path, profile: str, busy: str) -> None:
    """Every value is that of `rocmlab.devices.sample`, and what a card does not tell is not supported."""
    root = write_host(tmp_path / "host", profile=profile, busy=busy, faults=["ecc"])
    devices = [device for device in discover(root) if device.backend == "rocm"]

    with nvml(Gpus(root)):
        for device, handle in zip(devices, handles(), strict=True):
            now = sample(device, root)
            hottest = now.edge_celsius if now.junction_celsius is None else now.junction_celsius
            errors = now.ecc_uncorrected
            assert answer("nvmlDeviceGetTemperature", handle, 0) == scaled(hottest)
            assert answer("nvmlDeviceGetPowerUsage", handle) == scaled(now.power_watts, 1000)
            assert answer("nvmlDeviceGetPowerManagementLimit", handle) == scaled(now.power_cap_watts, 1000)
            assert answer("nvmlDeviceGetEnforcedPowerLimit", handle) == scaled(now.power_cap_watts, 1000)
            assert answer("nvmlDeviceGetFanSpeed", handle) == scaled(now.fan_percent)
            assert answer("nvmlDeviceGetClockInfo", handle, 1) == scaled(now.core_clock_hertz, 1 / MEGA)
            assert answer("nvmlDeviceGetClockInfo", handle, 2) == scaled(now.memory_clock_hertz, 1 / MEGA)
            assert answer("nvmlDeviceGetMaxClockInfo", handle, 0) == scaled(now.core_clock_max_hertz, 1 / MEGA)
            assert answer("nvmlDeviceGetMaxClockInfo", handle, 2) == scaled(now.memory_clock_max_hertz, 1 / MEGA)
            assert answer("nvmlDeviceGetCurrPcieLinkWidth", handle) == now.link_width
            assert answer("nvmlDeviceGetPcieReplayCounter", handle) == now.pcie_replays
            assert answer("nvmlDeviceGetTotalEccErrors", handle, 1, 0) == (sum(errors.values()) if errors else None)
            use = pynvml.nvmlDeviceGetUtilizationRates(handle)
            assert (use.gpu, use.memory) == (scaled(now.busy_percent), scaled(now.memory_busy_percent or 0))


@pytest.mark.parametrize("profile", PROFILES)
def test_identity_is_that_of_the_device(tmp_path: Path, profile: str) -> None:
    """GPUs come in HIP's order, with name, PCI address and link of the card, and no two have the same UUID."""
    root = write_host(tmp_path / "host", profile=profile)
    devices = [device for device in discover(root) if device.backend == "rocm"]

    with nvml(Gpus(root)):
        found = handles()
        assert [device.index for device in devices] == list(range(len(found)))
        for device, handle in zip(devices, found, strict=True):
            place = pynvml.nvmlDeviceGetPciInfo(handle)
            assert pynvml.nvmlDeviceGetIndex(handle) == device.index
            assert pynvml.nvmlDeviceGetName(handle) == f"SIMULATED {device.name}"
            assert place.busId.lower() == f"0000{device.pci_address}"
            assert place.busIdLegacy.lower() == device.pci_address
            assert f"{place.pciDeviceId & 0xFFFF:04x}:{place.pciDeviceId >> 16:04x}" == device.pci_id
            assert pynvml.nvmlDeviceGetMaxPcieLinkWidth(handle) == device.link_width_max
            assert answer("nvmlDeviceGetSerial", handle) == device.serial
        uuids = [pynvml.nvmlDeviceGetUUID(handle) for handle in found]
        assert len(set(uuids)) == len(devices)
        for number, uuid in enumerate(uuids):
            assert re.fullmatch(r"GPU-[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", uuid)
            assert pynvml.nvmlDeviceGetIndex(pynvml.nvmlDeviceGetHandleByUUID(uuid)) == number
            address = devices[number].pci_address
            assert pynvml.nvmlDeviceGetIndex(pynvml.nvmlDeviceGetHandleByPciBusId(address)) == number
        with pytest.raises(pynvml.NVMLError_NotFound):
            pynvml.nvmlDeviceGetHandleByPciBusId("0000:ff:1f.0")


@pytest.mark.parametrize(("speed", "generation"), [("8.0 GT/s PCIe", 3), ("16.0 GT/s PCIe", 4), ("32.0 GT/s PCIe", 5)])
def test_links_have_generations(tmp_path: Path, speed: str, generation: int) -> None:
    """NVML counts PCIe generations where the kernel gives gigatransfers."""
    root = write_host(tmp_path / "host", gpus=1)
    (device,) = (device for device in discover(root) if device.backend == "rocm")
    (root / f"sys/bus/pci/devices/{device.pci_address}/current_link_speed").write_text(f"{speed}\n")

    with nvml(Gpus(root)):
        assert pynvml.nvmlDeviceGetCurrPcieLinkGeneration(handles()[0]) == generation


def test_memory_of_a_card_is_its_vram(tmp_path: Path) -> None:
    """Both layouts of the structure say the same, and free is what is left."""
    root = write_host(tmp_path / "host", busy="training")
    device = discover(root)[0]

    with nvml(Gpus(root)):
        handle = handles()[0]
        old, new = pynvml.nvmlDeviceGetMemoryInfo(handle), pynvml.nvmlDeviceGetMemoryInfo(handle, 2)

    now = sample(device, root)
    assert (old.total, old.used) == (new.total, new.used) == (now.vram_total_bytes, now.vram_used_bytes)
    assert old.free == new.free == old.total - old.used
    assert new.reserved == 0


def test_memory_of_an_apu_is_what_its_models_can_use(tmp_path: Path) -> None:
    """An APU has little VRAM and uses the host's memory: NVML's readers get what `smi` shows, not the sum of both."""
    root = write_host(tmp_path / "host", profile="apu", busy="training")
    device = discover(root)[0]

    with nvml(Gpus(root)):
        memory = pynvml.nvmlDeviceGetMemoryInfo(handles()[0])

    now = sample(device, root)
    assert (memory.used, memory.total) == (now.gtt_used_bytes, now.gtt_total_bytes)
    assert (memory.used, memory.total) == memory_bytes(device.as_dict(), now.as_dict())


def test_parts_of_a_gpu_are_gpus(tmp_path: Path) -> None:
    """A divided MI300X is eight GPUs at one address with UUIDs of their own; sensors belong to the first."""
    root = write_host(tmp_path / "host", profile="instinct", gpus=1, partition="cpx")

    with nvml(Gpus(root)):
        found = handles()
        uuids = {pynvml.nvmlDeviceGetUUID(handle) for handle in found}
        powers = [answer("nvmlDeviceGetPowerUsage", handle) for handle in found]
        addresses = {pynvml.nvmlDeviceGetPciInfo(handle).busId for handle in found}

    assert (len(found), len(uuids), len(addresses)) == (8, 8, 1)
    assert powers[0] is not None
    assert powers[1:] == [None] * 7


def test_every_function_of_nvidia_answers(tmp_path: Path) -> None:
    """Whatever nvidia-ml-py looks up is there and returns a code, but for the three by which nvitop chooses layouts."""
    source = Path(pynvml.__file__).read_text(encoding="utf-8")
    names = set(re.findall(r'_nvmlGetFunctionPointer\("(nvml\w+)"\)', source)) - {"nvmlErrorString"}
    library = Library(Gpus(write_host(tmp_path / "host")))
    assert library.nvmlInit_v2() == 0

    assert len(names) > 300
    assert {name for name in names if not hasattr(library, name)} == set(ABSENT) & names
    for name in sorted(names - set(ABSENT) - {"nvmlShutdown"}):
        assert getattr(library, name)(None, None, None) in (0, INVALID_ARGUMENT, NOT_SUPPORTED, 6), name
    assert library.nvmlErrorString(3) == b"Not Supported"


def test_nothing_answers_before_it_is_opened_or_after_it_is_closed(tmp_path: Path) -> None:
    """As NVIDIA's library does; opening twice needs closing twice."""
    pynvml.nvmlLib = library = Library(Gpus(write_host(tmp_path / "host")))

    with pytest.raises(pynvml.NVMLError_Uninitialized):
        pynvml.nvmlDeviceGetCount()
    pynvml.nvmlInit()
    pynvml.nvmlInit()
    pynvml.nvmlShutdown()
    assert pynvml.nvmlDeviceGetCount() == 2
    pynvml.nvmlShutdown()
    with pytest.raises(pynvml.NVMLError_Uninitialized):
        pynvml.nvmlDeviceGetCount()
    with pytest.raises(pynvml.NVMLError_Uninitialized):
        pynvml.nvmlShutdown()
    assert pynvml.nvmlLib is library


@pytest.mark.parametrize("wrong", [0, 1, 2**40])
def test_a_wrong_handle_is_refused(tmp_path: Path, wrong: int) -> None:
    """An address that is not a handle is an invalid argument, and nothing is read from it."""
    with nvml(Gpus(write_host(tmp_path / "host"))), pytest.raises(pynvml.NVMLError_InvalidArgument):
        pynvml.nvmlDeviceGetName(ctypes.c_void_p(wrong))
    with nvml(Gpus(tmp_path / "host")), pytest.raises(pynvml.NVMLError_InvalidArgument):
        pynvml.nvmlDeviceGetHandleByIndex(2)


def test_long_names_are_cut_to_the_buffer(tmp_path: Path) -> None:
    """A text never runs over the room that the caller has given, and no letter is cut in half."""
    root = write_host(tmp_path / "host", gpus=1)
    address = discover(root)[0].pci_address
    (root / f"sys/bus/pci/devices/{address}/product_name").write_text("Ürgröße " * 12)

    with nvml(Gpus(root)) as library:
        buffer = ctypes.create_string_buffer(b"x" * 20, 20)
        assert library.nvmlDeviceGetName(handles()[0], buffer, ctypes.c_uint(16)) == 0

    assert len(buffer.value) <= 15
    assert buffer.raw[16:20] == b"xxxx"
    assert buffer.value.decode().startswith("SIMULATED ")


def test_a_sleeping_card_is_not_woken(tmp_path: Path) -> None:
    """Its name is known and its values are not; only its state was read."""
    root = write_host(tmp_path / "host", faults=["asleep:0"])
    address = discover(root)[0].pci_address
    clock = [0.0]
    read: list[str] = []

    with nvml(Gpus(root, clock=lambda: clock[0])):
        handle = handles()[0]
        clock[0] = 1.0
        roots.on_read = read.append
        try:
            assert answer("nvmlDeviceGetTemperature", handle, 0) is None
            assert answer("nvmlDeviceGetUtilizationRates", handle) is None
            with pytest.raises(pynvml.NVMLError_NoData):
                pynvml.nvmlDeviceGetMemoryInfo(handle)
        finally:
            roots.on_read = None
        assert "7900" in pynvml.nvmlDeviceGetName(handle)

    own = [os.path.basename(name) for name in read if os.path.realpath(name).find(f"/{address}/") > 0]
    assert set(own) == {"runtime_status"}


def test_a_card_that_leaves_is_lost_and_comes_back(tmp_path: Path) -> None:
    """Its place and that of the others stay; NVML has a code for it."""
    clock = [0.0]
    live = Live(tmp_path / "host", gpus=3, faults=["lost:1:10"])
    with nvml(Gpus(tmp_path / "host", clock=lambda: clock[0])):
        found = handles()
        assert pynvml.nvmlDeviceGetPowerUsage(found[1]) > 0

        live.step(11)
        clock[0] = 11
        with pytest.raises(pynvml.NVMLError_GpuIsLost):
            pynvml.nvmlDeviceGetPowerUsage(found[1])
        with pytest.raises(pynvml.NVMLError_GpuIsLost):
            pynvml.nvmlDeviceGetHandleByIndex(1)
        assert pynvml.nvmlDeviceGetPowerUsage(found[2]) > 0
        assert pynvml.nvmlDeviceGetCount() == 3

        pynvml.nvmlInit()
        pynvml.nvmlShutdown()
        assert pynvml.nvmlDeviceGetIndex(found[2]) == 2
        write_host(tmp_path / "host", gpus=3)
        clock[0] = 12
        assert pynvml.nvmlDeviceGetPowerUsage(found[1]) > 0


def test_one_reading_serves_all_questions_of_half_a_second(tmp_path: Path) -> None:
    """Thirty questions cost one reading; the next one sees what has changed."""
    clock = [100.0]
    live = Live(tmp_path / "host", busy="10")
    read: list[str] = []

    with nvml(Gpus(tmp_path / "host", clock=lambda: clock[0])):
        handle = handles()[0]
        first = pynvml.nvmlDeviceGetUtilizationRates(handle).gpu
        live = Live(tmp_path / "host", busy="90")
        live.step(60)
        clock[0] += FRESH_SECONDS / 2
        roots.on_read = read.append
        try:
            for _ in range(30):
                assert pynvml.nvmlDeviceGetUtilizationRates(handle).gpu == first
            assert read == []
            clock[0] += FRESH_SECONDS / 2
            assert pynvml.nvmlDeviceGetUtilizationRates(handle).gpu > first + 50
            assert read != []
        finally:
            roots.on_read = None


def test_processes_are_those_of_kfd(tmp_path: Path) -> None:
    """A real process has its own number, with its VRAM and the share of compute units it occupies."""
    uses = [GpuUse(os.getpid(), gpu=0, vram_bytes=3 << 30, cu_occupancy=48), GpuUse(os.getpid(), gpu=1)]
    live = Live(tmp_path / "host", busy="50", processes=uses)
    live.step(1)

    with nvml(Gpus(tmp_path / "host")):
        handle = handles()[0]
        (process,) = pynvml.nvmlDeviceGetComputeRunningProcesses(handle)
        (use,) = pynvml.nvmlDeviceGetProcessUtilization(handle, 0)
        name = pynvml.nvmlSystemGetProcessName(os.getpid())

    assert (process.pid, process.usedGpuMemory) == (os.getpid(), 3 << 30)
    assert process.gpuInstanceId == 0xFFFFFFFF
    assert (use.pid, use.smUtil) == (os.getpid(), 50)
    assert "python" in name or "pytest" in name


def test_a_made_up_process_has_a_number_that_no_process_has(tmp_path: Path) -> None:
    """Or a viewer would show, and could end, an innocent process of this machine."""
    root = write_host(tmp_path / "host", busy="training")

    with nvml(Gpus(root)):
        (process,) = pynvml.nvmlDeviceGetComputeRunningProcesses(handles()[0])
        name = pynvml.nvmlSystemGetProcessName(process.pid)

    assert process.pid > PID_LIMIT
    assert name == "python3 train.py"
    with pytest.raises(ProcessLookupError):
        os.kill(process.pid, 0)


def test_a_gpu_without_processes_has_none(tmp_path: Path) -> None:
    """An idle GPU lists none, and tells of no use."""
    with nvml(Gpus(write_host(tmp_path / "host"))):
        handle = handles()[0]
        assert pynvml.nvmlDeviceGetComputeRunningProcesses(handle) == []
        with pytest.raises(pynvml.NVMLError_NotFound):
            pynvml.nvmlDeviceGetProcessUtilization(handle, 0)
        assert answer("nvmlDeviceGetGraphicsRunningProcesses", handle) is None


def test_the_driver_says_that_it_is_simulated(tmp_path: Path) -> None:
    """And the version of ROCm stands where NVML has CUDA's."""
    root = write_host(tmp_path / "host")

    with nvml(Gpus(root)):
        driver = pynvml.nvmlSystemGetDriverVersion()
        assert answer("nvmlSystemGetCudaDriverVersion") is None
        (root / "opt/rocm/.info").mkdir(parents=True)
        (root / "opt/rocm/.info/version").write_text("7.2.4-81\n")
        version = pynvml.nvmlSystemGetCudaDriverVersion()

    assert driver == f"{discover(root)[0].driver.removeprefix('amdgpu ')} SIMULATED"
    assert version == 7020


def test_masks_do_not_hide_gpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """NVML lists what the machine has, as it does next to CUDA_VISIBLE_DEVICES."""
    root = write_host(tmp_path / "host", profile="instinct")
    monkeypatch.setenv("HIP_VISIBLE_DEVICES", "3")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3")

    with nvml(Gpus(root)):
        assert pynvml.nvmlDeviceGetCount() == 8


def test_gpus_that_may_not_be_used_come_last(tmp_path: Path) -> None:
    """Watching needs no right to compute, and HIP's numbers stay those of the others."""
    root = write_host(tmp_path / "host", profile="instinct", faults=["no-atomics:0"])
    devices = [device for device in discover(root) if device.backend == "rocm"]

    with nvml(Gpus(root)):
        found = handles()
        places = [pynvml.nvmlDeviceGetPciInfo(handle).busIdLegacy.lower() for handle in found]

    assert [device.pci_address for device in devices if device.index is not None] == places[:7]
    assert len(places) == 8


def test_a_uuid_says_where_the_gpu_is() -> None:
    """Cards without a unique id get one of their address alone."""
    from hosts import device

    assert answers.uuid(device(0, "0000:c1:00.0")) == "GPU-00000000-0000-0000-0000-000000c10000"
    assert answers.uuid(device(1, "0001:03:00.1", unique_id="be3e76138065dcbf", partition=2)) == (
        "GPU-be3e7613-8065-dcbf-0001-000200030001"
    )
