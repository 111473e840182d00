"""Devices as text, the same in every verb."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

LABELS = {"rocm": "HIP", "cuda": "CUDA", "metal": "Metal", "cpu": "CPU"}


def gibibytes(count: int | None) -> str:
    """Return a size as `24.0 GiB`, empty if unknown."""
    return f"{count / 2**30:.1f} GiB" if count else ""


def device_lines(devices: Iterable[Mapping[str, Any]]) -> list[str]:
    """Return one line a device, in aligned columns; empty columns are left out."""
    rows = [_row(device) for device in devices]
    if not rows:
        return []
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    kept = [column for column, width in enumerate(widths) if width]
    return ["  ".join(row[column].ljust(widths[column]) for column in kept).rstrip() for row in rows]


def _row(device: Mapping[str, Any]) -> tuple[str, ...]:
    label = LABELS[device["backend"]]
    number = "" if device["backend"] == "cpu" else " -" if device["index"] is None else f" {device['index']}"
    state = "SIMULATED" if device.get("simulated") else ""
    if not device["is_usable"]:
        state = f"{state} not usable: {device['why_not']}".strip()
    return (
        label + number,
        device["name"],
        device.get("gfx") or "",
        gibibytes(device.get("vram_bytes")),
        device.get("pci_address") or "",
        device.get("render_node") or "",
        state,
    )
