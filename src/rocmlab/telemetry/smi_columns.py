"""The columns of `rocmlab smi`: what each shows of a device, and which of them a screen has room for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rocmlab.telemetry import smi_cells as cells
from rocmlab.telemetry.smi_cells import UNKNOWN
from rocmlab.telemetry.smi_text import clean, width

TYPE_CHECKING = False  # `typing` itself would cost milliseconds at each start
if TYPE_CHECKING:
    from rocmlab.telemetry.smi_cells import Row
    from rocmlab.telemetry.smi_text import Span

MIN_NAME = 12
MIN_BAR, MAX_BAR = 6, 24
BUSY_BAR = 10

TITLES = {  # in the order of place
    "gpu": "GPU",
    "smi": "SMI",
    "pci": "PCI address",
    "name": "product",
    "partition": "partition",
    "temperature": "temp",
    "memory temperature": "mem temp",
    "power alone": "power",
    "power": "power",
    "fan": "fan",
    "clocks": "core/mem MHz",
    "link": "PCIe",
    "errors": "ECC",
    "throttle": "throttled",
    "memory busy": "mem busy",
    "busy": "busy",
    "memory": "memory",
}
IDENTITY = ("gpu", "smi", "pci", "name", "partition")  # which every device has, asleep or not
AT_THE_LEFT = (*IDENTITY, "throttle", "errors", "link")
ALWAYS = ("gpu", "busy", "memory")
# Each of these comes if it has room next to all that came before it. `wide` is two spaces between columns, `bar` one of
# the memory in use, `busy bar` one of the load, `whole name` an uncut product name.
WISHES = (
    "temperature",
    "smi",
    "power alone",
    "power",
    "wide",
    "name",
    "bar",
    "fan",
    "clocks",
    "whole name",
    "throttle",
    "errors",
    "busy bar",
    "link",
    "pci",
    "memory temperature",
    "memory busy",
    "partition",
)


def spans(device: Row, sample: Row) -> dict[str, Span]:
    """Return the content of every column."""
    smi, address = device.get("smi_index"), device.get("pci_address")
    return {
        "gpu": (cells.number(device), "bold"),
        "smi": UNKNOWN if smi is None else (str(smi), ""),
        "pci": (clean(address), "") if address else UNKNOWN,
        "name": (cells.short_name(device["name"]), ""),
        "partition": cells.partition(device),
        "temperature": cells.main_temperature(sample),
        "memory temperature": cells.temperature(sample, "memory"),
        "power": cells.power(sample),
        "power alone": cells.power_alone(sample),
        "fan": cells.fan(sample),
        "clocks": cells.clocks(sample),
        "throttle": cells.throttle(sample),
        "errors": cells.errors(sample),
        "link": cells.link(device, sample),
        "memory busy": cells.percent(sample.get("memory_busy_percent")),
        "busy": cells.busy(sample),
        "memory": cells.memory(device, sample),
    }


@dataclass
class Layout:
    """Which columns there are, in the order of place, and how wide."""

    widths: dict[str, int]
    gap: int = 1
    bar: int = 0  # of memory in use; 0: none
    busy_bar: int = 0

    def total(self) -> int:
        """Return how many columns of the screen it needs."""
        bars = sum(size + 1 for size in (self.bar, self.busy_bar) if size)
        return sum(self.widths.values()) + self.gap * (len(self.widths) - 1) + bars

    def bar_of(self, name: str) -> int:
        """Return how wide the bar of a column is; 0: it has none."""
        return {"memory": self.bar, "busy": self.busy_bar}.get(name, 0)

    def with_column(self, name: str, size: int) -> Layout:
        """Return a layout with one column more, or another width of one; `power` takes the place of `power alone`."""
        widths = {**self.widths, name: size}
        if name == "power":
            widths.pop("power alone", None)
        return Layout({name: widths[name] for name in TITLES if name in widths}, self.gap, self.bar, self.busy_bar)


def layout(rows: Sequence[Mapping[str, Span]], titles: Mapping[str, str], columns: int) -> Layout:
    """Return the best layout for a screen of that width; `rows` are the lines that say something of their own."""
    used = [name for name in TITLES if name in ALWAYS or any(row[name] != UNKNOWN for row in rows)]
    sizes = {name: max([width(titles[name]), *(width(row[name][0]) for row in rows)]) for name in used}
    name_size = sizes.get("name", 0)
    found = Layout({name: sizes[name] for name in used if name in ALWAYS})
    for wish in WISHES:
        wider = _with(found, wish, sizes)
        if wider is not None and wider.total() <= columns:
            found = wider
        if wish == "name" and "name" in found.widths:
            found.widths["name"] = min(name_size, MIN_NAME + max(0, columns - found.total()))
            spare = columns - found.total()
            if spare < MIN_BAR + 1 and found.widths["name"] > MIN_NAME:  # the bar is more useful than a name's end
                found.widths["name"] = max(MIN_NAME, found.widths["name"] - (MIN_BAR + 1 - max(0, spare)))
    return _stretched(found, name_size, columns)


def _with(found: Layout, wish: str, sizes: Mapping[str, int]) -> Layout | None:
    """Return the layout with one more request; None if it has nothing to show."""
    if wish == "wide":
        return Layout(found.widths, 2, found.bar, found.busy_bar)
    if wish == "bar":
        return Layout(found.widths, found.gap, MIN_BAR, found.busy_bar)
    if wish == "busy bar":
        return Layout(found.widths, found.gap, found.bar, BUSY_BAR)
    if wish == "whole name":
        return found.with_column("name", sizes["name"]) if "name" in found.widths else None
    if wish == "name":
        return found.with_column("name", min(sizes["name"], MIN_NAME))
    return found.with_column(wish, sizes[wish]) if wish in sizes else None


def _stretched(found: Layout, name_size: int, columns: int) -> Layout:
    """Give the room that is left to the product name, then to the bar of memory."""
    if "name" in found.widths:
        found.widths["name"] = min(name_size, found.widths["name"] + max(0, columns - found.total()))
    if found.bar:
        found.bar = min(MAX_BAR, found.bar + max(0, columns - found.total()))
    return found
