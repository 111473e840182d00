"""Tests replace nothing that is private: what they need to replace is an argument, or a public name."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

TESTS = Path(__file__).parent
# Names of other projects that are replaced all the same: (file, name), and why.
EXCEPTIONS: Mapping[tuple[str, str], str] = {
    ("telemetry/test_seam_library.py", "_nvmlGetFunctionPointer_cache"): "nvidia-ml-py keeps functions",
    ("telemetry/test_seam_names.py", "_pid"): "it is psutil's own, and no process of that number exists",
    ("training/frameworks/test_resident_torch.py", "_parallel_update_step"): "it is Keras's own",
}


def private(name: str) -> bool:
    """Return whether the last part of a dotted name is private; `__name__` is Python's own."""
    last = name.rpartition(".")[2]
    return last.startswith("_") and not last.endswith("__") and last.isidentifier()


def replaced(tree: ast.AST) -> Iterator[str]:
    """Yield the private names that a test replaces: with `setattr` and its like, or by an assignment."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, (ast.Name, ast.Attribute)):
            called = node.func.id if isinstance(node.func, ast.Name) else node.func.attr
            if called in ("setattr", "delattr", "patch", "object"):
                texts = [each.value for each in node.args[:2] if isinstance(each, ast.Constant)]
                yield from (text.rpartition(".")[2] for text in texts if isinstance(text, str) and private(text))
        elif isinstance(node, (ast.Assign, ast.AugAssign, ast.AnnAssign)):
            for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
                owner = target.value if isinstance(target, ast.Attribute) else None
                is_own = isinstance(owner, ast.Name) and owner.id in ("self", "cls")
                if isinstance(target, ast.Attribute) and not is_own and private(target.attr):
                    yield target.attr


def test_no_test_replaces_what_is_private() -> None:
    """Apart from the list of exceptions, each of which is in use."""
    found = {
        (str(path.relative_to(TESTS)), name)
        for path in TESTS.rglob("*.py")
        for name in replaced(ast.parse(path.read_text(encoding="utf-8")))
    }

    assert found == set(EXCEPTIONS)


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("monkeypatch.setattr(module, '_private', 1)", ["_private"]),
        ("monkeypatch.setattr('package.module._private', 1)", ["_private"]),
        ("patch.object(module.Class, '_private')", ["_private"]),
        ("module._private = 1", ["_private"]),
        ("module.Class._count += 1", ["_count"]),
        ("self._own = cls._own = 1", []),
        ("monkeypatch.setattr(module, 'public', module._private)", []),
        ("monkeypatch.setattr(os, '__file__', '')", []),
    ],
)
def test_a_replacement_is_recognised(text: str, names: list[str]) -> None:
    """By any of the usual ways."""
    assert list(replaced(ast.parse(text))) == names
