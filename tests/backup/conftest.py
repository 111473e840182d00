"""What the tests of backups share."""

from __future__ import annotations

from pathlib import Path

import pytest
from backup_labs import Lab


@pytest.fixture
def lab(tmp_path: Path) -> Lab:
    """An empty lab."""
    return Lab(tmp_path)
