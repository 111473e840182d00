"""What is answered to which question of NVML, in NVML's units; None is unknown, for which `library` has a code.

Source: nvml.h of CUDA 13. Whatever is missing is not supported. docs/nvitop.md explains what each value is on AMD.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from rocmlab.devices import Device, Sample
from rocmlab.devices.nvml import GIGATRANSFERS
from rocmlab.telemetry.smi_cells import memory_bytes

GENERATIONS = {speed: generation for generation, speed in GIGATRANSFERS.items()}
MEGA, MILLI = 1_000_000, 1000

# nvmlClockType_t
GRAPHICS, STREAMING, MEMORY = 0, 1, 2
# nvmlTemperatureThresholds_t
SLOWDOWN, MEMORY_MAX, GPU_MAX = 1, 2, 3
# nvmlMemoryErrorType_t and nvmlEccCounterType_t
CORRECTED, UNCORRECTED = 0, 1
VOLATILE = 0

Selectors = tuple[int, ...]
Number = Callable[[Device, Sample, Selectors], int | None]
Fields = Callable[[Device, Sample], Mapping[str, Any] | None]


def name(device: Device) -> str:
    """Return the product's name; nvitop keeps the end of one that is too long."""
    return f"SIMULATED {device.name}" if device.simulated else device.name


def uuid(device: Device) -> str:
    """Return a name of the form that NVML's users insist on, made of the card's unique id, address and partition."""
    domain, bus, place, function = _address(device)
    unique = (device.unique_id or "").rjust(16, "0")[-16:]
    location = f"{domain & 0xFFFF:04x}-{device.partition or 0:04x}{bus:04x}{place:02x}{function:02x}"
    return f"GPU-{unique[:8]}-{unique[8:12]}-{unique[12:]}-{location}"


def bus_id(device: Device, digits: int) -> str:
    """Return the PCI address with `digits` digits for the domain."""
    domain, bus, place, function = _address(device)
    return f"{domain:0{digits}X}:{bus:02X}:{place:02X}.{function:X}"


def pci(device: Device, sample: Sample) -> Mapping[str, Any] | None:
    """Return `nvmlPciInfo_t`."""
    if device.pci_address is None:
        return None
    domain, bus, place, _ = _address(device)
    vendor, _, product = (device.pci_id or "1002:0000").partition(":")
    return {
        "busIdLegacy": bus_id(device, 4),
        "busId": bus_id(device, 8),
        "domain": domain,
        "bus": bus,
        "device": place,
        "pciDeviceId": int(product, 16) << 16 | int(vendor, 16),
        "pciSubSystemId": 0,
    }


def _address(device: Device) -> tuple[int, int, int, int]:
    """Return domain, bus, device and function of a PCI address such as 0000:03:00.0."""
    domain, bus, rest = (device.pci_address or "0:0:0.0").split(":")
    place, _, function = rest.partition(".")
    return int(domain, 16), int(bus, 16), int(place, 16), int(function, 16)


def memory(device: Device, sample: Sample) -> Mapping[str, Any] | None:
    """Return `nvmlMemory_t` of the memory that `rocmlab smi` shows: VRAM, or GTT where an APU's frameworks allocate."""
    used, total = memory_bytes(vars(device), vars(sample))
    if total is None or used is None:
        return None
    return {"total": total, "used": used, "free": max(0, total - used), "reserved": 0}


def utilization(device: Device, sample: Sample) -> Mapping[str, Any] | None:
    """Return `nvmlUtilization_t`; the structure cannot represent an unknown memory load: it is 0 then."""
    if sample.busy_percent is None:
        return None
    return {"gpu": round(sample.busy_percent), "memory": round(sample.memory_busy_percent or 0)}


def _temperature(device: Device, sample: Sample, selectors: Selectors) -> int | None:
    hottest = sample.edge_celsius if sample.junction_celsius is None else sample.junction_celsius
    return _rounded(hottest) if selectors == (0,) else None


def _threshold(device: Device, sample: Sample, selectors: Selectors) -> int | None:
    critical = sample.edge_critical_celsius if sample.junction_celsius is None else sample.junction_critical_celsius
    return _rounded(
        {SLOWDOWN: critical, GPU_MAX: critical, MEMORY_MAX: sample.memory_critical_celsius}.get(selectors[0])
    )


def _clock(device: Device, sample: Sample, selectors: Selectors) -> int | None:
    core, memory_clock = sample.core_clock_hertz, sample.memory_clock_hertz
    return _rounded({GRAPHICS: core, STREAMING: core, MEMORY: memory_clock}.get(selectors[0]), 1 / MEGA)


def _clock_max(device: Device, sample: Sample, selectors: Selectors) -> int | None:
    core, memory_clock = sample.core_clock_max_hertz, sample.memory_clock_max_hertz
    return _rounded({GRAPHICS: core, STREAMING: core, MEMORY: memory_clock}.get(selectors[0]), 1 / MEGA)


def _errors(device: Device, sample: Sample, selectors: Selectors) -> int | None:
    kind, counter = selectors
    counts = {CORRECTED: sample.ecc_corrected, UNCORRECTED: sample.ecc_uncorrected}.get(kind)
    return None if counts is None or counter != VOLATILE else sum(counts.values())


def _fan(device: Device, sample: Sample, selectors: Selectors) -> int | None:
    return _rounded(sample.fan_percent) if not any(selectors) else None  # there is one: number 0


def _of_sample(field: str, factor: float = 1.0) -> Number:
    return lambda device, sample, selectors: _rounded(getattr(sample, field), factor)


def _of_device(field: str) -> Number:
    return lambda device, sample, selectors: getattr(device, field)


def _rounded(number: float | None, factor: float = 1.0) -> int | None:
    return None if number is None else round(number * factor)


# Functions (handle, selectors …, where to write a number).
NUMBERS: Mapping[str, Number] = {
    "nvmlDeviceGetTemperature": _temperature,  # °C
    "nvmlDeviceGetTemperatureThreshold": _threshold,
    "nvmlDeviceGetPowerUsage": _of_sample("power_watts", MILLI),
    "nvmlDeviceGetPowerManagementLimit": _of_sample("power_cap_watts", MILLI),
    "nvmlDeviceGetEnforcedPowerLimit": _of_sample("power_cap_watts", MILLI),
    "nvmlDeviceGetFanSpeed": _fan,  # percent
    "nvmlDeviceGetNumFans": lambda device, sample, _: None if sample.fan_percent is None else 1,
    "nvmlDeviceGetClockInfo": _clock,  # MHz
    "nvmlDeviceGetMaxClockInfo": _clock_max,
    "nvmlDeviceGetTotalEccErrors": _errors,
    "nvmlDeviceGetCurrPcieLinkWidth": _of_sample("link_width"),
    "nvmlDeviceGetCurrPcieLinkGeneration": lambda device, sample, _: GENERATIONS.get(sample.link_speed_gts or 0),
    "nvmlDeviceGetMaxPcieLinkWidth": _of_device("link_width_max"),
    "nvmlDeviceGetMaxPcieLinkGeneration": lambda device, sample, _: GENERATIONS.get(device.link_speed_max_gts or 0),
    "nvmlDeviceGetPcieReplayCounter": _of_sample("pcie_replays"),
    "nvmlDeviceGetNumaNodeId": _of_device("numa_node"),
}
# Functions (handle, buffer, its size).
TEXTS: Mapping[str, Callable[[Device], str | None]] = {
    "nvmlDeviceGetName": name,
    "nvmlDeviceGetUUID": uuid,
    "nvmlDeviceGetSerial": lambda device: device.serial,
}
# Functions (handle, where to write a structure).
STRUCTURES: Mapping[str, Fields] = {
    "nvmlDeviceGetPciInfo": pci,
    "nvmlDeviceGetMemoryInfo": memory,
    "nvmlDeviceGetUtilizationRates": utilization,
}
