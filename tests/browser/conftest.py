"""Chromium, and a lab to look at."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from clones import Clone, clone, printed_url

sys.path.insert(0, str(Path(__file__).parents[1] / "container"))

CHROMIUM_FLAGS = [
    "--no-sandbox",  # CI runs as root in a machine of its own
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]


def chromium() -> str | None:
    """Return the path of Chromium or Chrome, or None."""
    names = ("chromium", "chromium-browser", "google-chrome")
    return os.environ.get("CHROMIUM") or next((path for name in names if (path := shutil.which(name))), None)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip what needs Chromium where there is none."""
    for item in items:
        if item.get_closest_marker("browser") and not chromium():
            reason = "no Chromium: sudo apt install chromium, or set CHROMIUM to its path"
            item.add_marker(pytest.mark.skip(reason=reason))


@pytest.fixture(scope="session")
def browser_lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Clone, str]]:
    """A running lab and the URL that `make up` printed: in a container where there is an engine, else native."""
    from conftest_container import base_image_here  # the same base as the container tests

    settings = {"COMPOSE_PROJECT_NAME": f"rocmlab-test-browser-{os.getpid()}"}
    base = base_image_here()
    settings |= {"BASE_IMAGE": base} if base else {"RUNTIME": "native"}
    found = clone(tmp_path_factory.mktemp("browser") / "rocmlab", **settings)
    yield found, printed_url(found.make("up").stdout)
    found.make("clean", succeeds=False)


@pytest.fixture
def page(browser_lab: tuple[Clone, str], tmp_path: Path) -> Iterator[object]:
    """A page of a fresh Chromium, 1280 by 860."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        context = playwright.chromium.launch_persistent_context(
            str(tmp_path / "profile"),
            executable_path=chromium(),
            headless=True,
            args=CHROMIUM_FLAGS,
            viewport={"width": 1280, "height": 860},
        )
        yield context.new_page()
        context.close()
