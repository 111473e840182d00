"""The project folder: the nearest one upwards that holds compose.yaml, or that of this source tree."""

from __future__ import annotations

from pathlib import Path


def nearest() -> Path | None:
    """Return the project folder, None where there is none; it is not yet known whose it is."""
    here = Path.cwd()
    for folder in (here, *here.parents, Path(__file__).resolve().parents[3]):
        if (folder / "compose.yaml").is_file() and (folder / "docker/Dockerfile").is_file():
            return folder
    return None
