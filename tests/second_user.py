"""A second user of this machine, for tests that run as root."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

UID = 61234


def open_to_others(folder: Path) -> None:
    """Let every user, also of a container, reach a folder of a test: pytest makes those above it for one user only."""
    temporary = Path(os.environ.get("PYTEST_DEBUG_TEMPROOT") or tempfile.gettempdir()).resolve()
    for each in (folder, *folder.parents):
        if temporary not in each.parents:
            return
        each.chmod(0o755)
