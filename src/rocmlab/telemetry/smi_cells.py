"""One device as text: the value of each column of `rocmlab smi`, and how urgent it is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rocmlab.telemetry.model import NO_ANSWER
from rocmlab.telemetry.smi_text import clean

TYPE_CHECKING = False  # `typing` itself would cost milliseconds at each start
if TYPE_CHECKING:
    from typing import Any, TypeAlias

    from rocmlab.telemetry.smi_text import Span

    Row: TypeAlias = Mapping[str, Any]

UNKNOWN: Span = ("-", "dim")
LABELS = {"rocm": "HIP", "cuda": "CUDA", "metal": "Metal", "cpu": "CPU"}
GIB = 2**30

# Levels. Red is for what needs attention: a GPU that works hard is fine.
IDLE_PERCENT, BUSY_PERCENT = 5, 80
FULL_PERCENT, ALMOST_FULL_PERCENT = 95, 85  # of memory
HOT_MARGIN, WARM_MARGIN = 5, 15  # degrees below the critical temperature
HOT, WARM = 95, 85  # where the card reports no critical temperature

SENSORS = ("junction", "edge")  # in the order of preference


def number(device: Row) -> str:
    """Return what the runtime calls a device: `HIP 0`; `HIP -` where it cannot list it."""
    index = "" if device["backend"] == "cpu" else " -" if device["index"] is None else f" {device['index']}"
    return LABELS[device["backend"]] + index


def short_name(name: str) -> str:
    """Return a product name without its maker, whom everybody knows."""
    return clean(name).removeprefix("AMD ").removeprefix("NVIDIA ")


def sensor(device: Row, sample: Row) -> str:
    """Return which temperature is shown: that of the junction (the hotspot), else of the edge; NVIDIA has one."""
    if device["backend"] == "cuda":
        return "GPU"
    return next((key for key in SENSORS if sample.get(f"{key}_celsius") is not None), "")


def temperature(sample: Row, key: str) -> Span:
    """Return a temperature, coloured by what the card calls critical."""
    celsius, critical = sample.get(f"{key}_celsius"), sample.get(f"{key}_critical_celsius")
    if celsius is None:
        return UNKNOWN
    hot, warm = (critical - HOT_MARGIN, critical - WARM_MARGIN) if critical else (HOT, WARM)
    return f"{celsius:.0f}°C", "bad" if celsius >= hot else "warn" if celsius >= warm else "good"


def main_temperature(sample: Row) -> Span:
    """Return the temperature of the sensor that `sensor` names."""
    return temperature(sample, next((key for key in SENSORS if sample.get(f"{key}_celsius") is not None), "edge"))


def power(sample: Row) -> Span:
    """Return `412/750W`, or `412W` where no cap is known."""
    watts, cap = sample.get("power_watts"), sample.get("power_cap_watts")
    if watts is None:
        return UNKNOWN
    return (f"{watts:.0f}/{cap:.0f}W", "") if cap is not None else (f"{watts:.0f}W", "")


def power_alone(sample: Row) -> Span:
    """Return `412W`."""
    watts = sample.get("power_watts")
    return UNKNOWN if watts is None else (f"{watts:.0f}W", "")


def percent(value: float | None, level: str = "") -> Span:
    """Return `97%`."""
    return UNKNOWN if value is None else (f"{value:.0f}%", level)


def busy(sample: Row) -> Span:
    """Return the busy share, dim while it is idle."""
    value = sample.get("busy_percent")
    return percent(value, busy_level(value))


def busy_level(value: float | None) -> str:
    """Return the level of a busy share in percent."""
    if value is None or value < IDLE_PERCENT:
        return "dim"
    return "good" if value >= BUSY_PERCENT else "cool"


def uses_gtt(device: Row, sample: Row) -> bool:
    """Return whether the memory to show is the host's: on an APU models live there, unless its own part is larger."""
    if device.get("pool"):
        return bool(device["pool"] == "gtt")
    gtt, vram = sample.get("gtt_total_bytes"), sample.get("vram_total_bytes")
    if device["backend"] == "cpu" or vram is None:
        return gtt is not None
    return bool(device.get("is_apu") and gtt and gtt > vram)


def memory_bytes(device: Row, sample: Row) -> tuple[int | None, int | None]:
    """Return used and total bytes of the memory where models live; the total is what frameworks can allocate of it."""
    pool = "gtt" if uses_gtt(device, sample) else "vram"
    used, total, limit = sample.get(f"{pool}_used_bytes"), sample.get(f"{pool}_total_bytes"), device.get("pool_bytes")
    return used, min(total, limit) if total and limit else total


def memory(device: Row, sample: Row) -> Span:
    """Return `38.2/192.0 GiB` or what is known of it, with `GTT` behind it where that is what is meant."""
    used, total = memory_bytes(device, sample)
    if used is None and total is None:
        return UNKNOWN
    text = "/".join(f"{count / GIB:.1f}" for count in (used, total) if count is not None)
    part = " in all" if used is None else " in use" if total is None else ""
    return f"{text} GiB{part}{' GTT' * uses_gtt(device, sample)}", memory_level(device, sample)


def other_memory(device: Row, sample: Row) -> str:
    """Return what an APU's other memory holds, and which of the two frameworks use; empty where it has no other."""
    if not device.get("is_apu") or None in (sample.get("vram_total_bytes"), sample.get("gtt_total_bytes")):
        return ""
    names = ("GTT", "VRAM") if uses_gtt(device, sample) else ("VRAM", "GTT")
    used, total = (sample.get(f"{names[1].lower()}_{kind}_bytes") for kind in ("used", "total"))
    size = "/".join(f"{count / GIB:.1f}" for count in (used, total) if count is not None)
    return f"frameworks allocate from {names[0]}; {names[1]} {size} GiB; hipMalloc does not count as GTT in use"


def memory_share(device: Row, sample: Row) -> float | None:
    """Return the share of memory in use, 0 to 1."""
    used, total = memory_bytes(device, sample)
    return used / total if used is not None and total else None


def memory_level(device: Row, sample: Row) -> str:
    """Return the level of memory in use."""
    share = memory_share(device, sample)
    if share is None:
        return ""
    return "bad" if share * 100 >= FULL_PERCENT else "warn" if share * 100 >= ALMOST_FULL_PERCENT else "good"


def clocks(sample: Row) -> Span:
    """Return core and memory clock in MHz: `2100/1300`."""
    pair = (sample.get("core_clock_hertz"), sample.get("memory_clock_hertz"))
    if pair == (None, None):
        return UNKNOWN
    return "/".join("-" if hertz is None else f"{hertz / 1e6:.0f}" for hertz in pair), ""


def fan(sample: Row) -> Span:
    """Return the fan's share of its full speed, else its speed."""
    if sample.get("fan_percent") is not None:
        return percent(sample["fan_percent"])
    return UNKNOWN if sample.get("fan_rpm") is None else (f"{sample['fan_rpm']}rpm", "")


def is_degraded(device: Row, sample: Row) -> bool:
    """Return whether the card has fewer PCIe lanes than it could; a lower speed alone saves power while it is idle."""
    lanes, most = sample.get("link_width") or device.get("link_width"), device.get("link_width_max")
    return bool(lanes and most and lanes < most)


def link(device: Row, sample: Row) -> Span:
    """Return `x16 32GT/s`, or `x8 of x16 32GT/s !` where lanes are missing."""
    lanes = sample.get("link_width") or device.get("link_width")
    speed = sample.get("link_speed_gts") or device.get("link_speed_gts")
    parts = [f"x{lanes}"] if lanes else []
    if is_degraded(device, sample):
        parts.append(f"of x{device['link_width_max']}")
    parts += [f"{speed:g}GT/s"] if speed else []
    if not parts:
        return UNKNOWN
    return (" ".join([*parts, "!"]), "bad") if is_degraded(device, sample) else (" ".join(parts), "")


def throttle(sample: Row) -> Span:
    """Return why it throttles; `no` if it does not."""
    reasons: Sequence[str] | None = sample.get("throttle_reasons")
    if reasons is None:
        return UNKNOWN
    return (",".join(map(clean, reasons)), "warn") if reasons else ("no", "dim")


def errors(sample: Row, labels: tuple[str, str] = ("ce", "ue")) -> Span:
    """Return the memory's errors: `117 ce 2 ue` (corrected, uncorrected); `0` if there are none."""
    found = [sample.get("ecc_corrected"), sample.get("ecc_uncorrected")]
    if found == [None, None]:
        return UNKNOWN
    counts = [sum((each or {}).values()) for each in found]
    text = " ".join(f"{count} {word}" for count, word in zip(counts, labels, strict=True) if count)
    return text or "0", "bad" if counts[1] else "warn" if counts[0] else "dim"


def partition(device: Row) -> Span:
    """Return the modes of a GPU that can be divided: `CPX/NPS4`."""
    modes = "/".join(filter(None, (device.get("compute_partition"), device.get("memory_partition"))))
    return (clean(modes), "") if modes else UNKNOWN


def has_reading(sample: Row) -> bool:
    """Return whether a device reported any value."""
    return any(value is not None for key, value in sample.items() if key not in NO_ANSWER)
