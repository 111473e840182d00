"""The report in a real browser: opened from disk, with no network, light and dark."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import engines
import pytest
import run_results

from rocmlab.runs.outcome import report

pytestmark = pytest.mark.browser
ATTACK = "<img src=x onerror=\"document.title='run'\"><script>document.title='run'</script>"


@pytest.fixture
def run_path(tmp_path: Path) -> Path:
    """A run folder with a good grid and a notebook that failed."""
    printed = f"{ATTACK}\nepoch 1\repoch 2\n"
    run_results.write_failed_notebook(tmp_path, "broken", printed=printed)
    grid = [
        run_results.job(
            f"grid-{lr}", notebook="/grid.ipynb", parameters={"lr": lr, "note": ATTACK}, recorded={"loss": 1 / lr}
        )
        for lr in (0.001, 0.01, 0.1)
    ]
    report.write(run_results.results(*grid, run_results.job("broken", "failed", warnings=[ATTACK])), tmp_path)
    return tmp_path


@pytest.fixture
def context() -> Iterator[object]:
    """Chromium that notes each request and lets none leave the disk."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = engines.launch_chromium(playwright)
        yield browser.new_context(viewport={"width": 1280, "height": 860}, offline=True)
        browser.close()


def test_the_report_opens_from_disk_with_the_failing_cell_first(run_path: Path, context) -> None:
    """Its first screen shows outcome and failing cell; nothing is fetched, nothing in it runs, its links lead on."""
    page = context.new_page()
    requests: list[str] = []
    said: list[str] = []
    page.on("request", lambda request: requests.append(request.url))
    page.on("console", lambda message: said.append(message.text))

    page.goto((run_path / "report.html").as_uri())

    assert page.locator("h1").inner_text() == "1 of 4 notebooks did not complete"
    first = page.locator("section").first
    assert first.locator("h3").inner_text().startswith("broken")
    assert first.locator("pre.source").inner_text().strip() == "# Divide\nx / 0"
    assert first.locator("pre.source").bounding_box()["y"] < 860
    assert ATTACK in first.locator("pre").nth(1).inner_text()
    assert page.title().startswith("1 of 4")
    assert len(requests) == 1
    assert said == []
    first.get_by_role("link", name="notebook").click()
    assert page.locator("p").inner_text() == "the executed notebook"


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_report_is_legible(run_path: Path, context, scheme: str) -> None:
    """Text stands out from the page in light and dark, also in the plots, and a phone need not scroll sideways."""
    pytest.importorskip("matplotlib", reason="plots need matplotlib: pip install matplotlib")
    page = context.new_page()
    page.emulate_media(color_scheme=scheme)
    page.goto((run_path / "report.html").as_uri())
    style = "(name) => getComputedStyle(document.querySelector(name))"

    back = brightness(page.evaluate(f"({style})('body').backgroundColor"))
    inks = {
        name: brightness(page.evaluate(f"({style})('{name}').{kind}"))
        for name, kind in {"h1": "color", "td": "color", "pre.source": "color", "figure svg text": "fill"}.items()
    }
    page.set_viewport_size({"width": 400, "height": 800})

    assert (back > 200) == (scheme == "light")
    assert all(abs(ink - back) > 150 for ink in inks.values()), inks
    assert page.evaluate("document.documentElement.scrollWidth") <= 400


def brightness(colour: str) -> float:
    """Return the mean of red, green and blue in `rgb(1, 2, 3)`."""
    numbers = [float(part) for part in colour[colour.index("(") + 1 : -1].split(",")[:3]]
    return sum(numbers) / 3


@pytest.mark.long
def test_the_report_prints_light_and_whole(run_path: Path, context) -> None:
    """On paper there is no dark page, and nothing is cut off or scrolls."""
    page = context.new_page()
    page.emulate_media(media="print", color_scheme="dark")
    page.set_viewport_size({"width": 690, "height": 980})  # A4 less its margins

    page.goto((run_path / "report.html").as_uri())

    assert brightness(page.evaluate("getComputedStyle(document.body).color")) < 60
    assert page.evaluate("document.documentElement.scrollWidth") <= 690
    assert page.evaluate("[...document.querySelectorAll('pre')].every(one => one.scrollHeight <= one.clientHeight)")
