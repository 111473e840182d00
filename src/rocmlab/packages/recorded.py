"""The environment of a kernel as a run records it: versions, as `pip freeze` has them, read without starting it."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from urllib.parse import unquote

from rocmlab.base import files
from rocmlab.packages import base_packages, overlays

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

NAME = re.compile(r"environment-[0-9a-f]{12}\.json")
PLAIN = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+!-]*")
CODE = (".py", ".pyi", ".so", ".pyx", ".c", ".cpp", ".cu", ".hip")  # of an editable package: what is imported
MAX_BYTES = 64 * 1024**2  # of a larger file size and time of change count


def find(specification: Mapping[str, Any], python: str, environment: Mapping[str, str]) -> tuple[str, Path | None]:
    """Return the lab's interpreter of a kernel, or its own, and the overlay that its kernels have."""
    place = overlays.of_specification(specification, environment.get(overlays.SHARE))
    return (place.python, overlays.in_use(place, environment)) if place else (python, None)


def content(kernel: str, python: str, prefix: Path | None, image: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return an environment.

    Args:
        kernel: the name of the kernelspec.
        python: see `find`.
        prefix: the overlay.
        image: its build record; None outside of one.
    """
    lab = {name: version for site in overlays.sites(python) for name, version in base_packages.installed(site).items()}
    own = base_packages.installed(overlays.site_of(prefix)) if prefix else {}
    known = {name: version for name, version in {**lab, **own}.items() if not name.startswith(overlays.OWN[:-1])}
    return {
        "kernel": kernel,
        "python": version_of(python),
        "interpreter": python,
        "image": {name: image.get(name) for name in ("base_image", "created", "rocm")} if image else None,
        "own": sorted(own),  # packages of the user's own; the others are the lab's
        "editable": {path.name: digest for path, digest in editable(prefix)} if prefix else {},
        "packages": dict(sorted(known.items())),
    }


def write(found: Mapping[str, Any], folder: Path) -> str:
    """Write an environment into the folder of a run, once; return the file's name."""
    text = files.to_json(found) + "\n"
    name = f"environment-{hashlib.sha256(text.encode()).hexdigest()[:12]}.json"
    if not (folder / name).exists():
        files.write_text(folder / name, text)
    return name


def version_of(python: str) -> str | None:
    """Return the version of an interpreter without starting it: `3.12.3` of a virtual environment, else `3.12`."""
    path = Path(python)
    try:
        text = (path.parent.parent / "pyvenv.cfg").read_text(encoding="utf-8")
    except (OSError, ValueError):
        text = ""
    match = re.search(r"^version(?:_info)?\s*=\s*(\d+\.\d+\.\d+)", text, re.MULTILINE)
    match = match or re.fullmatch(r"python(\d+\.\d+)", path.resolve().name)
    return match[1] if match else None


def editable(prefix: Path) -> Iterator[tuple[Path, str]]:
    """Yield the folders of an overlay's editable packages, and what stands for their code. Source: PEP 610."""
    for file in sorted(overlays.site_of(prefix).glob("*.dist-info/direct_url.json")):
        try:
            found = json.loads(file.read_text(encoding="utf-8"))
            is_editable = bool(found.get("dir_info", {}).get("editable"))
            folder = Path(unquote(str(found["url"]).removeprefix("file://")))
        except (OSError, ValueError, LookupError, AttributeError):
            continue  # another program wrote it
        if is_editable:
            yield folder, _digest(folder)


def _digest(folder: Path) -> str:
    total = hashlib.sha256()
    for path in sorted(folder.rglob("*")):
        where = path.relative_to(folder)
        if path.suffix not in CODE or any(part.startswith(".") or part == "__pycache__" for part in where.parts):
            continue
        try:
            status = path.stat()
            is_small = status.st_size <= MAX_BYTES
            code = path.read_bytes() if is_small else f"{status.st_size} {status.st_mtime_ns}".encode()
        except OSError:
            continue
        total.update(f"{where}\0{len(code)}\0".encode("utf-8", "surrogateescape") + code)
    return total.hexdigest()[:16]
