"""The rooms of the runner: what is in which, and that their imports go one way."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from rocmlab import runs

FOLDER = Path(runs.__file__).parent
# Each needs only earlier ones.
ROOMS = ("ground", "asking", "places", "warm", "engine", "working", "remote", "report", "outcome", "screen")
TOP = ("runs", "command")
EXPORT = "export"  # a room that needs what runs jobs
BENCH = "bench"  # needs anything, and nothing needs it


def names_in(tree: ast.AST) -> Iterator[str]:
    """Yield what a file imports of the runner, at its top or later: `ground.files`, `report`."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name.partition("rocmlab.runs.")[2] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module == "rocmlab.runs":
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("rocmlab.runs."):
            yield str(node.module).removeprefix("rocmlab.runs.")


def place_of(name: str) -> int:
    """Return how far up a room or a module is."""
    return (*ROOMS, *TOP, EXPORT, BENCH).index(name)


@pytest.mark.parametrize(
    "file", [pytest.param(path, id=str(path.relative_to(FOLDER))) for path in FOLDER.rglob("*.py")]
)
def test_a_room_needs_only_those_before_it(file: Path) -> None:
    """Imports inside functions and for types count, too; a room that is not listed here is an error."""
    relative = file.relative_to(FOLDER)
    own = relative.parts[0].removesuffix(".py")
    needed = {name.partition(".")[0] for name in names_in(ast.parse(file.read_text(encoding="utf-8"))) if name}

    if own != "__init__":
        above = {name for name in needed if name != own and place_of(name) >= place_of(own)}
        assert above == set(), f"{relative} is in or below {own}"
    else:
        assert needed == set(), "the package itself is cheap to import"


def test_no_module_lies_outside_of_the_rooms() -> None:
    """What runs jobs and the command line are the only ones beside them."""
    found = {path.stem for path in FOLDER.glob("*.py")} - {"__init__"}

    assert found == set(TOP)
