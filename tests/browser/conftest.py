"""Chromium, and a lab to look at."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

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


@pytest.fixture
def page(tmp_path: Path) -> Iterator[object]:
    """A page of a fresh Chromium, 1280 by 860."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        context = playwright.chromium.launch_persistent_context(
            str(tmp_path / "profile"),
            executable_path=engines.chromium(),
            headless=True,
            args=engines.CHROMIUM_FLAGS,
            viewport={"width": 1280, "height": 860},
        )
        yield context.new_page()
        context.close()
