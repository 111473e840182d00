"""A line of CSV for each device: names of columns carry their unit and do not change; unknown is empty."""

from __future__ import annotations

import csv
import io
from dataclasses import fields

from rocmlab.devices import Sample
from rocmlab.telemetry.smi import View

TYPE_CHECKING = False  # `typing` itself would cost milliseconds at each start
if TYPE_CHECKING:
    from rocmlab.telemetry.smi_cells import Row

IDENTITY = ("id", "backend", "index", "smi_index", "pci_address", "partition", "name", "simulated", "is_usable")
COUNTED = ("ecc_corrected", "ecc_uncorrected", "throttle_reasons")  # in a form of their own, at the end
SAMPLE = tuple(each.name for each in fields(Sample) if each.name not in ("time_seconds", *COUNTED))
COLUMNS = (
    "time_seconds",
    *IDENTITY,
    *SAMPLE,
    "energy_joules",
    *COUNTED,
    "processes",
)


def header() -> str:
    """Return the line of names."""
    return _written(COLUMNS)


def lines(view: View) -> list[str]:
    """Return a line for each device."""
    return [_written(_values(view, device)) for device in view.devices]


def _values(view: View, device: Row) -> list[object]:
    sample = device.get("sample") or {}
    reasons = sample.get("throttle_reasons")
    on_it = None if view.processes is None else sum(each["device"] == device["id"] for each in view.processes)
    return [
        sample.get("time_seconds") or view.time_seconds,
        *(device.get(name) for name in IDENTITY),
        *(sample.get(name) for name in SAMPLE),
        device.get("energy_joules"),
        _sum(sample.get("ecc_corrected")),
        _sum(sample.get("ecc_uncorrected")),
        None if reasons is None else ";".join(reasons) or "none",
        on_it,
    ]


def _sum(counts: dict[str, int] | None) -> int | None:
    return None if counts is None else sum(counts.values())


def _written(values: object) -> str:
    text = io.StringIO()
    csv.writer(text, lineterminator="").writerow(_plain(value) for value in values)  # type: ignore[attr-defined]
    return text.getvalue()


def _plain(value: object) -> object:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        return f"{value:.6f}".rstrip("0").rstrip(".")
    return value
