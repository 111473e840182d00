"""Which kernels can be forked from a fork server, and which of them from the same one."""

from __future__ import annotations

import hashlib
import json
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rocmlab.kernels import kernelspec
from rocmlab.kernels.forkserver import guards

MODULES = {"torch": ("torch",), "tensorflow": ("tensorflow", "keras")}  # by the first word of the kernelspec's name
LAUNCHERS = ("ipykernel_launcher", "ipykernel")
PACKAGES = ("lib/python3*/site-packages", "lib/python3*/dist-packages", "lib/python3/dist-packages")


@dataclass(frozen=True)
class Recipe:
    """What a fork server is started with."""

    name: str  # of the kernelspec
    key: str  # differs whenever two kernels cannot have the same fork server
    python: str
    modules: tuple[str, ...]
    environment: Mapping[str, str]


def recipe(name: str, specification: Mapping[str, Any], environment: Mapping[str, str]) -> Recipe | None:
    """Return how a fork server for a kernel is started; None if the kernel has to start cold.

    Args:
        name: of the kernelspec.
        specification: that kernelspec.
        environment: all of the kernel's own.
    """
    modules = modules_for(name, specification)
    if not modules:
        return None
    python = kernelspec.interpreter(specification)
    return Recipe(name, key(python, modules, environment), python, modules, environment)


def modules_for(kernelspec_name: str, specification: Mapping[str, Any]) -> tuple[str, ...]:
    """Return what to import before kernels of a kernelspec are forked; nothing if they have to start cold.

    A kernelspec may name its own modules in its metadata, as `{"rocmlab": {"preload": ["jax"]}}`. One whose command is
    more than `python -m ipykernel_launcher -f {connection_file}` is not forked, for its options would be lost.
    """
    if sys.platform != "linux" or not _is_plain(specification):
        return ()
    chosen = kernelspec.preload(specification)
    if isinstance(chosen, Sequence) and not isinstance(chosen, str):
        return tuple(name for name in chosen if isinstance(name, str))
    return MODULES.get(kernelspec_name.lower().partition("-")[0], ())


def _is_plain(specification: Mapping[str, Any]) -> bool:
    argv = list(specification.get("argv") or ())
    return (
        specification.get("language", "python") == "python"
        and len(argv) == 5
        and argv[1] == "-m"
        and argv[2] in LAUNCHERS
        and argv[3:] == ["-f", "{connection_file}"]
    )


def key(python: str, modules: Sequence[str], environment: Mapping[str, str]) -> str:
    """Return what differs whenever anything differs that is fixed at import."""
    path = Path(os.path.abspath(python))
    places = {path.parent.parent, path.resolve().parent.parent}  # of a virtual environment, and of what is below it
    folders = sorted({str(found) for place in places for packages in PACKAGES for found in place.glob(packages)})
    parts = {
        "python": [str(path), str(path.resolve()), _changed(path)],
        "modules": list(modules),
        "environment": guards.frozen(environment),
        "packages": [[folder, _installed(folder)] for folder in folders],
    }
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode("utf-8", "surrogateescape")).hexdigest()


def _installed(folder: str) -> list[tuple[str, int | None]]:
    """Return what is in a folder of packages, and when each was installed.

    Not when the folder changed: that is also when the first import of a module without a package compiles it.
    """
    try:
        names = sorted(os.listdir(folder))
    except OSError:
        return []
    own = (name for name in names if name != "__pycache__")
    return [(name, _changed(Path(folder, name)) if name.endswith(".dist-info") else None) for name in own]


def _changed(path: Path) -> int | None:
    try:
        return path.stat().st_mtime_ns
    except OSError:
        return None
