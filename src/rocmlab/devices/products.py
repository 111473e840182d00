"""What AMD's GPUs are called and which software supports them, from two tables that name their source and date.

`products.csv` has names by PCI device and revision, `gfx.csv` has ISA targets; both are next to this module.
"""

from __future__ import annotations

import functools
import os
from dataclasses import dataclass

# Chips older than ROCm, by ranges of PCI devices; source: the list of devices in the kernel's amdgpu driver.
NEVER_SUPPORTED = (
    (0x1304, 0x131D, "GCN 2", "Kaveri"),
    (0x6600, 0x6631, "GCN 1", "Oland"),
    (0x6640, 0x665F, "GCN 2", "Bonaire"),
    (0x6660, 0x666F, "GCN 1", "Hainan"),
    (0x6780, 0x679F, "GCN 1", "Tahiti"),
    (0x67A0, 0x67BE, "GCN 2", "Hawaii"),
    (0x6800, 0x6819, "GCN 1", "Pitcairn"),
    (0x6820, 0x683F, "GCN 1", "Cape Verde"),
    (0x9830, 0x983F, "GCN 2", "Kabini"),
    (0x9850, 0x985F, "GCN 2", "Mullins"),
)
SUPPORT = {
    "yes": "supported",
    "partly": "partly supported",
    "dropped": "no longer supported",
    "no": "not supported",
    "wrong": "computes wrong results",
}


@dataclass(frozen=True)
class Product:
    """One PCI device of the table of products."""

    name: str
    gfx: str | None  # ISA target, where the table knows it


@dataclass(frozen=True)
class Target:
    """What is known of one ISA target; None is unknown."""

    gfx: str
    is_known: bool = False  # whether the table has it
    architecture: str | None = None  # CDNA3, RDNA2, …
    support: str | None = None  # yes (on AMD's list for ROCm), partly, dropped, no, wrong
    support_note: str = ""  # since when, or for which cards
    is_in_tensorflow: bool | None = None  # on the accept-list of tensorflow-rocm
    has_wheels: bool = False  # whether AMD has PyTorch wheels for just this target
    override: str | None = None  # the usual HSA_OVERRIDE_GFX_VERSION where a library lacks the target
    is_apu: bool | None = None  # whether it exists only inside processors
    products: str = ""
    notes: str = ""

    @property
    def outlook(self) -> str:
        """What to expect of it: works, override (with one it works), unsupported, wrong (results), unknown."""
        if not self.is_known:
            return "unknown"
        if self.support == "wrong":
            return "wrong"
        return "works" if self.is_in_tensorflow else "override" if self.override else "unsupported"

    @property
    def caveat(self) -> str:
        """Why it may not work, in one sentence; empty where it works."""
        return {
            "unknown": f"no list of ROCm's targets has {self.gfx or 'its target'}, so it may not work",
            "unsupported": f"ROCm's usual packages have no kernels for {self.gfx}: {self.notes or self.support_text}",
            "wrong": f"ROCm's packages for {self.gfx} install and compute wrong results ({self.support_note})",
        }.get(self.outlook, "")

    @property
    def support_text(self) -> str:
        """How far ROCm supports it, such as `partly supported, on AMD's Ryzen list`."""
        return ", ".join(filter(None, (SUPPORT.get(self.support or "", "unknown"), self.support_note)))


def name(device: int | None, revision: int | None = None, product_name: str | None = None) -> str:
    """Return the name of a GPU: the card's own, else the table's, else its PCI id."""
    if product_name:
        return product_name
    if device is None:
        return "AMD GPU"
    found = product(device, revision)
    return found.name if found else f"AMD {never_supported(device) or 'GPU'} 1002:{device:04x}"


def product(device: int, revision: int | None = None) -> Product | None:
    """Return a PCI device's row of the table: that of its revision, else that of the device."""
    wanted = f"{revision:02x}" if revision is not None else "*"
    rows = _products().get(f"{device:04x}", ())
    for row in rows:
        if wanted in row[0].split():
            return Product(row[1], row[2] or None)
    return next((Product(row[1], row[2] or None) for row in rows if row[0] == "*"), None)


def never_supported(device: int | None) -> str | None:
    """Return what a GPU is that ROCm has never supported, such as `GCN 1 (Tahiti)`; None for any other."""
    rows = (row for row in NEVER_SUPPORTED if device is not None and row[0] <= device <= row[1])
    return next((f"{generation} ({chip})" for _, _, generation, chip in rows), None)


def target(gfx: str | None) -> Target:
    """Return what the table knows of an ISA target; of an unknown one only its name."""
    row = _targets().get(gfx or "")
    if row is None:
        return Target(gfx or "")
    return Target(
        gfx=row["gfx"],
        is_known=True,
        architecture=row["architecture"] or None,
        support=row["support"] or None,
        support_note=row["support_note"],
        is_in_tensorflow=row["tensorflow"] == "yes",
        has_wheels=row["wheels"] == "yes",
        override=row["override"] or None,
        is_apu=row["apu"] == "yes",
        products=row["products"],
        notes=row["notes"],
    )


def targets() -> list[str]:
    """Return all ISA targets of the table."""
    return list(_targets())


@functools.cache
def _products() -> dict[str, list[tuple[str, ...]]]:
    table: dict[str, list[tuple[str, ...]]] = {}
    for device, *rest in _rows("products.csv"):
        table.setdefault(device, []).append(tuple(rest))
    return table


@functools.cache
def _targets() -> dict[str, dict[str, str]]:
    header, *rows = _rows("gfx.csv", with_header=True)
    return {row[0]: dict(zip(header, row, strict=True)) for row in rows}


def _rows(file_name: str, *, with_header: bool = False) -> list[list[str]]:
    """Return the fields of a table; no field holds a comma, so that reading it needs no module."""
    with open(os.path.join(os.path.dirname(__file__), file_name), encoding="utf-8") as file:
        rows = [line.split(",") for line in file.read().splitlines() if not line.startswith("#")]
    return rows if with_header else rows[1:]
