"""The devices of `rocmlab smi`, a line each, in as many columns as the screen has room for.

What needs attention (missing PCIe lanes, memory errors, throttling, …) and does not fit in a column is below.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from rocmlab.telemetry import smi_cells as cells
from rocmlab.telemetry import smi_columns
from rocmlab.telemetry.smi_columns import AT_THE_LEFT, IDENTITY, TITLES, Layout
from rocmlab.telemetry.smi_text import bar, clean, cut, line_width, pad, wrap

TYPE_CHECKING = False  # `typing` itself would cost milliseconds at each start
if TYPE_CHECKING:
    from rocmlab.telemetry.smi_cells import Row
    from rocmlab.telemetry.smi_text import Line, Span


@dataclass
class _Entry:
    """One line of the table: a device, or those partitions of a GPU that have no sensors of their own."""

    device: Row
    sample: Row
    spans: dict[str, Span]  # by column
    message: Span | None = None  # in the place of all values
    parts: list[Row] = field(default_factory=list)  # the partitions on this line, if it is one of partitions


def table(devices: Sequence[Row], samples: Mapping[str, Row], columns: int, hung: Sequence[str] = ()) -> list[Line]:
    """Return title, a line for each GPU, and below it what needs attention.

    Args:
        devices: GPUs as `Device.as_dict()` with their `id`.
        samples: `Sample.as_dict()` by id.
        columns: the width of the screen.
        hung: ids of the devices whose driver does not answer.
    """
    entries = _entries(devices, samples, hung)
    titles = {**TITLES, **_titles(entries)}
    layout = smi_columns.layout([entry.spans for entry in entries], titles, columns)
    notes = _merged([note for entry in entries for note in _notes(entry, layout)])
    has_marks = any(entry.spans["temperature"][0].endswith((" j", " e")) for entry in entries)
    if titles["temperature"] == "temp" and "temperature" in layout.widths and has_marks:
        notes.append(("j: junction (the hotspot), e: edge", "dim"))
    return [
        _title_line(titles, layout),
        *(_line(entry, layout, columns) for entry in entries),
        *([(part, level)] for text, level in notes for part in wrap(text, columns, "  ", "    ")),
    ]


def _entries(devices: Sequence[Row], samples: Mapping[str, Row], hung: Sequence[str]) -> list[_Entry]:
    entries: list[_Entry] = []
    whole = None  # the entry of the GPU that further partitions belong to
    for device in _grouped(devices):
        sample = samples.get(device["id"]) or {}
        is_silent = not cells.has_reading(sample)
        if is_silent and whole and _card(device) == _card(whole.device):
            _add_part(entries, device, whole)
            continue
        entry = _Entry(device, sample, smi_columns.spans(device, sample))
        if device["id"] in hung and is_silent:
            entry.message = ("does not answer", "bad")
        elif sample.get("is_asleep"):
            entry.message = ("asleep", "dim")
        elif is_silent:
            size = device.get("vram_bytes")
            entry.message = (f"no reading, {size / cells.GIB:.1f} GiB" if size else "no reading", "warn")
        entries.append(entry)
        whole = entry
    return entries


def _card(device: Row) -> str:
    """Return what the partitions of a GPU have in common; older drivers number them as PCI functions."""
    address = device.get("pci_address")
    return str(device["id"] if device.get("partition") is None or not address else address.rpartition(".")[0])


def _grouped(devices: Sequence[Row]) -> list[Row]:
    """Put the partitions of a GPU next to each other, in their order, where the first of them is."""
    places: dict[str, int] = {}
    for place, device in enumerate(devices):
        places.setdefault(_card(device), place)
    return sorted(devices, key=lambda device: (places[_card(device)], device.get("partition") or 0))


def _add_part(entries: list[_Entry], device: Row, whole: _Entry) -> None:
    """Put neighbouring partitions without sensors, all usable or none, on one line below the GPU that has them."""
    last = entries[-1].device
    if not entries[-1].parts or any(last.get(key) != device.get(key) for key in ("is_usable", "why_not")):
        entries.append(_Entry(device, {}, smi_columns.spans(device, {})))
    entry = entries[-1]
    entry.parts.append(device)
    label = cells.number({**device, "index": None}).removesuffix("-")
    entry.spans["gpu"] = (label + _ranges([part["index"] for part in entry.parts]), entry.spans["gpu"][1])
    entry.spans["smi"] = (_ranges([part.get("smi_index") for part in entry.parts]), entry.spans["smi"][1])
    entry.spans["name"] = ("", "")
    count = len(entry.parts)
    sizes = [part["vram_bytes"] / cells.GIB for part in entry.parts if part.get("vram_bytes")]
    each = f", {min(sizes):.1f} GiB{' each' * (count > 1)}" if sizes else ""
    if sizes and max(sizes) - min(sizes) >= 0.1:
        each = f", {min(sizes):.1f} to {max(sizes):.1f} GiB"
    sensors = ", with the sensors of the GPU above" if cells.has_reading(whole.sample) else ""
    entry.message = (f"{count} more partition{'s' * (count > 1)}{each}{sensors}", "dim")


def _ranges(numbers: Sequence[int | None]) -> str:
    """Return numbers in their order as `2-4,7`; `-` where none is known."""
    found: list[list[int]] = []
    for number in numbers:
        if number is not None and found and number == found[-1][-1] + 1:
            found[-1][1:] = [number]
        elif number is not None:
            found.append([number])
    return ",".join("-".join(map(str, ends)) for ends in found) or "-"


def _titles(entries: Sequence[_Entry]) -> dict[str, str]:
    """Name what the cards really have; where they differ, each temperature is labelled."""
    sensors = {name for entry in entries if (name := cells.sensor(entry.device, entry.sample))}
    pools = {cells.uses_gtt(entry.device, entry.sample) for entry in entries if not entry.message}
    found = {"memory": "VRAM"} if pools == {False} else {}
    if len(pools) == 2:
        for entry in entries:
            text, level = entry.spans["memory"]
            if text.endswith("GiB"):
                entry.spans["memory"] = (text + " " * len(" GTT"), level)
    if len(sensors) == 1 and sensors != {"GPU"}:
        found["temperature"] = sensors.pop()
    elif len(sensors) > 1:
        for entry in entries:
            text, level = entry.spans["temperature"]
            if (text, level) != cells.UNKNOWN:
                mark = cells.sensor(entry.device, entry.sample)[:1]
                entry.spans["temperature"] = (f"{text} {mark if mark in 'je' else ' '}", level)
    return found


def _title_line(titles: Mapping[str, str], layout: Layout) -> Line:
    line: Line = []
    for name, size in layout.widths.items():
        size += layout.bar_of(name) + 1 if layout.bar_of(name) else 0
        line += [(" " * layout.gap, "")] * bool(line)
        line.append((pad(titles[name], size, right=name not in AT_THE_LEFT and not layout.bar_of(name)), "dim"))
    return line


def _line(entry: _Entry, layout: Layout, columns: int) -> Line:
    line: Line = []
    for name, size in layout.widths.items():
        if entry.message and name not in IDENTITY:
            continue
        line += [(" " * layout.gap, "")] * bool(line)
        text, level = entry.spans[name]
        if layout.bar_of(name):
            line += _bar(name, entry, layout)
        line.append((pad(text, size, right=name not in AT_THE_LEFT), level))
    if entry.message:
        text, level = entry.message
        line += [(" " * layout.gap, ""), (cut(text, columns - line_width(line) - layout.gap), level)]
    return line


def _bar(name: str, entry: _Entry, layout: Layout) -> Line:
    busy = entry.sample.get("busy_percent")
    if name == "busy":
        share, level = None if busy is None else busy / 100, cells.busy_level(busy)
    else:
        share = cells.memory_share(entry.device, entry.sample)
        level = cells.memory_level(entry.device, entry.sample)
    filled, empty = bar(share, layout.bar_of(name))
    return [(filled, level), (empty + " ", "dim")]


def _notes(entry: _Entry, layout: Layout) -> list[tuple[str, Span]]:
    """Return what needs attention of a device and no column shows: its name, and the rest."""
    notes: list[Span] = []
    if not entry.device["is_usable"]:
        why = clean(str(entry.device.get("why_not") or "for a reason that is not known"))
        notes.append((f"not usable: {why}", "warn"))
    if not entry.message:
        reasons, level = entry.spans["throttle"]
        if level == "warn" and "throttle" not in layout.widths:
            notes.append((f"throttled: {reasons}", level))
        counts, level = cells.errors(entry.sample, ("corrected", "uncorrected"))
        if level in ("warn", "bad") and "errors" not in layout.widths:
            notes.append((f"memory errors: {counts}", level))
        if cells.is_degraded(entry.device, entry.sample) and "link" not in layout.widths:
            notes.append((f"PCIe link {entry.spans['link'][0]}", "bad"))
        if memory := cells.other_memory(entry.device, entry.sample):
            notes.append((memory, "dim"))
    device = entry.device
    name = device.get("pci_address") if device["index"] is None else None  # HIP has no number for it
    return [(name or entry.spans["gpu"][0], note) for note in notes]


def _merged(notes: Sequence[tuple[str, Span]]) -> list[Span]:
    """Return a line for each note, with the names of all devices that it is about."""
    names: dict[Span, list[str]] = {}
    for name, note in notes:
        label, _, index = name.rpartition(" ")
        before = names.setdefault(note, [])
        before.append(index if before and before[0].startswith(f"{label} ") else name)
    return [(f"{', '.join(about)}: {text}", level) for (text, level), about in names.items()]
