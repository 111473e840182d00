"""Apple GPUs, as macOS lists them."""

from __future__ import annotations

import sys
from pathlib import Path

from rocmlab.devices.model import Device
from rocmlab.devices.roots import is_simulated

TYPE_CHECKING = False  # `typing` itself would cost milliseconds at each start
if TYPE_CHECKING:
    from typing import Any


def parse(report: str) -> list[Device]:
    """Return the GPUs of a `system_profiler SPDisplaysDataType -json` report; only Metal-capable ones are usable."""
    import json

    try:
        found = json.loads(report)
    except (ValueError, RecursionError):
        return []
    displays = found.get("SPDisplaysDataType") if isinstance(found, dict) else None
    entries = [entry for entry in displays if isinstance(entry, dict)] if isinstance(displays, list) else []
    devices: list[Device] = []
    for entry in entries:
        devices.append(_device(entry, sum(device.is_usable for device in devices)))
    return devices


def _device(entry: dict[str, Any], next_index: int) -> Device:
    has_metal = any(
        key.startswith("spdisplays_m") and "metal" in f"{key}{value}".lower() for key, value in entry.items()
    )
    cores = str(entry.get("sppci_cores", ""))
    return Device(
        backend="metal",
        index=next_index if has_metal else None,
        name=str(entry.get("sppci_model") or entry.get("_name") or "Apple GPU"),
        is_usable=has_metal,
        why_not=None if has_metal else "macOS reports no Metal support for it",
        compute_units=int(cores) if cores.isascii() and cores.isdigit() and len(cores) < 6 else None,
    )


class Metal:
    """The GPU of a Mac; macOS reports its load and power to root alone, so nothing reads them."""

    name = "metal"

    def discover(self, root: Path) -> list[Device]:
        """Return what `system_profiler` lists; nothing elsewhere than on macOS."""
        if sys.platform != "darwin" or is_simulated(root):
            return []
        import subprocess

        command = ["system_profiler", "SPDisplaysDataType", "-json"]
        try:
            report = subprocess.run(command, capture_output=True, text=True, timeout=20, check=True).stdout
        except (OSError, subprocess.SubprocessError):
            return []
        return parse(report)
