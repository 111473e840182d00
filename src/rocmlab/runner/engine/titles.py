"""What a cell is called on the screen."""

from __future__ import annotations

from typing import Any


def title_of(cells: list[Any], index: int) -> str:
    """Return what to call a cell: `parameters`, its first comment, the heading above it, or its first line."""
    if {"parameters", "injected-parameters"} & set(cells[index]["metadata"].get("tags", [])):
        return "parameters"
    lines = [line.strip() for line in cells[index]["source"].splitlines() if line.strip()]
    first = lines[0] if lines else "(empty)"
    if first.startswith("#") and not first.startswith("#!"):
        return first.lstrip("#% ").strip()[:80] or "(comment)"
    return _heading(cells[:index]) or first[:80]


def _heading(above: list[Any]) -> str | None:
    """Return the nearest heading; the notebook's own title only where it is right above."""
    for distance, cell in enumerate(reversed(above)):
        if cell["cell_type"] == "markdown":
            level = "#" if distance == 0 else "##"
            headings = [line for line in cell["source"].splitlines() if line.startswith(level)]
            if headings:
                return str(headings[-1].lstrip("# ").strip()[:80])
    return None
