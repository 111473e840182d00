"""What the tests of the doctor share."""

from __future__ import annotations

from pathlib import Path

import pytest
from situations import Looker, host


@pytest.fixture
def look(tmp_path: Path) -> Looker:
    """Looks at a host with two Radeons where all is well, on which a lab in a container is planned."""
    return Looker(host(tmp_path / "host"), tmp_path / "project")


@pytest.fixture
def inside(tmp_path: Path) -> Looker:
    """Looks at the same host from inside a lab's container."""
    return Looker(host(tmp_path / "host"), tmp_path / "project", side="container")
