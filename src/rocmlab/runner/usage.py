"""What jobs use of their devices while they run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rocmlab.devices import Device

UNKNOWN: dict[str, Any] = {"peak_vram_bytes": None, "mean_busy_percent": None, "energy_joules": None}


class Meters:
    """Reads the devices of running jobs."""

    def begin(self, job: str, devices: Sequence[Device]) -> None:
        """Start to measure a job."""

    def end(self, job: str) -> list[dict[str, Any]]:
        """Return what a job used of each of its devices, in their order; empty if it was never begun."""
        return []

    def close(self) -> None:
        """Stop reading."""
