"""Packages that are compiled for one build of a framework: of the same build, or not at all.

PyPI's torchvision, for example, is for CUDA; next to another PyTorch it cannot be imported, and stops others that try.
"""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path

from rocmlab.base.errors import RocmlabError
from rocmlab.packages import base_packages, overlays, protection
from rocmlab.packages.base_packages import Base

INDEX = "rocmlab-index"  # in the prefix of the lab's interpreter: where its PyTorch came from
FIX = (
    "add a wheel of the same build first, with --index-url or --find-links;\n"
    "or without it, where what you want can do without: %pip install --no-deps NAME"
)
IMPORT_SECONDS = 300
ALONE = "--no-other-index"  # of docker/build/install.py: no index of pip's settings may outbid this one


def settle(changed: Mapping[str, str], base: Base, scratch: Path, install: Callable[[list[str]], None]) -> list[str]:
    """Have each companion among the new packages be of the framework's build; return why that is not so, a line each.

    Args:
        changed: versions of the new packages.
        base: the lab's packages.
        scratch: the overlay.
        install: runs `pip install`.
    """
    return [
        line for name in changed if name in protection.COMPANIONS if (line := _settle(name, base, scratch, install))
    ]


def _settle(name: str, base: Base, scratch: Path, install: Callable[[list[str]], None]) -> str:
    why = problem(name, base, scratch)
    if not why:
        return ""
    if index := index_of(base.python):
        try:
            install(["--no-deps", "--force-reinstall", ALONE, "--index-url", index, name])
        except RocmlabError:
            return f"{name}: {why}; {index} has none either"
        why = problem(name, base, scratch)
    return f"{name}: {why}" if why else ""


def problem(name: str, base: Base, scratch: Path) -> str:
    """Return why this one cannot be used next to the lab's framework; empty if it can."""
    framework = protection.COMPANIONS[name]
    version = base_packages.installed(overlays.site_of(scratch)).get(name, "")
    wanted, found = protection.build(base.versions.get(framework, "")), protection.build(version)
    if wanted in protection.GPU_BUILDS and found != wanted and not _has_libraries(name, scratch, wanted):
        return f"{version} is built for {found or 'other hardware'}, and the lab's {framework} for {wanted}"
    return error_of(scratch, f"import {framework}, {name.replace('-', '_')}")


def error_of(scratch: Path, code: str) -> str:
    """Return the last line of the error that code ends with in an overlay's interpreter; empty if it works."""
    done = subprocess.run(
        [str(scratch / "bin/python"), "-c", code],
        cwd="/",
        capture_output=True,
        text=True,
        timeout=IMPORT_SECONDS,
        check=False,
    )
    return (done.stderr.strip().splitlines() or ["it cannot be imported"])[-1] if done.returncode else ""


def _has_libraries(name: str, scratch: Path, build: str) -> bool:
    """Return whether one wheel has libraries for several kinds of hardware, this one among them, as bitsandbytes."""
    folder = overlays.site_of(scratch) / name.replace("-", "_")
    return any(folder.glob(f"lib{folder.name}_{'cuda' if build == 'cu' else build}*.so"))


def index_of(python: str) -> str | None:
    """Return the index that the PyTorch of an interpreter came from; None: pip's own."""
    try:
        text = (Path(python).parent.parent / INDEX).read_text(encoding="utf-8").strip()
    except OSError:
        return None
    return text or None
