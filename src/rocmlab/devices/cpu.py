"""The CPU: always there."""

from __future__ import annotations

import re
from pathlib import Path

from rocmlab.base import cores
from rocmlab.devices.model import Device
from rocmlab.devices.roots import is_simulated, read_bytes, read_text

FIRST_PROCESSOR_BYTES = 4096  # /proc/cpuinfo repeats itself for each core, and costs time for each


class Cpu:
    """The host's processor, as one device."""

    name = "cpu"

    def discover(self, root: Path) -> list[Device]:
        """Return one device, named by `/proc/cpuinfo` where there is one; its memory is the host's (`gtt_bytes`)."""
        simulated = is_simulated(root)
        memory = _memory(read_text(root / "proc/meminfo") or "")
        return [
            Device(
                backend="cpu",
                index=0,
                name=_name(root),
                is_usable=True,
                simulated=simulated,
                compute_units=None if simulated else cores.count(root),
                gtt_bytes=memory.get("MemTotal"),
            )
        ]


def memory_in_use(text: str) -> tuple[int | None, int | None]:
    """Return used (MemTotal - MemAvailable) and total bytes of memory by the text of `/proc/meminfo`."""
    memory = _memory(text)
    total, available = memory.get("MemTotal"), memory.get("MemAvailable")
    used = total - available if total is not None and available is not None and available <= total else None
    return used, total


def _name(root: Path) -> str:
    text = (read_bytes(root / "proc/cpuinfo", FIRST_PROCESSOR_BYTES) or b"").decode("ascii", "replace")
    found = re.search(r"^model name\s*:[ \t]*([\x20-\x7e]{1,100})", text, re.MULTILINE)
    if found and found[1].strip():
        return found[1].strip()
    if is_simulated(root):
        return "CPU"
    import platform

    return platform.processor() or platform.machine() or "CPU"


def _memory(text: str) -> dict[str, int]:
    """Return total and available memory in bytes, from `/proc/meminfo`."""
    pairs = re.findall(r"^(Mem\w+):[ \t]+([0-9]{1,15}) kB$", text, re.MULTILINE | re.ASCII)
    return {key: int(value) * 1024 for key, value in pairs}
