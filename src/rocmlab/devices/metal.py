"""Apple GPUs, as macOS lists them."""

from __future__ import annotations

import json
import platform
import subprocess
from pathlib import Path

from rocmlab.devices.model import Device
from rocmlab.devices.roots import is_simulated


def parse(report: str) -> list[Device]:
    """Return the GPUs of a `system_profiler SPDisplaysDataType -json` report; only Metal-capable ones are usable."""
    try:
        displays = json.loads(report).get("SPDisplaysDataType", [])
    except ValueError:
        return []
    found: list[Device] = []
    for entry in displays:
        has_metal = any(
            key.startswith("spdisplays_m") and "metal" in f"{key}{value}".lower() for key, value in entry.items()
        )
        found.append(
            Device(
                backend="metal",
                index=sum(device.is_usable for device in found) if has_metal else None,
                name=entry.get("sppci_model") or entry.get("_name") or "Apple GPU",
                is_usable=has_metal,
                why_not=None if has_metal else "macOS reports no Metal support for it",
            )
        )
    return found


class Metal:
    """The GPU of a Mac."""

    name = "metal"

    def discover(self, root: Path) -> list[Device]:
        """Return what `system_profiler` lists; nothing elsewhere than on macOS."""
        if platform.system() != "Darwin" or is_simulated(root):
            return []
        command = ["system_profiler", "SPDisplaysDataType", "-json"]
        try:
            report = subprocess.run(command, capture_output=True, text=True, timeout=20, check=True).stdout
        except (OSError, subprocess.SubprocessError):
            return []
        return parse(report)
