"""What a cell is called on the screen."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

INJECTED = "injected-parameters"  # papermill's own cell behind the one that is tagged `parameters`


def numbered(cells: list[Any]) -> dict[int, int]:
    """Return the number of each code cell by its place; papermill's own has that of the one before."""
    numbers: dict[int, int] = {}
    count = 0
    for index, cell in enumerate(cells):
        if cell["cell_type"] == "code":
            count += not is_injected(cell)
            numbers[index] = max(1, count)
    return numbers


def is_injected(cell: Mapping[str, Any]) -> bool:
    """Return whether a cell is papermill's own, and not the notebook's."""
    metadata = cell.get("metadata")
    tags = metadata.get("tags") if isinstance(metadata, Mapping) else None
    return isinstance(tags, list) and INJECTED in tags


def may_fail(cell: Mapping[str, Any]) -> bool:
    """Whether an error of a cell is expected: it has papermill's and nbclient's tag for that."""
    return "raises-exception" in (cell["metadata"].get("tags") or [])


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
