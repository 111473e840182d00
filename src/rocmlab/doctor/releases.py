"""When kernels, drivers and ROCm were released, which is how AMD says what fits what.

Source: AMD's user and kernel-space support matrix (since ROCm 6.4 a driver fits releases of up to one year before or
after it); dates of the GitHub releases of ROCm/rocm-core, rocminfo and TheRock; kernel.org for the longterm kernels.
Checked 2026-11-21, but for ROCm 5.6, 6.3 and 6.4 and the kernels between longterm ones, which are right to a month or
so. Unknown versions are None.
"""

from __future__ import annotations

import re

Month = tuple[int, int]  # year, month

ROCM: dict[str, Month] = {
    "5.6": (2023, 6),
    "5.7": (2023, 9),
    "6.0": (2023, 12),
    "6.1": (2024, 4),
    "6.2": (2024, 8),
    "6.3": (2024, 12),
    "6.4": (2025, 4),
    "7.0": (2025, 9),
    "7.1": (2025, 10),
    "7.10": (2025, 12),
    "7.2": (2026, 1),
    "7.11": (2026, 2),
    "7.12": (2026, 3),
    "7.13": (2026, 5),
    "7.14": (2026, 7),
    "10.0": (2026, 8),
    "10.1": (2026, 10),
}
KERNEL: dict[str, Month] = {
    "5.4": (2019, 11),
    "5.10": (2020, 12),
    "5.15": (2021, 10),
    "5.17": (2022, 3),
    "5.19": (2022, 7),
    "6.0": (2022, 10),
    "6.1": (2022, 12),
    "6.2": (2023, 2),
    "6.3": (2023, 4),
    "6.4": (2023, 6),
    "6.5": (2023, 8),
    "6.6": (2023, 10),
    "6.7": (2024, 1),
    "6.8": (2024, 3),
    "6.9": (2024, 5),
    "6.10": (2024, 7),
    "6.11": (2024, 9),
    "6.12": (2024, 11),
    "6.13": (2025, 1),
    "6.14": (2025, 3),
    "6.15": (2025, 5),
    "6.16": (2025, 7),
    "6.17": (2025, 9),
    "6.18": (2025, 11),
}


def rocm(version: str | None) -> Month | None:
    """Return when a ROCm release such as `7.2.1` came out."""
    return ROCM.get(minor(version))


def driver(module: str | None, kernel: str | None) -> Month | None:
    """Return the age of the amdgpu driver.

    Args:
        module: `/sys/module/amdgpu/version`, which only amdgpu-dkms has; up to 6.16 it counts as the kernel it follows.
        kernel: `uname -r`. Red Hat's kernels carry newer drivers than their number tells, so theirs is unknown.
    """
    if module:
        return KERNEL.get(minor(module))
    if not kernel or re.search(r"\.el\d", kernel):
        return None
    return KERNEL.get(minor(kernel))


def months_between(first: Month, second: Month) -> int:
    """Return how many months the second is later; negative if it is earlier."""
    return (second[0] - first[0]) * 12 + second[1] - first[1]


def minor(version: str | None) -> str:
    """Return the first two numbers of a version: 7.2 of 7.2.1; empty if there are none."""
    found = re.match(r"\d+\.\d+", version or "")
    return found[0] if found else ""
