"""A lab to look at in Chromium."""

from __future__ import annotations

import engines
import pytest
from clones import Clone, printed_url


@pytest.fixture(scope="session")
def browser_lab(request: pytest.FixtureRequest) -> tuple[Clone, str]:
    """A running lab and the URL that `make up` printed: in a container where there is an engine, else native."""
    found: Clone = request.getfixturevalue("native_lab" if engines.missing() else "docker_lab")
    if engines.missing():
        found.make("build")  # else kernels are still being installed
    return found, printed_url(found.make("up").stdout)
