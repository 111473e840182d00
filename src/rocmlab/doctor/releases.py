"""When kernels, drivers and ROCm were released, by which AMD defines which versions fit together.

Source: AMD's user and kernel-space support matrix (since ROCm 6.4 a driver fits releases of up to one year before or
after it). The months are in `releases.csv` next to this module, with their sources. A version in a gap of the table is
None; one above its end came out at the month of the last one or later.
"""

from __future__ import annotations

import functools
import re
from pathlib import Path
from typing import NamedTuple


class Month(NamedTuple):
    """When something came out."""

    year: int
    month: int
    is_least: bool = False  # or later: the table ends before it

    def __str__(self) -> str:
        return f"{self.year}-{self.month:02d}{' or later' if self.is_least else ''}"


def rocm(version: str | None) -> Month | None:
    """Return when a ROCm release such as `7.2.1` came out."""
    return _released("rocm", version)


def driver(module: str | None, kernel: str | None) -> Month | None:
    """Return the age of the amdgpu driver.

    Args:
        module: `/sys/module/amdgpu/version`, which only amdgpu-dkms has; up to 6.16 it counts as the kernel it follows.
        kernel: `uname -r`. Red Hat's kernels carry newer drivers than their number tells, so theirs is unknown.
    """
    if module:
        return _released("kernel", module)
    if not kernel or re.search(r"\.el\d", kernel):
        return None
    return _released("kernel", kernel)


def months_between(first: Month, second: Month) -> int:
    """Return how many months the second is later; negative if it is earlier."""
    return (second.year - first.year) * 12 + second.month - first.month


def minor(version: str | None) -> str:
    """Return the first two numbers of a version: 7.2 of 7.2.1; empty if there are none."""
    found = re.match(r"[0-9]{1,4}\.[0-9]{1,4}", version or "")
    return found[0] if found else ""


@functools.cache
def table(kind: str) -> dict[str, Month]:
    """Return the months of one kind, `rocm` or `kernel`, by version."""
    lines = Path(__file__).with_suffix(".csv").read_text(encoding="utf-8").splitlines()
    _, *rows = (line.split(",") for line in lines if not line.startswith("#"))
    return {version: Month(int(month[:4]), int(month[5:])) for of, version, month in rows if of == kind}


def _released(kind: str, version: str | None) -> Month | None:
    known, wanted = table(kind), minor(version)
    if not wanted or wanted in known:
        return known.get(wanted)
    last = max(known, key=_order)
    return known[last]._replace(is_least=True) if _order(wanted) > _order(last) else None


def _order(version: str) -> tuple[int, ...]:
    return tuple(map(int, version.split(".")))
