"""The binary table `gpu_metrics` of the amdgpu driver, parsed by its revision.

Source: `/sys/class/drm/card*/device/gpu_metrics`; the layouts follow the structures `gpu_metrics_v*` of the kernel's
`drivers/gpu/drm/amd/include/kgd_pp_interface.h`. Revisions 1.0 to 1.3 belong to discrete cards, 1.4 to 1.9 to MI300 and
later, 2.x and 3.0 to APUs. A value with all bits set is absent. Little-endian, as every host of these cards is.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Mapping
from functools import cache, lru_cache
from typing import Any, NamedTuple

HEADER = struct.Struct("<HBB")  # size of the table in bytes, format revision, content revision
JOULES_PER_COUNT = 2.0**-16  # of the energy accumulator: 15.259 µJ

# `name:form` in the order of the structure, after the header. A form is a count (none: one), a code of `struct`, and
# what makes base units of it: `/N` divides, `MHz` gives hertz, nothing leaves a whole number. Names are those of
# `Metrics`; what is not used is called `-`. A name that comes twice is first the mean, then the present value, which
# counts if it is there; of several values (the clocks of dies) the first that is present counts.
_TEMPERATURES = "edge_celsius:H/1 hotspot_celsius:H/1 memory_celsius:H/1 -:3H"
_ACTIVITIES = "busy_percent:H/1 memory_busy_percent:H/1 -:H"
_MEANS = "core_clock_hertz:HMHz -:H memory_clock_hertz:HMHz"
_CLOCKS = f"{_MEANS} -:4H {_MEANS} -:4H"
_V1_1 = f"{_TEMPERATURES} {_ACTIVITIES} power_watts:H/1 -:2Q {_CLOCKS} -:I fan_rpm:H -:3H -:2I -:4H"
_V1_2 = f"{_V1_1} -:Q"
_MI_HEAD = "hotspot_celsius:H/1 memory_celsius:H/1 -:H power_watts:H/1 busy_percent:H/1 memory_busy_percent:H/1"
_ENERGY = "energy_count:Q -:Q"
_LINKS = "-:4H -:2I -:3Q pcie_replays:Q -:Q"
_NAKS, _XGMI = "-:2I", "-:16Q"
_MI_CLOCKS = "-:Q core_clock_hertz:8HMHz -:12H memory_clock_hertz:HMHz"
_V1_6_REST = f"{_ENERGY} -:7I {_LINKS} {_NAKS} {_XGMI}"
_V1_7 = f"{_MI_HEAD} -:Q {_V1_6_REST} -:8H -:H {_MI_CLOCKS} -:H ..."
_APU_HEAD = "edge_celsius:H/100 -:H -:8H -:2H busy_percent:H/100 -:H"
_APU_REST = f"power_watts:H/1000 -:3H -:8H {_MEANS} -:3H {_MEANS} -:3H -:8H -:2H -:I -:H -:H"
_V2_1 = f"{_APU_HEAD} -:Q {_APU_REST} -:2H"
_V2_2 = f"{_V2_1} throttle:Q"
_V2_3 = f"{_V2_2} -:12H"

# Blocks of each partition follow in those that end with "...": they are not read here, and their size is not fixed.
LAYOUTS: Mapping[tuple[int, int], str] = {
    (1, 0): (f"-:Q {_TEMPERATURES} {_ACTIVITIES} power_watts:H/1 -:I {_CLOCKS} -:I fan_rpm:H -:2B"),
    (1, 1): _V1_1,
    (1, 2): _V1_2,
    (1, 3): f"{_V1_2} -:H voltage_volts:H/1000 -:2H throttle:Q",
    (1, 4): f"{_MI_HEAD} -:4H {_ENERGY} -:2I {_LINKS} {_XGMI} {_MI_CLOCKS} -:H",
    (1, 5): f"{_MI_HEAD} -:4H -:32H {_ENERGY} -:2I {_LINKS} {_NAKS} {_XGMI} {_MI_CLOCKS} -:H",
    (1, 6): f"{_MI_HEAD} {_V1_6_REST} {_MI_CLOCKS} -:H ...",
    (1, 7): _V1_7,
    (1, 8): _V1_7,
    (2, 0): f"-:Q {_APU_HEAD} {_APU_REST}",
    (2, 1): _V2_1,
    (2, 2): _V2_2,
    (2, 3): _V2_3,
    (2, 4): f"{_V2_3} -:2H voltage_volts:H/1000 -:3H",
    (3, 0): (
        "edge_celsius:H/100 -:H -:16H -:H busy_percent:H/1 -:H -:8H -:16H -:4H -:Q power_watts:I/1000 "
        "-:H -:4I -:16H -:3H core_clock_hertz:HMHz -:5H memory_clock_hertz:HMHz -:H -:16H -:2H -:8I"
    ),
}

# Revision 1.9 describes itself: a count, then for each attribute a number that encodes its id, type and length, then
# its values, without padding. These are names and units by id; other ids are skipped.
SELF_DESCRIBING = ((1, 9),)
ATTRIBUTES = {
    0: "hotspot_celsius:/1",
    1: "memory_celsius:/1",
    3: "power_watts:/1",
    4: "busy_percent:/1",
    5: "memory_busy_percent:/1",
    7: "energy_count",
    25: "pcie_replays",
    33: "core_clock_hertz:MHz",
    37: "memory_clock_hertz:MHz",
}
ATTRIBUTE_TYPES = "BbHhIiQq"

# Bits of `indep_throttle_status`, the same for every chip (kernel `amdgpu_smu.h`).
THROTTLERS = {
    0: "PPT0",
    1: "PPT1",
    2: "PPT2",
    3: "PPT3",
    4: "SPL",
    5: "FPPT",
    6: "SPPT",
    7: "SPPT_APU",
    16: "TDC_GFX",
    17: "TDC_SOC",
    18: "TDC_MEM",
    19: "TDC_VDD",
    20: "TDC_CVIP",
    21: "EDC_CPU",
    22: "EDC_GFX",
    23: "APCC",
    32: "TEMP_GPU",
    33: "TEMP_CORE",
    34: "TEMP_MEM",
    35: "TEMP_EDGE",
    36: "TEMP_HOTSPOT",
    37: "TEMP_SOC",
    38: "TEMP_VR_GFX",
    39: "TEMP_VR_SOC",
    40: "TEMP_VR_MEM0",
    41: "TEMP_VR_MEM1",
    42: "TEMP_LIQUID0",
    43: "TEMP_LIQUID1",
    44: "VRHOT0",
    45: "VRHOT1",
    46: "PROCHOT_CPU",
    47: "PROCHOT_GFX",
    56: "PPM",
    57: "FIT",
}


class Metrics(NamedTuple):
    """The values of one table, in base units; None is absent in it or in its revision. Ranges are not checked.

    The older `throttle_status` differs from chip to chip and is not decoded.
    """

    revision: tuple[int, int]  # format, content
    busy_percent: float | None = None
    memory_busy_percent: float | None = None
    power_watts: float | None = None  # of the socket; on an APU with its CPU cores
    energy_joules: float | None = None  # accumulator of revision 1.4 and later; older ones have no documented unit
    edge_celsius: float | None = None  # the graphics part of an APU
    hotspot_celsius: float | None = None
    memory_celsius: float | None = None
    core_clock_hertz: int | None = None  # of the first die that reports it; the mean where the table has no other
    memory_clock_hertz: int | None = None
    voltage_volts: float | None = None
    fan_rpm: int | None = None
    pcie_replays: int | None = None
    throttle_reasons: tuple[str, ...] | None = None  # empty: it does not throttle; None: not in the table


def parse(data: bytes) -> Metrics | None:
    """Parse a table; None if it is of an unknown revision, of a wrong size, or cut off.

    Bytes after the table (captures are padded) do not matter. Of a self-describing table that is cut off, the
    attributes before the cut count.
    """
    if len(data) < HEADER.size:
        return None
    size, *numbers = HEADER.unpack_from(data)
    revision = (numbers[0], numbers[1])
    if revision in SELF_DESCRIBING:
        known = _self_described(data[HEADER.size : size])
    elif revision in LAYOUTS:
        layout = _layout(revision)
        least = layout.form.size
        if len(data) < size or size < least or (size > least and not layout.is_open):
            return None
        known = layout.read(data)
    else:
        return None
    return _finished(revision, known) if known else None


class Column(NamedTuple):
    """One number of a table, for readers that need no other."""

    form: struct.Struct
    offset: int
    absent: int
    divisor: int  # 0: none
    factor: int

    def read(self, table: bytes) -> float | int | None:
        """Return the number in base units; the table must be one that `parse` takes, of this column's revision."""
        number: int = self.form.unpack_from(table, self.offset)[0]
        if number == self.absent:
            return None
        return number / self.divisor if self.divisor else number * self.factor


def columns(revision: tuple[int, int]) -> Mapping[str, Column] | None:
    """Return the columns of a revision that need no more than a scale, by name; None where each table has its own.

    `throttle` are the bits that `throttle_words` explains.
    """
    return _layout(revision).columns if revision in LAYOUTS else None


@lru_cache(maxsize=256)
def throttle_words(bits: int) -> tuple[str, ...]:
    """Return the reasons that bits of `indep_throttle_status` stand for."""
    return tuple(THROTTLERS.get(bit, f"BIT_{bit}") for bit in range(64) if bits >> bit & 1)


@cache
def provided(revision: tuple[int, int]) -> frozenset[str] | None:
    """Return which fields of Metrics a table of a revision has; None if that is not fixed."""
    if revision not in LAYOUTS:
        return None
    others = {"throttle": "throttle_reasons", "energy_count": "energy_joules"}
    return frozenset(others.get(name, name) for name, *_ in _layout(revision).fields)


class _Layout(NamedTuple):
    form: struct.Struct  # of the whole; what is not used is padding
    fields: tuple[tuple[str, int, int, int, int, int], ...]  # name, its places (from, to), absent, divisor, factor
    is_open: bool  # other fields may follow
    columns: Mapping[str, Column]  # those that can be read alone

    def read(self, data: bytes) -> dict[str, Any]:
        """Return what is present, by name, in base units."""
        numbers = self.form.unpack_from(data)
        known: dict[str, Any] = {}
        for name, first, last, absent, divisor, factor in self.fields:
            number = next((each for each in numbers[first:last] if each != absent), None)
            if number is not None:
                known[name] = number / divisor if divisor else number * factor
        return known


@cache
def _layout(revision: tuple[int, int]) -> _Layout:
    """Compute where C puts each field: aligned to its own size, the whole to the largest of them."""
    form, offset, alignment, place = f"<{HEADER.size}x", HEADER.size, 1, 0
    fields: list[tuple[str, int, int, int, int, int]] = []
    alone: dict[str, list[Column]] = {}
    for name, times, code, unit in re.findall(r"(\S+):(\d*)([BHIQ])(\S*)", LAYOUTS[revision]):
        width, count = struct.calcsize(f"<{code}"), int(times or 1)
        alignment = max(alignment, width)
        padding = -offset % width
        offset += padding + width * count
        if name == "-":
            form += f"{padding + width * count}x"
            continue
        form += f"{padding}x{count}{code}"
        absent, (divisor, factor) = (1 << 8 * width) - 1, _scale(unit)
        fields.append((name, place, place + count, absent, divisor, factor))
        if count == 1:
            column = Column(struct.Struct(f"<{code}"), offset - width, absent, divisor, factor)
            alone.setdefault(name, []).append(column)
        place += count
    is_open = LAYOUTS[revision].endswith("...")
    whole = struct.Struct(form if is_open else f"{form}{-offset % alignment}x")
    single = {name: found[0] for name, found in alone.items() if len(found) == 1 and _is_plain(revision, name)}
    return _Layout(whole, tuple(fields), is_open, single)


def _is_plain(revision: tuple[int, int], name: str) -> bool:
    """Return whether `_finished` leaves a field as it is."""
    return not (revision[0] == 2 and name == "power_watts") and revision != (3, 0)


def _scale(unit: str) -> tuple[int, int]:
    """Return the divisor (0: none) and the factor that a unit of the layouts stands for."""
    return (int(unit[1:]), 1) if unit.startswith("/") else (0, 1_000_000 if unit == "MHz" else 1)


def _self_described(data: bytes) -> dict[str, Any]:
    """Return the known attributes of a self-describing table, up to where it ends or makes no sense."""
    known: dict[str, Any] = {}
    offset, end = 4, len(data)
    count = struct.unpack_from("<I", data)[0] if end >= offset else 0
    while count and offset + 8 <= end:
        (encoding,) = struct.unpack_from("<Q", data, offset)
        length, number, kind = encoding & 0x3FF, encoding >> 10 & 0x3FF, encoding >> 20 & 0xF
        if not length or kind >= len(ATTRIBUTE_TYPES):
            break
        form = struct.Struct(f"<{length}{ATTRIBUTE_TYPES[kind]}")
        if offset + 8 + form.size > end:
            break
        if number in ATTRIBUTES:
            known.update(_attribute(ATTRIBUTES[number], form, form.unpack_from(data, offset + 8)))
        offset += 8 + form.size
        count -= 1
    return known


def _attribute(description: str, form: struct.Struct, numbers: tuple[int, ...]) -> dict[str, Any]:
    """Return one attribute in base units; with all bits set it is absent, which is -1 if it is signed."""
    name, _, unit = description.partition(":")
    divisor, factor = _scale(unit)
    absent = -1 if form.format[-1].islower() else (1 << 8 * (form.size // len(numbers))) - 1
    present = [number for number in numbers if number != absent]
    if not present:
        return {}
    return {name: present[0] / divisor if divisor else present[0] * factor}


def _finished(revision: tuple[int, int], known: dict[str, Any]) -> Metrics:
    """Turn what needs more than a scale into base units."""
    bits = known.pop("throttle", None)
    if bits is not None:
        known["throttle_reasons"] = throttle_words(bits)
    count = known.pop("energy_count", None)
    if count is not None:
        known["energy_joules"] = count * JOULES_PER_COUNT
    if revision[0] == 2 and known.get("power_watts", 1) < 1:
        # Some firmware gives watts here, and no socket needs less than one: the unit is unknown.
        del known["power_watts"]
    if revision == (3, 0) and known.get("busy_percent", 0) > 100:
        known["busy_percent"] /= 100  # older firmware gives hundredths, as 2.x does
    return Metrics(revision, **known)
