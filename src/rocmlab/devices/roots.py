"""The root under which `/sys`, `/proc` and `/dev` are read: `/`, or a folder that simulates a host."""

from __future__ import annotations

import os
from pathlib import Path


def system_root() -> Path:
    """Return `$ROCMLAB_ROOT`, by default `/`."""
    return Path(os.environ.get("ROCMLAB_ROOT") or "/")


def is_simulated(root: Path) -> bool:
    """Tell whether `root` is a simulated host and not this machine."""
    return root.resolve() != Path("/")


def read_text(path: Path) -> str | None:
    """Return a small system file without padding (captures pad with NUL bytes), or None if it cannot be read."""
    try:
        return path.read_bytes()[:65536].split(b"\0", 1)[0].decode("utf-8", "replace").strip()
    except OSError:
        return None


def read_integer(path: Path) -> int | None:
    """Return the decimal number in a system file, or None if there is none."""
    text = read_text(path)
    try:
        return int(text) if text else None
    except ValueError:
        return None
