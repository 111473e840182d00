"""JupyterLab as a user sees it: Chromium opens the printed URL and trains the main notebook."""

from __future__ import annotations

import contextlib
import json
import re
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import clients
import pytest
from clones import REPOSITORY, Clone

if TYPE_CHECKING:
    from playwright.sync_api import Page

pytestmark = [pytest.mark.browser, pytest.mark.native]
ARTIFACTS = REPOSITORY / "test-artifacts"
TRAINING_SECONDS = 600


def picture(page: Page, name: str) -> Path:
    """Keep a screenshot as a test artefact."""
    ARTIFACTS.mkdir(exist_ok=True)
    path = ARTIFACTS / f"{name}.png"
    page.screenshot(path=path)
    return path


def test_the_launcher_offers_both_frameworks_and_nothing_else(browser_lab: tuple[Clone, str], page: Page) -> None:
    """The printed URL opens JupyterLab: the notebooks on the left, a TensorFlow and a PyTorch kernel to start."""
    page.goto(browser_lab[1])
    page.wait_for_selector(".jp-LauncherCard", timeout=60_000)

    cards = page.locator(".jp-LauncherCard-label").all_inner_texts()
    page.wait_for_selector(".jp-DirListing-itemText")
    folders = page.locator(".jp-DirListing-itemText").all_inner_texts()

    assert cards[:2] == ["TensorFlow", "PyTorch"]
    assert "01_mnist_fc.ipynb" in folders
    assert page.locator("text=get notified about official").count() == 0
    picture(page, "launcher")


def test_what_is_made_in_the_launcher_is_in_work(browser_lab: tuple[Clone, str], page: Page) -> None:
    """A new notebook is in work/; at the level above nothing can be made, and a message says where to save."""
    lab, url = browser_lab
    for left in (lab.folder / "notebooks").glob("Untitled*.ipynb"):  # by an attempt that failed
        left.unlink()
    page.goto(url)
    page.locator(".jp-LauncherCard[title*=PyTorch]").first.click(timeout=60_000)
    page.wait_for_selector(".jp-NotebookPanel-toolbar", timeout=60_000)
    made = sorted((lab.folder / "notebooks").glob("Untitled*.ipynb"))
    page.locator(".jp-BreadCrumbs-home").click()
    page.locator(".jp-DirListing-itemText", has_text=re.compile("^share$")).wait_for(timeout=30_000)
    folders = page.locator(".jp-DirListing-itemText").all_inner_texts()
    page.keyboard.press("Control+Shift+L")  # a launcher for the folder in front
    page.locator(".jp-LauncherCard[title*='text file']:visible").first.click(timeout=30_000)
    dialog = page.locator(".jp-Dialog-content")
    dialog.wait_for(timeout=30_000)
    message = dialog.inner_text()
    picture(page, "top_level")
    server = clients.Server(f"127.0.0.1:{lab.port}", url.split("token=")[1])
    status, running = server.request("/api/kernels", token=server.token)
    assert status == 200, running
    for kernel in json.loads(running):
        server.request(f"/api/kernels/{kernel['id']}", token=server.token, method="DELETE")
    for path in made:
        path.unlink()

    assert [path.name for path in made] == ["Untitled.ipynb"]
    assert set(folders) == {"share", "work"}
    assert "was not saved" in message
    assert "Open the folder work" in message


def test_without_the_token_there_is_only_a_login_page(browser_lab: tuple[Clone, str], page: Page) -> None:
    """The address alone gives nothing away."""
    page.goto(browser_lab[1].split("?")[0])

    page.wait_for_selector("input[type=password]", timeout=30_000)

    assert page.locator(".jp-LauncherCard").count() == 0


def run_all(page: Page, url: str) -> None:
    """Open a notebook and choose Run All Cells once its kernel is there; open it again if nothing ran.

    JupyterLab calls a notebook idle before it has a kernel, and runs nothing then. Cells chosen in the moment in which
    a new kernel becomes ready may wait for ever ([*], and the kernel stays idle).
    """
    from playwright.sync_api import TimeoutError as TooLate  # here, for machines without Playwright

    ran = page.locator(".jp-CodeCell .jp-InputPrompt").filter(has_text=re.compile(r"\[\d"))
    for _ in range(3):
        with page.expect_websocket(lambda socket: "/channels" in socket.url, timeout=60_000):
            page.goto(url)
        page.wait_for_selector(".jp-NotebookPanel-toolbar", timeout=60_000)
        page.wait_for_selector(".jp-Notebook-ExecutionIndicator[data-status=idle]", timeout=60_000)
        page.get_by_role("menuitem", name="Run", exact=True).click()
        page.get_by_role("menuitem", name="Run All Cells", exact=True).click()
        with contextlib.suppress(TooLate):
            ran.first.wait_for(timeout=30_000)
            return
    pytest.fail("the notebook was opened three times, and no cell ran")


@pytest.fixture
def short_notebook(browser_lab: tuple[Clone, str]) -> Iterator[str]:
    """The name of a copy of the main notebook that is quick: tests/native/test_native_lab.py trains the whole."""
    folder = browser_lab[0].folder / "notebooks"
    text = (folder / "01_mnist_fc.ipynb").read_text(encoding="utf-8")
    assert text.count("quick: bool = False ") == 1
    short = folder / f"01_mnist_short_{secrets.token_hex(2)}.ipynb"  # of its own, for a second attempt too
    short.write_text(text.replace("quick: bool = False ", "quick: bool = True "), encoding="utf-8")
    yield short.name
    short.unlink()


def test_the_main_notebook_trains_on_the_screen(
    browser_lab: tuple[Clone, str], short_notebook: str, page: Page
) -> None:
    """Run All Cells on 01_mnist_fc ends with the recorded accuracy on the screen, above its bar, and no cell failed."""
    url = browser_lab[1].replace("/lab?", f"/lab/tree/work/{short_notebook}?")
    run_all(page, url)
    last = page.locator(".jp-CodeCell").last
    last.scroll_into_view_if_needed()
    last.locator(".jp-OutputArea-output").first.wait_for(timeout=TRAINING_SECONDS * 1000)
    last.scroll_into_view_if_needed()

    text = last.inner_text()
    accuracy = re.search(r"test_accuracy\W+([01]\.\d+)", text)
    assert accuracy, text
    assert float(accuracy[1]) >= 0.945
    complaints = page.locator(
        "[data-mime-type='application/vnd.jupyter.error'], .jp-RenderedText[data-mime-type*=stderr]"
    ).all_text_contents()  # a cell out of sight has no inner text
    assert complaints == []
    picture(page, "mnist_result")
    page.locator(".jp-RenderedMarkdown h2:has-text('How it learned')").evaluate("heading => heading.scrollIntoView()")
    page.wait_for_timeout(500)  # for the plots to be painted
    picture(page, "mnist")
