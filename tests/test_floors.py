"""The packages of rocmlab stand on floors: imports point down only, and no two files import each other."""

from __future__ import annotations

import ast
import functools
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

import rocmlab

PACKAGE = Path(rocmlab.__file__).parent
# What each package may import of the others; `cli` may import all of them.
ALLOWED: Mapping[str, set[str]] = {
    "base": set(),
    "devices": {"base"},
    "simulation": {"base", "devices"},
    "telemetry": {"base", "devices"},
    "packages": {"base"},
    "kernels": {"base", "devices", "packages"},
    "notebook": {"base", "devices", "kernels"},
    "reports": {"base"},
    "runs": {"base", "devices", "kernels", "notebook", "packages", "reports", "telemetry"},
    "cluster": {"base", "devices", "kernels", "notebook", "runs"},
    "batch": {"base", "devices", "kernels", "notebook", "reports", "runs"},
    "training": {"base", "cluster", "devices"},
    "benchmarking": {"base", "devices", "training"},
    "stack": {"base", "cluster", "devices", "packages"},
    "backup": {"base", "packages", "stack"},
    "doctor": {"base", "cluster", "devices", "packages", "stack"},
    "hub": {"base", "devices", "kernels", "stack", "telemetry"},
    "lab": {"base", "devices", "doctor", "kernels", "notebook", "packages", "telemetry"},
}
# Imports that the table does not allow: (module, package), and why they are needed.
EXCEPTIONS: Mapping[tuple[str, str], str] = {
    ("lab.server.cluster", "cluster"): "the panel shows the cluster that this lab is a node of",
    ("lab.server.cluster_reader", "cluster"): "it reads the node's session in a process of its own",
    ("lab.server.proxied", "stack"): "it is one question who listens on a port",
}
NODE = "cluster.node"  # this half of `cluster` is for those below `runs`, and needs none of it
STANDARD_LIBRARY_ONLY = ("base", "devices", "packages", "stack", "backup", "doctor", NODE)


def name_of(path: Path) -> str:
    """Return the name of a module below `rocmlab`, such as `devices.model`; empty for the package itself."""
    parts = path.relative_to(PACKAGE).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imports_of(path: Path, *, is_deep: bool = True) -> Iterator[str]:
    """Yield what a file imports: the names of modules and of what is in them.

    Args:
        path: of the file.
        is_deep: whether imports in functions and for types count, or those at its top alone.
    """
    tree = ast.parse(path.read_text(encoding="utf-8"))
    for node in ast.walk(tree) if is_deep else tree.body:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path} has a relative import"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


@functools.cache
def graph() -> Mapping[str, set[str]]:
    """Return by module the modules of this package that it imports."""
    files = {name_of(path): path for path in PACKAGE.rglob("*.py")}
    found: dict[str, set[str]] = {}
    for module, path in files.items():
        names = [each.removeprefix("rocmlab.") for each in imports_of(path) if each.startswith("rocmlab.")]
        modules = {name if name in files else name.rpartition(".")[0] for name in names}
        found[module] = {each for each in modules if each and each != module}
    return found


def top(module: str) -> str:
    """Return the package of a module."""
    return module.partition(".")[0]


@pytest.mark.slow
@pytest.mark.parametrize("package", ALLOWED)
def test_imports_point_down(package: str) -> None:
    """A package imports those that the table of the design names; an exception has a reason, and is needed."""
    wrong = {
        (module, top(other))
        for module, others in graph().items()
        for other in others
        if top(module) == package and top(other) not in ALLOWED[package] | {package}
    }

    assert wrong == {pair for pair in EXCEPTIONS if top(pair[0]) == package}


def test_every_package_has_a_place() -> None:
    """A new package is added to the table."""
    folders = {path.parent.name for path in PACKAGE.glob("*/__init__.py")}

    assert folders == {*ALLOWED, "cli"}


def test_those_below_runs_import_only_the_node_of_a_cluster() -> None:
    """What runs jobs on a cluster is above `runs`; what a node is needs no more than devices."""
    executor = {
        (module, other)
        for module, others in graph().items()
        for other in others
        if top(module) in ("training", "stack", "doctor", "lab") and top(other) == "cluster"
        if not other.startswith(NODE)
    }
    node = {top(other) for module, others in graph().items() if module.startswith(NODE) for other in others}

    assert executor == set()
    assert node <= {"base", "cluster", "devices"}


@pytest.mark.slow
def test_a_server_starts_without_the_doctor() -> None:
    """Its panel needs it only when it is asked: 60 modules more would delay each start."""
    program = "import sys, rocmlab.lab.server.app; print(*(name for name in sys.modules if 'rocmlab.doctor' in name))"

    assert subprocess.check_output([sys.executable, "-c", program], text=True).split() == []


def test_no_two_modules_import_each_other() -> None:
    """Neither at their top, nor in a function, nor for types, nor over others."""
    assert [sorted(cycle) for cycle in cycles(graph())] == []


def cycles(edges: Mapping[str, set[str]]) -> list[set[str]]:
    """Return the sets of modules that can be reached from each other."""
    reached = {module: reach(module, edges) for module in edges}
    together = {
        frozenset(other for other in reached[module] if module in reached.get(other, ()))
        for module in edges
        if module in reached[module]
    }
    return [set(each) for each in together]


def reach(module: str, edges: Mapping[str, set[str]]) -> set[str]:
    """Return what a module imports, directly or not."""
    found: set[str] = set()
    open_ = [module]
    while open_:
        new = edges.get(open_.pop(), set()) - found
        found |= new
        open_ += new
    return found


def test_a_cycle_is_found() -> None:
    """Of any length."""
    edges = {"a": {"b"}, "b": {"c"}, "c": {"a", "d"}, "d": set()}

    assert cycles(edges) == [{"a", "b", "c"}]


@pytest.mark.parametrize("package", STANDARD_LIBRARY_ONLY)
def test_these_need_python_alone(package: str) -> None:
    """`make up` and `make doctor` run on a host with nothing installed; Ray is imported where a node runs."""
    folder = PACKAGE.joinpath(*package.split("."))
    others = {
        (name_of(path), name.partition(".")[0])
        for path in folder.rglob("*.py")
        for name in imports_of(path, is_deep=False)
        if name.partition(".")[0] not in {*sys.stdlib_module_names, "rocmlab"}
    }

    assert others == set()
