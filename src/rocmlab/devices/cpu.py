"""The CPU: always there."""

from __future__ import annotations

import platform
import re
from pathlib import Path

from rocmlab.devices.model import Device
from rocmlab.devices.roots import is_simulated, read_text


class Cpu:
    """The host's processor, as one device."""

    name = "cpu"

    def discover(self, root: Path) -> list[Device]:
        """Return one device, named by `/proc/cpuinfo` where there is one."""
        model = re.search(r"^model name\s*:\s*(.+)$", read_text(root / "proc/cpuinfo") or "", re.MULTILINE)
        name = model[1] if model else platform.processor() or platform.machine() or "CPU"
        return [Device(backend="cpu", index=0, name=name, is_usable=True, simulated=is_simulated(root))]
