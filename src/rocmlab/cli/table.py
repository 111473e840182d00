"""Devices as text, the same in every command."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from rocmlab.telemetry.smi_cells import number, short_name

TYPE_CHECKING = False  # `typing` itself would cost milliseconds
if TYPE_CHECKING:
    from rocmlab.telemetry.smi_cells import Row

GAP = "  "
INDENT = " " * 7
EVERY = "every GPU: "
DEFAULT_WIDTH = 200
MIN_NAME = 18  # a product name is cut no shorter; where even that does not fit it is below
# column: title in the table, label where it has no room there (none: it always stays)
COLUMNS = {
    "number": ("GPU", ""),
    "smi": ("SMI", "SMI"),
    "pci": ("PCI address", ""),
    "render": ("render node", "node"),
    "gfx": ("gfx", ""),
    "name": ("product", ""),
    "units": ("CUs", "CUs"),
    "memory": ("memory", ""),
    "link": ("PCIe link", "link"),
    "driver": ("driver", "driver"),
    "partition": ("partition", "partition"),
    "usable": ("usable", ""),
}
CAVEATS = {"unknown": "may not work", "unsupported": "unsupported", "wrong": "wrong results"}  # by a device's support
FIRST_TO_LEAVE = ("driver", "link", "render", "partition", "units", "smi")
FEWER_LANES = "! fewer PCIe lanes than the card has: another slot, or a card not seated well"


def gibibytes(count: int | None) -> str:
    """Return a size as `24.0 GiB`, empty if unknown."""
    return f"{count / 2**30:.1f} GiB" if count else ""


def device_lines(devices: Iterable[Row]) -> list[str]:
    """Return one short line a device, in aligned columns; empty columns are omitted."""
    from rocmlab.base.formatting import aligned

    return aligned([_short(device) for device in devices])


def _short(device: Row) -> tuple[str, ...]:
    state = "SIMULATED" if device.get("simulated") else ""
    if not device["is_usable"]:
        state = f"{state} not usable: {device['why_not']}".strip()
    elif word := CAVEATS.get(device.get("support") or ""):
        state = f"{state} {word}".strip()
    return (
        number(device),
        device["name"],
        device.get("gfx") or "",
        _memory(device) if device["backend"] != "cpu" else "",
        device.get("pci_address") or "",
        device.get("render_node") or "",
        state,
    )


def table_lines(devices: Sequence[Row], width: int = DEFAULT_WIDTH) -> list[str]:
    """Return the full table: a title, a line a device, and below it what does not fit into `width` columns.

    What fits in no column is below the device, or once below the table if it is the same for every GPU. So
    does the reason why a device cannot be used, or may not work.
    """
    if not devices:
        return []
    cells = [_cells(device) for device in devices]
    used = [name for name in COLUMNS if any(row[name] for row in cells)]
    shown = _fitting(cells, used, _common(devices, cells, list(FIRST_TO_LEAVE)), width)
    name_width = max(MIN_NAME, _room_for_names(cells, shown, width))
    for row in cells:
        row["name"] = _cut(row["name"], name_width) if "name" in shown else row["name"]
    widths = {name: max(len(COLUMNS[name][0]), *(len(row[name]) for row in cells)) for name in shown}
    left_out = [name for name in used if name not in shown]
    common = _common(devices, cells, [*left_out, "why_not"])
    room = width - sum(widths.values()) - len(GAP) * (len(widths) - 1) + widths["usable"]
    lines = [_line({name: COLUMNS[name][0] for name in shown}, widths)]
    for device, row in zip(devices, cells, strict=True):
        reason = "" if "why_not" in common else row["why_not"]
        short = f"{row['usable']}: {reason.partition(': ')[2]}"
        if reason and len(short) <= room:
            row["usable"], reason = short, ""
        lines.append(_line(row, widths))
        shared = common if device["backend"] != "cpu" else {}
        below = [_labelled(name, row[name]) for name in left_out if row[name] and name not in shared]
        lines += _wrapped(below, width)
        lines += _wrapped(_reading(device) or _two_memories(device), width)
        lines += _wrapped_text(reason, width) if reason else []
    reason = common.pop("why_not", "")
    lines += _wrapped([_labelled(name, value) for name, value in common.items()], width, EVERY)
    lines += _wrapped_text(reason, width, EVERY) if reason else []
    if any("!" in row["link"] for row in cells):
        lines += _wrapped_text(FEWER_LANES, width, "")
    return lines


def _labelled(column: str, value: str) -> str:
    return f"{COLUMNS[column][1]} {value}".strip()


def _cells(device: Row) -> dict[str, str]:
    units, smi = device.get("compute_units"), device.get("smi_index")
    is_cpu = device["backend"] == "cpu"
    usable, why_not = _usable(device)
    return {
        "number": number(device),
        "smi": "" if smi is None else str(smi),
        "pci": device.get("pci_address") or "",
        "render": (device.get("render_node") or "").removeprefix("/dev/dri/"),
        "gfx": device.get("gfx") or "",
        "name": device["name"],
        "units": f"{units} cores" if units and is_cpu else str(units or ""),
        "memory": _memory(device),
        "link": link(device),
        "driver": device.get("driver") or "",
        "partition": _partition(device),
        "usable": usable,
        "why_not": why_not,
    }


def _usable(device: Row) -> tuple[str, str]:
    """Return the word for the table, and why a device cannot be used or may not work, labelled."""
    if not device["is_usable"]:
        return "no", f"not usable: {device['why_not']}"
    word = CAVEATS.get(device.get("support") or "")
    if not word:
        return "yes", ""
    from rocmlab.devices import products

    return word, f"{word}: {products.target(device.get('gfx')).caveat}; `rocmlab doctor` shows what to try"


def _memory(device: Row) -> str:
    """Return VRAM; on an APU the memory from which frameworks allocate, on the CPU the host's."""
    if pool := device.get("pool"):
        return f"{gibibytes(_pool_bytes(device))} {pool.upper()}"
    return gibibytes(device.get("gtt_bytes") if device["backend"] == "cpu" else device.get("vram_bytes"))


def _pool_bytes(device: Row) -> int | None:
    total: int | None = device[f"{device['pool']}_bytes"]
    return device.get("pool_bytes") or total


def _two_memories(device: Row) -> list[str]:
    """Return both memories of an APU, that from which frameworks allocate first."""
    if not device.get("pool") or not device.get("gtt_bytes") or not device.get("vram_bytes"):
        return []
    first, second = ("gtt", "vram") if device["pool"] == "gtt" else ("vram", "gtt")
    total, limit = device[f"{first}_bytes"], _pool_bytes(device)
    most = "" if limit == total else f" at most {gibibytes(limit)}"
    return [
        f"{first.upper()} {gibibytes(total)}, where frameworks allocate{most}",
        f"{second.upper()} {gibibytes(device[f'{second}_bytes'])}",
    ]


def link(device: Row) -> str:
    """Return `x16, 16 GT/s`, or `x8 of x16, 8 of 16 GT/s !` where lanes are missing.

    A lower speed alone is not a fault: idle cards lower it to save power.
    """
    width, most = device.get("link_width"), device.get("link_width_max")
    speed, fastest = device.get("link_speed_gts"), device.get("link_speed_max_gts")
    parts = []
    if width:
        parts.append(f"x{width} of x{most}" if most and width < most else f"x{width}")
    if speed:
        parts.append(f"{speed:g} of {fastest:g} GT/s" if fastest and speed < fastest else f"{speed:g} GT/s")
    return ", ".join(parts) + (" !" if width and most and width < most else "")


def _partition(device: Row) -> str:
    modes = "/".join(filter(None, (device.get("compute_partition"), device.get("memory_partition"))))
    number = device.get("partition")
    is_split = number is not None and device.get("compute_partition") != "SPX"
    return " ".join(filter(None, (str(number) if is_split else "", modes)))


def _fitting(cells: Sequence[Mapping[str, str]], used: list[str], common: Mapping[str, str], width: int) -> list[str]:
    """Return the columns that fit; first what is the same for every GPU is omitted, then what matters least."""
    shown = list(used)
    for name in sorted(FIRST_TO_LEAVE, key=lambda name: name not in common):
        if _width(cells, shown) <= width:
            break
        shown = [column for column in shown if column != name]
    if _room_for_names(cells, shown, width) < MIN_NAME < _longest_name(cells):
        shown.remove("name")
    return shown


def _width(cells: Sequence[Mapping[str, str]], shown: list[str]) -> int:
    columns = [max([len(COLUMNS[name][0]), *(len(row[name]) for row in cells)]) for name in shown]
    return sum(columns) + len(GAP) * max(0, len(columns) - 1)


def _room_for_names(cells: Sequence[Mapping[str, str]], shown: list[str], width: int) -> int:
    return _longest_name(cells) - max(0, _width(cells, shown) - width)


def _longest_name(cells: Sequence[Mapping[str, str]]) -> int:
    return max(len(row["name"]) for row in cells)


def _cut(name: str, width: int) -> str:
    for text in (name, short_name(name)):
        if len(text) <= width:
            return text
    return text[: width - 2] + ".."


def _common(devices: Sequence[Row], cells: Sequence[Mapping[str, str]], names: list[str]) -> dict[str, str]:
    """Return what is the same for every one of several GPUs."""
    gpus = [row for device, row in zip(devices, cells, strict=True) if device["backend"] != "cpu"]
    if len(gpus) < 2:
        return {}
    return {name: gpus[0][name] for name in names if gpus[0][name] and len({row[name] for row in gpus}) == 1}


def _line(row: Mapping[str, str], widths: Mapping[str, int]) -> str:
    return GAP.join(row[name].ljust(width) for name, width in widths.items()).rstrip()


def _wrapped(items: Sequence[str], width: int, start: str = INDENT) -> list[str]:
    """Return the items with semicolons between them, on as many lines as they need."""
    lines, line = [], ""
    for item in items:
        if line and len(start) + len(line) + len(item) + 2 > width:
            lines.append(f"{start}{line};")
            line = ""
        line = f"{line}; {item}" if line else item
    return [*lines, f"{start}{line}"] if line else []


def _wrapped_text(text: str, width: int, start: str = INDENT) -> list[str]:
    import textwrap

    after = " " * len(start) if start == EVERY else start + "  "
    return textwrap.wrap(
        text,
        max(width, 40),
        initial_indent=start,
        subsequent_indent=after,
        break_on_hyphens=False,
        break_long_words=False,  # a path can be pasted
    )


def problem_lines(problem: Row, width: int = DEFAULT_WIDTH) -> list[str]:
    """Return a problem as text of at most `width` columns; the fix is not wrapped, so that it can be pasted."""
    lines = _wrapped_text(f"problem: {problem['what']}", width, "")
    if problem["why"]:
        lines += _wrapped_text(f"why: {problem['why']}", width, "  ")
    first, *more = problem["fix"].split("\n")
    return [*lines, *([f"  fix: {first}"] if first else []), *(f"       {line}" for line in more)]


def _reading(device: Row) -> list[str]:
    """Return a device's sample in short; unknown values are omitted."""
    sample = device.get("sample") or {}

    def formatted(form: str, value: float | None) -> str:
        return "" if value is None else form.format(value)

    if sample.get("is_asleep"):
        return ["asleep"]
    cap, hertz = sample.get("power_cap_watts"), sample.get("core_clock_hertz")
    watts = formatted("{:.0f}", sample.get("power_watts"))
    watts += (formatted(" of {:.0f}", cap) + " W") if watts else ""
    cells = [
        formatted("busy {:.0f} %", sample.get("busy_percent")),
        *_memory_reading(device, sample),
        watts,
        formatted("edge {:.0f} C", sample.get("edge_celsius")),
        formatted("junction {:.0f} C", sample.get("junction_celsius")),
        formatted("{:.0f} MHz", None if hertz is None else hertz / 1e6),
    ]
    return [text for text in cells if text]


def _memory_reading(device: Row, sample: Row) -> list[str]:
    """Return the memory in use: on an APU of both kinds, that from which frameworks allocate first."""
    sizes = {pool: (sample.get(f"{pool}_used_bytes"), sample.get(f"{pool}_total_bytes")) for pool in ("vram", "gtt")}
    texts = {
        pool: f"{used / 2**30:.1f} of {gibibytes(total)}"
        for pool, (used, total) in sizes.items()
        if used is not None and total
    }
    if not device.get("pool"):
        return [f"memory {text}" for text in list(texts.values())[:1]]
    if "gtt" in texts:
        texts["gtt"] += " (hipMalloc is not counted)"
    order = sorted(texts, key=lambda pool: pool != device["pool"])
    return [f"{pool.upper()} {texts[pool]}" for pool in order]
