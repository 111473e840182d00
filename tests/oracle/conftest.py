"""The tools are made once for all oracle tests."""

from __future__ import annotations

import oracle_tools
import pytest


@pytest.fixture(autouse=True, scope="session")
def _tools() -> None:
    """Make the tools before the first test, so that no test's time is that of a download."""
    if not oracle_tools.missing():
        oracle_tools.folder()
