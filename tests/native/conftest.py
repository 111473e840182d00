"""What tests of native labs share."""

from __future__ import annotations

import pytest
from clones import Clone

BUILD_SECONDS = 2400


@pytest.fixture(scope="session")
def built_lab(native_lab: Clone) -> Clone:
    """The clone that cannot see Docker, its environment made."""
    if not (native_lab.folder / ".venv/rocmlab-environment.json").is_file():  # which is written last
        native_lab.make("build", timeout_seconds=BUILD_SECONDS)
    return native_lab
