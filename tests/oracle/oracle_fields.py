"""How each tool prints each value of rocmlab, and where a tool is known to print none or a wrong one."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from rocmlab.devices import Device

Printer = Callable[[Any], str]


@dataclass(frozen=True)
class Field:
    """Where and how a tool prints one value."""

    keys: tuple[str, ...]  # the first that is there
    print: Printer  # our value in the tool's notation
    pattern: str = r"(.*)"  # what of the tool's text is meant


def field(*keys: str, show: Printer = str, pattern: str = r"(.*)") -> Field:
    """Describe a value; by default it is printed as it is."""
    return Field(keys, show, pattern)


def _over(divisor: int, unit: str = "") -> Printer:
    return lambda value: f"{value // divisor}{unit}"


def _rounded(unit: str = "") -> Printer:
    return lambda value: f"{value:.0f}{unit}"


def _one_digit(value: float) -> str:
    return f"{value:.1f}"


ROCM_SMI: dict[str, Field] = {
    "smi_index": field("card", show=lambda value: f"card{value}"),
    "pci_address": field("PCI Bus", show=str.upper),
    "pci_id": field("Device ID", show=lambda value: f"0x{value.partition(':')[2]}"),
    "kfd_id": field("GUID"),
    "kfd_node": field("Node ID"),
    "gfx": field("GFX Version"),
    "unique_id": field("Unique ID", show=lambda value: f"0x{value.lstrip('0')}"),
    "serial": field("Serial Number"),
    "name": field("Card Series"),
    "driver": field("Driver version", show=lambda value: value.removeprefix("amdgpu ")),
    "vram_bytes": field("VRAM Total Memory (B)"),
    "gtt_bytes": field("GTT Total Memory (B)"),
    "compute_partition": field("Compute Partition"),
    "memory_partition": field("Memory Partition"),
    "link_width": field("pcie clock level", pattern=r".*GT/s x(\d+)"),
    "link_speed_gts": field("pcie clock level", show=_one_digit, pattern=r".*\(([\d.]+)GT/s"),
    "sample.busy_percent": field("GPU use (%)", show=_rounded()),
    "sample.memory_busy_percent": field("GPU Memory Read/Write Activity (%)", show=_rounded()),
    "sample.vram_used_bytes": field("VRAM Total Used Memory (B)"),
    "sample.vram_total_bytes": field("VRAM Total Memory (B)"),
    "sample.gtt_used_bytes": field("GTT Total Used Memory (B)"),
    "sample.gtt_total_bytes": field("GTT Total Memory (B)"),
    "sample.power_watts": field(
        "Average Graphics Package Power (W)", "Current Socket Graphics Package Power (W)", show=_one_digit
    ),
    "sample.power_cap_watts": field("Max Graphics Package Power (W)", show=_one_digit),
    "sample.edge_celsius": field("Temperature (Sensor edge) (C)", show=_one_digit),
    "sample.junction_celsius": field("Temperature (Sensor junction) (C)", show=_one_digit),
    "sample.memory_celsius": field("Temperature (Sensor memory) (C)", show=_one_digit),
    "sample.core_clock_hertz": field("sclk clock speed:", show=_over(10**6), pattern=r"\((\d+)Mhz\)"),
    "sample.memory_clock_hertz": field("mclk clock speed:", show=_over(10**6), pattern=r"\((\d+)Mhz\)"),
    "sample.voltage_volts": field("Voltage (mV)", show=lambda value: f"{value * 1000:.0f}"),
    "sample.fan_rpm": field("Fan RPM"),
    "sample.fan_percent": field("Fan speed (%)", show=_rounded()),
    "sample.link_width": field("pcie clock level", pattern=r".*GT/s x(\d+)"),
    "sample.link_speed_gts": field("pcie clock level", show=_one_digit, pattern=r".*\(([\d.]+)GT/s"),
    "sample.pcie_replays": field("PCIe Replay Count"),
    "sample.performance_level": field("Performance Level"),
}

MIB = 2**20
AMD_SMI: dict[str, Field] = {
    "index": field("list.hip_id"),
    "smi_index": field("list.gpu"),
    "pci_address": field("list.bdf"),
    "kfd_id": field("list.kfd_id"),
    "kfd_node": field("list.node_id"),
    "render_node": field("list.render", show=lambda value: value.removeprefix("/dev/dri/")),
    "card_node": field("list.card", show=lambda value: value.removeprefix("/dev/dri/")),
    "unique_id": field("list.hip_uuid", show=lambda value: f"GPU-{value}"),
    "partition": field("list.partition_id"),
    "name": field("static.board.product_name"),
    "serial": field("static.board.product_serial"),
    "vram_bytes": field("static.vram.size", show=_over(MIB, " MB")),
    "gtt_bytes": field("metric.mem_usage.total_gtt", show=_over(MIB, " MB")),
    "compute_units": field("static.asic.num_compute_units"),
    "gfx": field("static.asic.target_graphics_version"),
    "link_width": field("metric.pcie.width"),
    "link_width_max": field("static.bus.max_pcie_width"),
    "link_speed_gts": field("metric.pcie.speed", show=_rounded(" GT/s")),
    "link_speed_max_gts": field("static.bus.max_pcie_speed", show=_rounded(" GT/s")),
    "compute_partition": field("partition.accelerator_type"),
    "memory_partition": field("partition.memory"),
    "numa_node": field("static.numa.affinity", pattern=r"(\d+)"),
    "driver": field("static.driver.version", show=lambda value: value.removeprefix("amdgpu ")),
    "sample.busy_percent": field("metric.usage.gfx_activity", show=_rounded(" %")),
    "sample.memory_busy_percent": field("metric.usage.umc_activity", show=_rounded(" %")),
    "sample.vram_used_bytes": field("metric.mem_usage.used_vram", show=_over(MIB, " MB")),
    "sample.vram_total_bytes": field("metric.mem_usage.total_vram", show=_over(MIB, " MB")),
    "sample.gtt_used_bytes": field("metric.mem_usage.used_gtt", show=_over(MIB, " MB")),
    "sample.gtt_total_bytes": field("metric.mem_usage.total_gtt", show=_over(MIB, " MB")),
    "sample.power_watts": field("metric.power.socket_power", show=_rounded(" W")),
    "sample.power_cap_watts": field("static.limit.ppt0.socket_power_limit", show=_rounded(" W")),
    "sample.power_cap_max_watts": field("static.limit.ppt0.max_power_limit", show=_rounded(" W")),
    "sample.edge_celsius": field("metric.temperature.edge", show=_rounded(" C")),
    "sample.edge_critical_celsius": field("static.limit.slowdown_edge_temperature", show=_rounded(" C")),
    "sample.junction_celsius": field("metric.temperature.hotspot", show=_rounded(" C")),
    "sample.junction_critical_celsius": field("static.limit.slowdown_hotspot_temperature", show=_rounded(" C")),
    "sample.memory_celsius": field("metric.temperature.mem", show=_rounded(" C")),
    "sample.memory_critical_celsius": field("static.limit.slowdown_vram_temperature", show=_rounded(" C")),
    "sample.core_clock_hertz": field(
        "metric.clock.gfx_0.clk", "metric.clock.apu_average_gfxclk_frequency", show=_over(10**6, " MHz")
    ),
    "sample.core_clock_max_hertz": field("metric.clock.gfx_0.max_clk", show=_over(10**6, " MHz")),
    "sample.memory_clock_hertz": field(
        "metric.clock.mem_0.clk", "metric.clock.apu_average_uclk_frequency", show=_over(10**6, " MHz")
    ),
    "sample.memory_clock_max_hertz": field("metric.clock.mem_0.max_clk", show=_over(10**6, " MHz")),
    "sample.voltage_volts": field("metric.power.gfx_voltage", show=lambda value: f"{value * 1000:.0f} mV"),
    "sample.fan_rpm": field("metric.fan.rpm"),
    "sample.fan_percent": field("metric.fan.usage", show=lambda value: f"{round(value, 2)} %"),
    "sample.link_width": field("metric.pcie.width"),
    "sample.link_speed_gts": field("metric.pcie.speed", show=_rounded(" GT/s")),
    "sample.pcie_replays": field("metric.pcie.replay_count"),
    "sample.ecc_corrected": field("metric.ecc.total_correctable_count", show=lambda value: str(sum(value.values()))),
    "sample.ecc_uncorrected": field(
        "metric.ecc.total_uncorrectable_count", show=lambda value: str(sum(value.values()))
    ),
    "sample.throttle_reasons": field(
        "metric.power.throttle_status", show=lambda value: "THROTTLED" if value else "UNTHROTTLED"
    ),
    "sample.performance_level": field("metric.perf_level", show=lambda value: f"AMDSMI_DEV_PERF_LEVEL_{value.upper()}"),
}

# What no tool prints, and why it needs no oracle.
NOT_PRINTED = {
    "backend": "ours",
    "is_usable": "ours: what this process may open",
    "why_not": "ours",
    "simulated": "ours",
    "is_apu": "the tools do not say",
    "architecture": "follows from gfx, in our data file",
    "support": "follows from gfx, in our data file",
    "pool": "the tools do not say; HIP's memory is compared with it in test_oracle_hip.py",
    "pool_bytes": "the same",
    "board_id": "rocm-smi prints it in place of a partition's own, which is compared",
    "xgmi_hive": "the tools print links, not the hive they belong to",
    "sample.time_seconds": "ours",
    "sample.is_asleep": "the tools wake a sleeping GPU",
}


@dataclass(frozen=True)
class Difference:
    """One value that a tool and rocmlab do not print alike."""

    tool: str
    field: str
    device: Device
    theirs: str | None
    ours: str | None

    @property
    def is_silent(self) -> bool:
        """Whether the tool prints nothing where rocmlab has a value."""
        return self.theirs is None

    @property
    def is_part(self) -> bool:
        """Whether it is about a partition other than the first."""
        return bool(self.device.partition)

    def __str__(self) -> str:
        where = f"HIP {self.device.index} {self.device.pci_address}"
        return f"{self.tool}, {where}, {self.field}: they print {self.theirs!r}, we {self.ours!r}"


@dataclass(frozen=True)
class Known:
    """A difference that is known, with the reason."""

    tools: str  # pattern
    fields: str  # pattern
    applies: Callable[[Difference], bool]
    reason: str


def _is_divided(difference: Difference) -> bool:
    return difference.device.compute_partition not in (None, "SPX")


KNOWN = (
    Known("amd-smi.*", "compute_units|gfx|driver", lambda d: d.is_silent, "asks the driver through the render node"),
    Known("amd-smi.*", "name", lambda d: d.is_silent, "prints what the card's memory says; the data file knows more"),
    Known("amd-smi.*", "partition", lambda d: d.theirs == "0" and d.ours is None, "numbers undivided GPUs too"),
    Known(
        ".*", "unique_id", lambda d: d.ours is None and set(d.theirs or "-") <= set("GPUx0-"), "0 identifies nothing"
    ),
    Known(
        "amd-smi.*",
        "sample.ecc_.*",
        lambda d: d.theirs == "0" and d.ours is None,
        "prints 0 for a GPU that does not count errors",
    ),
    Known(
        "rocm-smi.*",
        "unique_id",
        lambda d: d.device.compute_partition not in (None, "SPX") and bool(d.theirs and d.ours),
        "prints the card's id; newer drivers give each partition one of its own in KFD, which HIP takes",
    ),
    Known("rocm-smi-6.4|rocm-smi-7.2", "name", lambda d: d.is_silent, "asks libdrm, which needs the driver"),
    Known(
        "rocm-smi-6.1",
        "name",
        lambda d: d.theirs == "0x1002" and d.device.serial is None,
        "prints the vendor's number for cards whose memory has no name",
    ),
    Known(
        "rocm-smi-6.1",
        "gfx",
        lambda d: d.theirs in ("gfx9010", "gfx11000", "gfx11001", "gfx12001"),
        "prints gfx_target_version in decimal (ROCm/rocm_smi_lib fixes it in 6.2)",
    ),
    Known(
        "rocm-smi.*",
        "sample.fan_.*",
        lambda d: d.is_silent and d.ours == "0",
        "prints no fan that stands still",
    ),
    Known(
        "rocm-smi.*",
        "(sample.)?link_(width|speed_gts)",
        lambda d: d.is_silent and bool(d.device.is_apu),
        "reads pp_dpm_pcie, which APUs do not have",
    ),
    Known(
        "amd-smi.*",
        "(sample.)?(link_(width|speed_gts)|pcie_replays|voltage_volts|core_clock_max_hertz|memory_clock_max_hertz)",
        lambda d: d.is_silent and bool(d.device.is_apu),
        "reads gpu_metrics, whose revision 3 for APUs has none of it",
    ),
    Known(
        "amd-smi.*",
        "sample.throttle_reasons",
        lambda d: d.ours is None and d.theirs in ("UNTHROTTLED", "THROTTLED") and d.device.gfx == "gfx942",
        "reads bits whose meaning differs by product; revision 1.5 has no others",
    ),
    Known(
        "rocm-smi-6.4|rocm-smi-7.2",
        "sample.memory_busy_percent",
        lambda d: d.is_silent and _is_divided(d),
        "falls over a partition that has no memory in use (ValueError in showMemUse)",
    ),
    Known(
        "rocm-smi-6.4",
        "pci_id|kfd_node|gfx",
        lambda d: d.is_silent and d.is_part,
        "ends at the product's name, which partitions lack",
    ),
    Known(
        "rocm-smi.*|amd-smi.*",
        "gtt_bytes|serial|link_.*|compute_partition|memory_partition|numa_node|pci_id|name",
        lambda d: d.is_silent and d.is_part,
        "prints for partitions other than the first only what their own device folder says, which is nothing",
    ),
    Known(
        ".*",
        "pci_address",
        lambda d: d.is_part and (d.theirs or "")[:-1] == (d.ours or "")[:-1],
        "prints the number of the partition as the PCI function, on older drivers; there is no such PCI device",
    ),
    Known(
        "rocm-smi-6.1",
        "sample.*",
        lambda d: d.is_part and d.ours is None and d.theirs is not None,
        "repeats the whole GPU's values for each partition, which would count them eight times",
    ),
    Known(
        ".*",
        "sample.vram_total_bytes",
        lambda d: d.is_part and d.ours is None,
        "prints the partition's share; our samples of the GPU are those of partition 0",
    ),
    Known(
        ".*",
        "vram_bytes",
        lambda d: _is_divided(d) and (not d.is_part or d.tool == "rocm-smi-6.1"),
        "prints the whole GPU's memory for its first partition (6.1: for all); a program gets the partition's share",
    ),
)


def known(difference: Difference) -> Known | None:
    """Return what explains a difference, or None."""
    for candidate in KNOWN:
        is_meant = re.fullmatch(candidate.tools, difference.tool) and re.fullmatch(candidate.fields, difference.field)
        if is_meant and candidate.applies(difference):
            return candidate
    return None


def fields_of(tool: str) -> dict[str, Field]:
    """Return what a tool prints."""
    return ROCM_SMI if tool.startswith("rocm-smi") else AMD_SMI
