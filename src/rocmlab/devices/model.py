"""What a device is, what it reports, and what every backend must report."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

TYPE_CHECKING = False  # `typing` itself would cost milliseconds at each start
if TYPE_CHECKING:
    from typing import Any, Protocol
else:
    Protocol = object

BACKENDS = ("rocm", "cuda", "metal", "cpu")


@dataclass(frozen=True)
class Device:
    """One GPU, one partition of a GPU, or the CPU.

    The PCI address identifies a GPU; the numbers that tools print (HIP index, rocm-smi index, render node) differ from
    each other and none stands for another. Unknown is None.
    """

    backend: str  # rocm, cuda, metal or cpu
    index: int | None  # what HIP_VISIBLE_DEVICES or CUDA_VISIBLE_DEVICES calls it; None if the runtime cannot list it
    name: str  # product name, or what is known of it
    is_usable: bool  # by this process and its children, now, visibility masks included
    why_not: str | None = None  # why it cannot be used; None if it can
    gfx: str | None = None  # ISA target of an AMD GPU, such as gfx1100
    pci_address: str | None = None  # 0000:03:00.0
    render_node: str | None = None  # /dev/dri/renderD128
    unique_id: str | None = None  # 16 hex digits (rocm) or UUID (cuda); None where the card has none
    vram_bytes: int | None = None  # total
    simulated: bool = False  # read from a simulated host

    board_id: str | None = None  # unique id of the card whose partition it is; newer drivers give each one of its own
    smi_index: int | None = None  # what rocm-smi and amd-smi (nvidia-smi) call it: rank by PCI address
    kfd_node: int | None = None  # node of the KFD topology, whose order is that of HIP
    kfd_id: int | None = None  # gpu_id of the KFD topology, which names its files under kfd/proc
    card_node: str | None = None  # /dev/dri/card0
    pci_id: str | None = None  # vendor and device: 1002:744c
    architecture: str | None = None  # CDNA2, RDNA3, …
    # ROCm on its target: works, override (with one), overridden, unsupported, wrong or unknown; None elsewhere
    support: str | None = None
    compute_units: int | None = None  # streaming multiprocessors on cuda, cores on cpu
    is_apu: bool | None = None  # shares the host's memory
    gtt_bytes: int | None = None  # host memory that the GPU may use; an APU's models live there
    pool: str | None = None  # where frameworks allocate on an APU: gtt or vram; None elsewhere
    pool_bytes: int | None = None  # how much of it: KFD has a limit of its own (its memory bank)
    link_width: int | None = None  # PCIe lanes in use
    link_width_max: int | None = None
    link_speed_gts: float | None = None  # PCIe gigatransfers per second per lane, now
    link_speed_max_gts: float | None = None
    driver: str | None = None  # name and version: amdgpu 6.12.12
    compute_partition: str | None = None  # SPX, CPX, …; None where the card has no partitions
    memory_partition: str | None = None  # NPS1, …
    partition: int | None = None  # which partition of its GPU this device is; None where the card has none
    numa_node: int | None = None  # None also where the platform has no NUMA (sysfs says -1)
    xgmi_hive: str | None = None  # 16 hex digits, the same for GPUs linked by xGMI
    serial: str | None = None  # of the card

    @property
    def memory_bytes(self) -> int | None:
        """How much frameworks can allocate on a GPU; None if unknown. On most APUs that is the host's (GTT)."""
        return self.pool_bytes or (self.gtt_bytes if self.pool == "gtt" else self.vram_bytes)

    def as_dict(self) -> dict[str, Any]:
        """Return all fields, ready for JSON."""
        return dict(vars(self))


@dataclass(frozen=True)
class Sample:
    """What one device reports at one instant, in base units; None is unknown, never 0.

    Source of each value: the files of `rocmlab.devices.sensors` (rocm), NVML (cuda), /proc (cpu).
    """

    time_seconds: float  # Unix time of the reading
    is_asleep: bool = False  # runtime-suspended: nothing else was read, so as not to wake it
    busy_percent: float | None = None  # share of time in which the GPU worked
    memory_busy_percent: float | None = None  # share of time in which its memory controller worked
    vram_used_bytes: int | None = None
    vram_total_bytes: int | None = None
    gtt_used_bytes: int | None = None
    gtt_total_bytes: int | None = None
    power_watts: float | None = None
    power_cap_watts: float | None = None
    power_cap_max_watts: float | None = None
    edge_celsius: float | None = None
    edge_critical_celsius: float | None = None
    junction_celsius: float | None = None  # the hotspot
    junction_critical_celsius: float | None = None
    memory_celsius: float | None = None
    memory_critical_celsius: float | None = None
    core_clock_hertz: int | None = None  # sclk
    core_clock_max_hertz: int | None = None
    memory_clock_hertz: int | None = None  # mclk
    memory_clock_max_hertz: int | None = None
    voltage_volts: float | None = None
    fan_rpm: int | None = None
    fan_percent: float | None = None  # of its full speed
    link_width: int | None = None
    link_speed_gts: float | None = None
    pcie_replays: int | None = None  # since the driver was loaded
    ecc_corrected: dict[str, int] | None = None  # errors by block since the driver was loaded
    ecc_uncorrected: dict[str, int] | None = None
    throttle_reasons: tuple[str, ...] | None = None  # empty: it does not throttle; None: not reported
    performance_level: str | None = None  # auto, low, high, manual, …

    def as_dict(self) -> dict[str, Any]:
        """Return all fields, ready for JSON."""
        return dict(vars(self))


def device_id(device: Device) -> str:
    """Return what a device is called in JSON: its PCI address, `/N` behind it for a partition, `cpu` for the CPU."""
    if device.backend == "cpu":
        return "cpu"
    address = device.pci_address or device.unique_id or f"{device.backend}-{device.index}"
    return address if device.partition is None else f"{address}/{device.partition}"


def product_names(devices: Sequence[Device]) -> str:
    """Return products, each once: `2 x Radeon RX 7900 XTX`."""
    counts: dict[str, int] = {}
    for device in devices:
        counts[device.name] = counts.get(device.name, 0) + 1
    text = ", ".join(f"{count} x {name}" if count > 1 else name for name, count in counts.items())
    return text + (" (SIMULATED)" if any(device.simulated for device in devices) else "")


class Backend(Protocol):
    """One kind of hardware."""

    name: str

    def discover(self, root: Path) -> list[Device]:
        """Return this backend's devices on the host below `root`, masks not applied; empty where there are none."""
