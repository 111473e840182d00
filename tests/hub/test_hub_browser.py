"""The hub as its users see it: two of them log in with Chromium and start labs with a GPU each, on a simulated host."""

from __future__ import annotations

from typing import TYPE_CHECKING

import engines
import pytest
from hubs import PASSWORD, Machine

if TYPE_CHECKING:
    from playwright.sync_api import BrowserContext, Page

pytestmark = [pytest.mark.slow, pytest.mark.native, pytest.mark.browser]
WAIT_MS = 180_000
LABS = "/hub/rocmlab/labs"


def choose(context: BrowserContext, machine: Machine, user: str) -> Page:
    """Log in, and request a lab with one GPU."""
    page = context.new_page()
    page.goto(f"{machine.url}/hub/login")
    page.fill("input[name=username]", user)
    page.fill("input[name=password]", PASSWORD)
    page.click("#login_submit")
    page.wait_for_url(lambda url: "/hub/login" not in url)  # what is opened before would end the login
    if "/hub/spawn" not in page.url:
        page.goto(f"{machine.url}/hub/spawn")
    page.check("input[name=gpus][value='1']")
    page.click("form button[type=submit]")
    return page


def look_around(page: Page, machine: Machine, user: str, other: str) -> None:
    """See the administrator's message, the panel and the files that are there: the user's own."""
    page.wait_for_selector(".jp-LauncherCard", timeout=WAIT_MS)
    page.get_by_text("Administrator: back <b>at</b> noon").wait_for(timeout=WAIT_MS)
    page.goto(f"{machine.url}/user/{user}/lab/tree/work?reset")
    page.locator(".jp-DirListing-item", has_text=f"of-{user}.txt").wait_for(timeout=WAIT_MS)
    assert page.locator(".jp-DirListing-item", has_text=f"of-{other}.txt").count() == 0
    page.locator(".jp-LauncherCard[title^='What the GPUs do']").click(timeout=WAIT_MS)
    page.wait_for_selector(".rocmlab-Status[data-status=live]", timeout=WAIT_MS)
    page.goto(f"{machine.url}/user/{user}/rocmlab/")
    page.wait_for_selector(".rocmlab-Status[data-status=live]", timeout=WAIT_MS)
    page.locator("text=/SIMULATED/i").first.wait_for(timeout=WAIT_MS)


def save(machine: Machine, user: str) -> None:
    """Save a file in a user's lab."""
    body = {"type": "file", "format": "text", "content": ""}
    answer = machine.client(user).ready().lab("PUT", f"api/contents/work/of-{user}.txt", body)
    assert answer.status_code in {200, 201}, answer.text  # 200 where a try before this one left it


@pytest.mark.long
def test_two_users_have_a_gpu_each_and_a_third_is_served_when_one_leaves(machine: Machine) -> None:
    """Each sees the panel, SIMULATED, and their own files only; the administrator, who waits, sees all labs."""
    from playwright.sync_api import sync_playwright

    chief = machine.client("chief")
    assert chief.api("POST", "/hub/api/rocmlab/message", {"text": "back <b>at</b> noon"}).status_code == 200
    with sync_playwright() as playwright:
        browser = engines.launch_chromium(playwright)
        contexts = {user: browser.new_context(viewport={"width": 1280, "height": 860}) for user in machine.users}
        try:
            for context in contexts.values():
                context.set_default_timeout(WAIT_MS)
            pages = {user: choose(contexts[user], machine, user) for user in ("ada", "bob")}
            for user in pages:
                save(machine, user)
            look_around(pages["ada"], machine, "ada", "bob")
            look_around(pages["bob"], machine, "bob", "ada")
            answer = contexts["ada"].new_page().goto(f"{machine.url}/user/bob/lab")
            assert answer is not None
            assert answer.status in (403, 404)

            third = choose(contexts["chief"], machine, "chief")
            third.get_by_text("waiting for 1 GPU").first.wait_for(timeout=WAIT_MS)
            overview = contexts["chief"].new_page()
            overview.goto(f"{machine.url}{LABS}")
            for user in machine.users:
                overview.get_by_role("cell", name=user, exact=True).first.wait_for(timeout=WAIT_MS)
            pages["ada"].goto(f"{machine.url}/hub/home")
            pages["ada"].wait_for_load_state("networkidle")  # its script comes after it
            pages["ada"].click("#stop")
            third.wait_for_selector(".jp-LauncherCard", timeout=WAIT_MS)
            assert sorted(holder.owner or "" for holder in machine.holders()) == ["bob", "chief"]
        finally:
            browser.close()
            chief.api("POST", "/hub/api/rocmlab/message", {})
            for user in contexts:
                machine.client(user).stop_lab()
