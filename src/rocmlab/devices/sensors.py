"""Which files of the amdgpu driver hold the fields of a Sample, and what their contents mean.

Source: `/sys/bus/pci/devices/<address>/*` and `hwmon/hwmon*/*` in it (kernel docs: gpu/amdgpu/thermal). The table
`gpu_metrics` fills the gaps. `rocmlab.devices.card_reader` reads them.
`pcie_bw` is never read: the driver counts for a second before it answers.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache, lru_cache
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from rocmlab.devices import roots
from rocmlab.devices.cards import gigatransfers, link_folder
from rocmlab.devices.model import Device
from rocmlab.devices.roots import integer, list_names, read_text

HWMON_FILES = ("power1_", "fan1_", "pwm1")  # how those begin whose number is fixed
# Sensors of hwmon whose number is not fixed: by the text in `<sensor>_label`, the key and the files that are wanted.
SENSORS: Mapping[str, tuple[str, tuple[str, ...]]] = {
    "edge": ("edge", ("input", "crit")),
    "junction": ("junction", ("input", "crit")),
    "mem": ("memory", ("input", "crit")),
    "sclk": ("sclk", ("input",)),
    "mclk": ("mclk", ("input",)),
    "vddgfx": ("vddgfx", ("input",)),
}
UNLABELLED = {"temp1": "edge", "freq1": "sclk", "freq2": "mclk", "in0": "vddgfx"}  # before Linux 5.3

DRIVERS = ("amdgpu", "radeon")  # what hwmon calls them; radeon has GPUs of GCN 1 and 2
ASLEEP = ("suspended", "suspending")  # what `power/runtime_status` says of it

# What stays the same as long as the driver is loaded, so that a sampler need not read it again.
CONSTANT = frozenset(
    (
        "mem_info_vram_total",
        "mem_info_gtt_total",
        "power1_cap_max",
        "fan1_max",
        "edge_crit",
        "junction_crit",
        "memory_crit",
    )
)

MICRO, MILLI, MEGA = 1e6, 1e3, 1_000_000
PWM_MAX = 255  # of `pwm1`, always (kernel hwmon docs); rocm-smi divides by it too

# The least and the most that is believed, by unit; anything else is unknown. No clock or fan need turn, but a rail
# without voltage, a draw or cap of 0 W, a highest clock of 0 and 0 degrees are how the driver reports unknown values.
LIMITS: Mapping[str, tuple[float, float]] = {
    "percent": (0, 101),  # averages round up
    "bytes": (0, 1 << 50),
    "watts": (1e-6, 10_000),
    "celsius": (1, 250),
    "hertz": (0, 20_000_000_000),
    "highest hertz": (1, 20_000_000_000),
    "volts": (1e-3, 10),
    "rpm": (0, 100_000),
    "width": (1, 32),  # 63 is what a dead device answers
    "gts": (1, 1000),
    "replays": (0, (1 << 64) - 1),
}

CLOCK_LINE = re.compile(r"^\s*(\w+):\s*([0-9]{1,6})\s*[Mm][Hh]z\s*(\*?)", re.MULTILINE)
ERROR_LINE = re.compile(r"^\s*(ue|ce)\s*:\s*([0-9]{1,20})\s*$", re.MULTILINE)

Number = TypeVar("Number", int, float)


@dataclass(frozen=True)
class Files:
    """The files that feed the Samples of one device; some may not exist. Paths are below the root."""

    texts: dict[str, Path]  # by name; those of SENSORS as `edge_input`
    errors: dict[str, Path]  # error counts by block: umc, gfx, sdma, …
    metrics: Path  # the binary table


def find_folder(device: Device, root: Path) -> Path | None:
    """Return the folder of a device's files below `root`: by PCI address, else by its DRM nodes.

    None if there is none, or if the device is a partition that has no sensors of its own.
    """
    candidates = []
    if device.pci_address and re.fullmatch(r"[0-9a-f:.]{7,20}", device.pci_address):
        candidates.append(root / "sys/bus/pci/devices" / device.pci_address)
    for node in (device.card_node, device.render_node):
        if node and re.fullmatch(r"(card|renderD)\d+", Path(node).name):
            candidates.append(root / "sys/class/drm" / Path(node).name / "device")
    return None if device.partition else next((folder for folder in candidates if list_names(folder)), None)


def find_files(folder: Path) -> Files:
    """Return which files feed the Samples of the device with this folder; it must be awake."""
    hwmon = _hwmon(folder)
    texts = {name: folder / name for name in NAMES if not name.startswith(HWMON_FILES)}
    slot = Path(link_folder(str(folder)))
    texts |= {name: slot / name for name in LINK}
    if hwmon is not None:
        texts |= {name: hwmon / name for name in NAMES if name.startswith(HWMON_FILES)}
        texts |= _sensors(hwmon)
    blocks = (re.fullmatch(r"(\w{1,32})_err_count", name, re.ASCII) for name in list_names(folder / "ras"))
    return Files(
        texts=texts,
        errors={block[1]: folder / "ras" / block[0] for block in blocks if block},
        metrics=folder / "gpu_metrics",
    )


def _hwmon(folder: Path) -> Path | None:
    """Return the driver's own folder of sensors, whose number differs at each start."""
    found = (folder / "hwmon" / name for name in list_names(folder / "hwmon"))
    return next((hwmon for hwmon in found if read_text(hwmon / "name") in DRIVERS), None)


def _sensors(hwmon: Path) -> dict[str, Path]:
    """Return the files of the sensors by what they are, such as `junction_input`."""
    found: dict[str, Path] = {}
    for name in list_names(hwmon):
        sensor = re.fullmatch(r"((?:temp|freq|in)\d+)_input", name)
        if not sensor:
            continue
        label = read_text(hwmon / f"{sensor[1]}_label") or UNLABELLED.get(sensor[1], "")
        key, kinds = SENSORS.get(label, ("", ()))
        for kind in kinds:
            found.setdefault(f"{key}_{kind}", hwmon / f"{sensor[1]}_{kind}")
    return found


def known(unit: str, *candidates: Number | None) -> Number | None:
    """Return the first of these readings that can be true, going by LIMITS of its unit."""
    least, most = LIMITS[unit]
    for value in candidates:
        if value is not None and least <= value <= most:
            return value
    return None


def thousandths(text: str) -> float | None:
    """Return a number of hwmon that counts thousandths, in base units."""
    number = integer(text)
    return None if number is None else number / MILLI


def millionths(text: str) -> float | None:
    """Return a number of hwmon that counts millionths, in base units."""
    number = integer(text)
    return None if number is None else number / MICRO


@lru_cache(maxsize=64)
def clocks(text: str) -> tuple[int | None, int | None]:
    """Return the present clock and the highest level in hertz, from the lines of a `pp_dpm_*` file.

    The line with a star is the present clock. RDNA puts it between the lowest and the highest level although it is
    none, and it may exceed them; RDNA4 has a line `S:` for deep sleep. Neither counts as a level.
    """
    lines = CLOCK_LINE.findall(text)
    now = next((int(number) * MEGA for _, number, star in lines if star), None)
    levels = [(int(number) * MEGA, star) for name, number, star in lines if name.isdecimal()]
    inner = levels[1:-1]
    outer = [number for number, _ in levels[:1] + levels[-1:]]
    return now, max(outer + [number for number, star in inner if not star], default=None)


def errors(texts: Mapping[str, str]) -> tuple[dict[str, int] | None, dict[str, int] | None]:
    """Return corrected and uncorrected errors by block, from the lines `ue: 0` and `ce: 0` of each `*_err_count`.

    Blocks that give other text ("Query currently inaccessible") are omitted; None where no block is left.
    """
    counts = {block: {kind: int(count) for kind, count in ERROR_LINE.findall(text)} for block, text in texts.items()}
    corrected = {block: found["ce"] for block, found in counts.items() if "ce" in found}
    uncorrected = {block: found["ue"] for block, found in counts.items() if "ue" in found}
    return corrected or None, uncorrected or None


def fan_percent(signal: int | None, speed: int | None, fastest: int | None) -> float | None:
    """Return how far a fan is driven, from its control signal, else from its speed.

    Where one of the two says that it stands still and the other that it turns, its speed is right: in zero-RPM mode the
    signal stays, and a fan that the card controls by itself turns without one. Less than a hundredth of its full speed
    is how some sensors count a fan that stands still.
    """
    of_speed = 100 * speed / fastest if speed is not None and fastest else 0.0 if speed == 0 else None
    if signal is not None and (speed is None or (speed > (fastest or 0) / 100) == (signal > 0)):
        of_speed = known("percent", 100 * signal / PWM_MAX, of_speed)
    percent = known("percent", of_speed)
    return None if percent is None else min(percent, 100.0)


def level(text: str) -> str | None:
    """Return the word for the performance level; None where it is unknown."""
    return text if re.fullmatch(r"[a-z_]{1,32}", text) else None


class Rule(NamedTuple):
    """Where one field of a Sample comes from: the first of these with a plausible value."""

    unit: str  # of LIMITS
    sources: tuple[tuple[str, Callable[[str], int | float | None]], ...]  # files, and what makes base units of each
    column: str | None = None  # of the table, where no file tells


def _present_clock(text: str) -> int | None:
    return clocks(text)[0]


def _highest_clock(text: str) -> int | None:
    return clocks(text)[1]


# The fields that are one number. Power is the average where the driver gives one, else the present value.
RULES: Mapping[str, Rule] = {
    "busy_percent": Rule("percent", (("gpu_busy_percent", integer),), "busy_percent"),
    "memory_busy_percent": Rule("percent", (("mem_busy_percent", integer),), "memory_busy_percent"),
    "vram_used_bytes": Rule("bytes", (("mem_info_vram_used", integer),)),
    "vram_total_bytes": Rule("bytes", (("mem_info_vram_total", integer),)),
    "gtt_used_bytes": Rule("bytes", (("mem_info_gtt_used", integer),)),
    "gtt_total_bytes": Rule("bytes", (("mem_info_gtt_total", integer),)),
    "power_watts": Rule("watts", (("power1_average", millionths), ("power1_input", millionths)), "power_watts"),
    "power_cap_watts": Rule("watts", (("power1_cap", millionths),)),
    "power_cap_max_watts": Rule("watts", (("power1_cap_max", millionths),)),
    "edge_celsius": Rule("celsius", (("edge_input", thousandths),), "edge_celsius"),
    "edge_critical_celsius": Rule("celsius", (("edge_crit", thousandths),)),
    "junction_celsius": Rule("celsius", (("junction_input", thousandths),), "hotspot_celsius"),
    "junction_critical_celsius": Rule("celsius", (("junction_crit", thousandths),)),
    "memory_celsius": Rule("celsius", (("memory_input", thousandths),), "memory_celsius"),
    "memory_critical_celsius": Rule("celsius", (("memory_crit", thousandths),)),
    "core_clock_hertz": Rule("hertz", (("sclk_input", integer), ("pp_dpm_sclk", _present_clock)), "core_clock_hertz"),
    "core_clock_max_hertz": Rule("highest hertz", (("pp_dpm_sclk", _highest_clock),)),
    "memory_clock_hertz": Rule(
        "hertz", (("mclk_input", integer), ("pp_dpm_mclk", _present_clock)), "memory_clock_hertz"
    ),
    "memory_clock_max_hertz": Rule("highest hertz", (("pp_dpm_mclk", _highest_clock),)),
    "voltage_volts": Rule("volts", (("vddgfx_input", thousandths),), "voltage_volts"),
    "fan_rpm": Rule("rpm", (("fan1_input", integer),), "fan_rpm"),
    "link_width": Rule("width", (("current_link_width", integer),)),
    "link_speed_gts": Rule("gts", (("current_link_speed", gigatransfers),)),
    "pcie_replays": Rule("replays", (("pcie_replay_count", integer),), "pcie_replays"),
}

LINK = ("current_link_width", "current_link_speed")
LEVEL = "power_dpm_force_performance_level"
FAN = ("pwm1", "fan1_input", "fan1_max")
LABELLED = {f"{key}_{kind}" for key, kinds in SENSORS.values() for kind in kinds}
NAMES = tuple(
    dict.fromkeys(
        name
        for name in (*(name for rule in RULES.values() for name, _ in rule.sources), *FAN, LEVEL)
        if name not in LABELLED
    )
)
DIVISORS: Mapping[Any, float] = {integer: 0, thousandths: MILLI, millionths: MICRO}
DIGITS = 19  # that always fit into 64 bits
NEWLINE = 10


@cache
def source(name: str) -> Source:
    """Return what a file, by its name in `Files.texts`, holds."""
    return Source(name)


class Source:
    """One file: the fields that it holds, and as which of their sources."""

    def __init__(self, name: str) -> None:
        found = [
            (field, place, rule.unit, read)
            for field, rule in RULES.items()
            for place, (file, read) in enumerate(rule.sources)
            if file == name
        ]
        self.uses = [(field, place) for field, place, _, _ in found]
        self._reads = [(unit, read) for _, _, unit, read in found]
        self._name = name
        self._number: tuple[float, float, float, bool] | None = None  # limits, divisor, whether it is a share
        if len(found) == 1 and found[0][3] in DIVISORS and name not in FAN:
            unit, read = self._reads[0]
            self._number = (*LIMITS[unit], DIVISORS[read], unit == "percent")
        if name in FAN:
            self.uses.append((name, 0))
        elif name == LEVEL:
            self.uses.append(("performance_level", 0))

    def decode(self, content: bytes) -> tuple[Any, ...]:
        """Return what the content is for each use."""
        if self._number and content[:-1].isdigit() and content[-1] == NEWLINE and len(content) <= DIGITS:
            least, most, divisor, is_share = self._number  # the same as below, in a quarter of the time
            number = int(content) / divisor if divisor else int(content)
            return (None if not least <= number <= most else min(float(number), 100.0) if is_share else number,)
        text = roots.to_text(content) or ""
        values = [capped(unit, known(unit, read(text))) for unit, read in self._reads]
        if self._name in FAN:
            return (*values, integer(text))
        return (*values, level(text)) if self._name == LEVEL else tuple(values)


def capped(unit: str, value: float | None) -> float | None:
    """Return a share as it is shown: averages round up to 101 %."""
    return min(float(value), 100.0) if value is not None and unit == "percent" else value
