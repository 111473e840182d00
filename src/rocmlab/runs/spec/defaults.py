"""What a notebook's cell tagged `parameters` sets where nothing else is given."""

from __future__ import annotations

import ast
import json
from collections.abc import Iterator, Mapping
from typing import Any

TAG = "parameters"


def of(notebook: Mapping[str, Any], language: str) -> dict[str, Any]:
    """Return the plain values that the cell sets: `lr: float = 0.01`. What is computed there is left out.

    Args:
        notebook: as `preflight.read` returns it.
        language: of its kernel; of others than Python nothing is known.
    """
    cells = (cell for cell in notebook["cells"] if TAG in cell.get("metadata", {}).get("tags", ()))
    cell = next(cells, None)
    if cell is None or language != "python":
        return {}
    lines = ("" if line.lstrip().startswith(("%", "!")) else line for line in cell["source"].splitlines())
    try:
        statements = ast.parse("\n".join(lines)).body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return {}
    found: dict[str, Any] = {}
    for name, value in _assigned(statements):
        found.pop(name, None)
        try:
            plain = ast.literal_eval(value)
            json.dumps(plain)
        except (ValueError, TypeError, SyntaxError, RecursionError, MemoryError):
            continue
        found[name] = plain
    return found


def _assigned(statements: list[ast.stmt]) -> Iterator[tuple[str, ast.expr]]:
    for each in statements:
        if isinstance(each, ast.Assign):
            yield from ((target.id, each.value) for target in each.targets if isinstance(target, ast.Name))
        elif isinstance(each, ast.AnnAssign) and isinstance(each.target, ast.Name) and each.value is not None:
            yield each.target.id, each.value
