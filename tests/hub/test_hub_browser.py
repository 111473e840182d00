"""The hub as its users see it: two of them log in with Chromium and start labs with a GPU each, on a simulated host."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import engines
import pytest
from hubs import PASSWORD, Machine

if TYPE_CHECKING:
    from playwright.sync_api import BrowserContext, Page

pytestmark = [pytest.mark.slow, pytest.mark.native, pytest.mark.browser]
WAIT_MS = 180_000


def enter(context: BrowserContext, machine: Machine, user: str) -> Page:
    """Log in, choose one GPU, and wait for JupyterLab."""
    page = context.new_page()
    page.goto(f"{machine.url}/hub/login")
    page.fill("input[name=username]", user)
    page.fill("input[name=password]", PASSWORD)
    page.click("#login_submit")
    if "/hub/spawn" not in page.url:
        page.goto(f"{machine.url}/hub/spawn")
    page.check("input[name=gpus][value='1']")
    page.click("form button[type=submit]")
    page.wait_for_selector(".jp-LauncherCard", timeout=WAIT_MS)
    return page


def test_two_users_start_labs_with_a_gpu_each(machine: Machine, tmp_path: Path) -> None:
    """The panel and its page are live behind the hub's check of XSRF, marked SIMULATED; the other's lab is closed.

    Both see what the administrator tells them.
    """
    from playwright.sync_api import sync_playwright

    chief = machine.client("chief")
    assert chief.api("POST", "/hub/api/rocmlab/message", {"text": "back <b>at</b> noon"}).status_code == 200
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=engines.chromium(), headless=True, args=engines.CHROMIUM_FLAGS
        )
        contexts = {user: browser.new_context(viewport={"width": 1280, "height": 860}) for user in ("ada", "bob")}
        try:
            for user, context in contexts.items():
                page = enter(context, machine, user)
                page.get_by_text("Administrator: back <b>at</b> noon").wait_for(timeout=WAIT_MS)
                page.locator(".jp-LauncherCard[title^='What the GPUs do']").click(timeout=WAIT_MS)
                page.wait_for_selector(".rocmlab-Status[data-status=live]", timeout=WAIT_MS)
                page.goto(f"{machine.url}/user/{user}/rocmlab/")
                page.wait_for_selector(".rocmlab-Status[data-status=live]", timeout=WAIT_MS)
                page.locator("text=/SIMULATED/i").first.wait_for(timeout=WAIT_MS)
            other = contexts["ada"].new_page()
            answer = other.goto(f"{machine.url}/user/bob/lab")
            assert answer is not None
            assert answer.status in (403, 404)
        finally:
            browser.close()
            chief.api("POST", "/hub/api/rocmlab/message", {})
            for user in contexts:
                machine.client(user).stop_lab()
