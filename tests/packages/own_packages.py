"""What the tests of packages share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from wheel_files import wheel

from rocmlab.packages import base_packages, overlays
from rocmlab.packages.installing import Outcome
from rocmlab.packages.overlays import Place

Add = Callable[..., Outcome]


def offer(folder: Path, name: str, version: str, requires: Sequence[str] = (), text: str = "") -> Path:
    """Write a wheel whose module has its version, and more text."""
    module = name.replace("-", "_")
    return wheel(folder, name, version, {f"{module}/__init__.py": f"version = {version!r}\n# {text}\n"}, requires)


def has(place: Place) -> dict[str, str]:
    """Return what the overlay in use has itself."""
    prefix = place.current()
    return base_packages.installed(overlays.site_of(prefix)) if prefix else {}
