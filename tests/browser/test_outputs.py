"""The laptop may close: what cells print without a page is in the next page, and continues there."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import clients
import nbformat
import pytest
from kernel_hosts import simulated_host
from panel_labs import BASE_URL, TOKEN, WAIT, Lab
from test_lab import picture

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

pytestmark = pytest.mark.browser
LINES = """\
import itertools, pathlib, time
for number in itertools.count():
    print("line", number, flush=True)
    time.sleep(0.1)
    if pathlib.Path("{file}").exists():
        break"""
WATCHED = """() => {
    window.away = false;
    window.shown = [];
    Object.defineProperty(document, "hidden", {get: () => window.away});
    window.Notification = class extends Notification {
        constructor(title, options) {
            super(title, options);
            shown.push(`${title}: ${options.body}`);
        }
    };
}"""


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    """One JupyterLab for all tests here."""
    folder = tmp_path_factory.mktemp("outputs")
    with (
        pytest.MonkeyPatch.context() as patch,
        simulated_host(folder, patch) as host,
        Lab(host, folder).running() as lab,
    ):
        yield lab


@pytest.fixture
def place() -> str:
    """A folder for the notebooks of one attempt at a test: what a failed one left behind does not count."""
    return f"attempt-{time.monotonic_ns()}"


def write(lab: Lab, name: str, *cells: str) -> Path:
    """Write a notebook, for a kernel without a GPU."""
    content = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(each) for each in cells])
    content.metadata.kernelspec = {"name": "torch-cpu", "display_name": "PyTorch (CPU)", "language": "python"}
    (lab.work / name).parent.mkdir(exist_ok=True)
    nbformat.write(content, lab.work / name)
    return lab.work / name


def opened(browser: Browser, lab: Lab, name: str, port: int = 0) -> Page:
    """Open a notebook as someone who has just sat down at another computer."""
    page = browser.new_context(viewport={"width": 1000, "height": 3000}).new_page()
    page.set_default_timeout(WAIT)
    address = lab.url(f"lab/workspaces/{time.monotonic_ns()}/tree/{name}")
    page.goto(address.replace(f":{lab.port}/", f":{port or lab.port}/"))
    page.locator(".jp-Notebook .jp-CodeCell").first.wait_for()
    return page


def run_all(page: Page) -> None:
    """Choose Run All Cells when the kernel is ready."""
    page.locator("#jp-main-statusbar", has_text="| Idle").wait_for()  # the indicator is idle before there is a kernel
    page.wait_for_timeout(1500)  # what is chosen in the moment in which a kernel becomes ready may be lost
    page.get_by_role("menuitem", name="Run", exact=True).click()
    page.get_by_role("menuitem", name="Run All Cells", exact=True).click()


def text(page: Page, cell: int = 0) -> str:
    """Return what is shown below a cell, without empty lines."""
    shown = page.locator(".jp-CodeCell").nth(cell).locator(".jp-OutputArea-output").all_inner_texts()
    return "\n".join(line for each in shown for line in each.split("\n") if line)


def until(page: Page, cell: int, wanted: str) -> None:
    """Wait until a cell shows a text."""
    page.locator(".jp-CodeCell").nth(cell).locator(".jp-OutputArea", has_text=wanted).first.wait_for()


def prompts(page: Page) -> list[str]:
    """Return what stands in front of the cells."""
    return page.locator(".jp-CodeCell .jp-InputPrompt").all_inner_texts()


def are_complete(shown: str, least: int) -> bool:
    """Return whether LINES were shown from the first to the last, each once."""
    found = shown.split("\n")
    return found == [f"line {number}" for number in range(len(found))] and len(found) > least


class Network:
    """What is between a browser and the lab, and may stop to carry anything."""

    def __init__(self, port: int) -> None:
        self.carries = threading.Event()
        self.carries.set()
        self._target = port
        self._sockets = [socket.create_server(("127.0.0.1", 0))]
        self._threads = [threading.Thread(target=self._accept)]
        self.port = self._sockets[0].getsockname()[1]
        self._threads[0].start()

    def close(self) -> None:
        """End all connections."""
        self.carries.set()
        for each in self._sockets:
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join()
        for each in self._sockets:
            each.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                pair = (self._sockets[0].accept()[0], socket.create_connection(("127.0.0.1", self._target)))
                self._sockets += pair
                for ends in (pair, pair[::-1]):
                    self._threads.append(threading.Thread(target=self._carry, args=ends))
                    self._threads[-1].start()

    def _carry(self, source: socket.socket, sink: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(1 << 16):
                self.carries.wait()
                sink.sendall(data)
        for each in (source, sink):
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)


def choose(page: Page, menu: str, item: str) -> None:
    """Choose from a menu."""
    page.get_by_role("menuitem", name=menu, exact=True).click()
    page.get_by_role("menuitem", name=item).first.click()


def test_a_page_that_is_opened_elsewhere_shows_all_lines_and_the_next_ones(
    lab: Lab, browser: Browser, place: str
) -> None:
    """What runs and what waits, what clear_output leaves and a display changes: as if the first page had stayed."""
    shown = "clear_output(wait=True)\nbar = display('10 %', display_id=True)"
    first_cell = f"from IPython.display import *\nprint('old')\n{shown}"
    path = write(
        lab, f"{place}/closed.ipynb", first_cell, LINES.format(file="closed.end"), "bar.update('100 %')\n6 * 7"
    )
    first = opened(browser, lab, f"{place}/closed.ipynb")
    run_all(first)
    until(first, 1, "line 3")
    first.context.close()

    second = opened(browser, lab, f"{place}/closed.ipynb")
    until(second, 1, "line 10")
    until(second, 1, f"line {text(second, 1).count('line') + 1}")
    waiting = prompts(second)
    picture(second, "outputs_reopened")
    (lab.work / place / "closed.end").touch()
    until(second, 2, "42")
    until(second, 0, "100 %")
    second.locator(".jp-CodeCell .jp-InputPrompt", has_text="[3]:").wait_for()  # comes after the text

    assert waiting == ["[1]:", "[*]:", "[*]:"]
    assert text(second, 0) == "'100 %'"
    assert are_complete(text(second, 1), 10)
    assert prompts(second) == ["[1]:", "[2]:", "[3]:"]
    second.keyboard.press("Control+s")
    second.locator("#jp-main-statusbar", has_text="Saving completed").wait_for()
    assert second.locator(".jp-Dialog").count() == 0  # the file has not "changed on disk"
    assert nbformat.read(path, 4).cells[1].outputs[0].text.strip() == text(second, 1)
    second.context.close()


@pytest.mark.long
def test_run_all_does_not_save_once_for_each_cell(lab: Lab, browser: Browser, place: str) -> None:
    """All cells should soon be in the file, and one save has all of them."""
    path = write(lab, f"{place}/many.ipynb", LINES.format(file="many.end"), *["print('queued')"] * 9)
    page = opened(browser, lab, f"{place}/many.ipynb")
    saves: list[str] = []
    page.on("request", lambda sent: saves.append(sent.url) if sent.method == "PUT" and "many" in sent.url else None)
    with page.expect_response(lambda told: told.request.method == "PUT" and "many.ipynb" in told.url):
        run_all(page)
    page.wait_for_timeout(2000)
    (lab.work / place / "many.end").touch()

    assert 1 <= len(saves) <= 2
    assert nbformat.read(path, 4).cells[0].outputs
    page.context.close()


def lines_in(path: Path) -> list[str]:
    """Return what the first cell has printed, by the notebook's file."""
    outputs = nbformat.read(path, 4).cells[0].outputs
    return outputs[0].text.splitlines() if outputs else []


def until_connected(lab: Lab, kernel: str, count: int) -> None:
    """Wait until a kernel has that many connections."""
    end, found = time.monotonic() + WAIT / 1000, 0
    while found != count:
        assert time.monotonic() < end, found
        time.sleep(0.2)
        found = clients.ask(lab.port, TOKEN, f"{BASE_URL}api/kernels/{kernel}", timeout_seconds=10)[1]["connections"]


@pytest.mark.long
def test_a_page_of_another_notebook_of_the_kernel_keeps_no_output_from_its_file(
    lab: Lab, browser: Browser, place: str
) -> None:
    """A page tells which notebook it has open, also where no cell of it has run."""
    closed, other = f"{place}/one.ipynb", f"{place}/other.ipynb"
    path = write(lab, closed, LINES.format(file="one.end"))
    write(lab, other, "print('not run')")
    first = opened(browser, lab, closed)
    run_all(first)
    until(first, 0, "line 3")
    sessions = f"{BASE_URL}api/sessions"
    known = clients.ask(lab.port, TOKEN, sessions, timeout_seconds=WAIT / 1000)[1]
    (kernel,) = (each["kernel"] for each in known if each["path"] == closed)
    wanted = {"path": other, "name": "other.ipynb", "type": "notebook", "kernel": kernel}
    clients.ask(lab.port, TOKEN, sessions, method="POST", body=wanted, timeout_seconds=WAIT / 1000)
    second = opened(browser, lab, other)
    until_connected(lab, kernel["id"], 2)
    first.context.close()
    seen = lines_in(path)
    second.wait_for_timeout(1500)
    (lab.work / place / "one.end").touch()

    end = time.monotonic() + WAIT / 1000
    while len(lines_in(path)) < len(seen) + 10:  # what was printed while only the other page was there
        assert time.monotonic() < end, lines_in(path)
        time.sleep(0.2)
    assert are_complete("\n".join(lines_in(path)), 10)
    second.context.close()


def test_after_a_reload_a_cell_can_be_interrupted_and_run_again(lab: Lab, browser: Browser, place: str) -> None:
    """An interrupt stops the queue, a restart ends what ran, and what is run then is shown once."""
    write(lab, f"{place}/reload.ipynb", LINES.format(file="reload.end"), "print('queued')")
    page = opened(browser, lab, f"{place}/reload.ipynb")
    run_all(page)
    until(page, 0, "line 3")
    page.reload()
    until(page, 0, "line 15")
    choose(page, "Kernel", "Interrupt Kernel")
    until(page, 0, "KeyboardInterrupt")
    page.locator(".jp-CodeCell .jp-InputPrompt", has_text="[1]:").wait_for()
    page.locator(".jp-CodeCell .jp-InputPrompt", has_text="[*]:").first.wait_for(state="detached")  # what had waited
    stopped = (prompts(page)[:2], text(page, 1))
    choose(page, "Run", "Run All Cells")
    until(page, 0, "line 3")
    page.reload()
    until(page, 0, "line 10")
    choose(page, "Kernel", "Restart Kernel…")
    page.locator(".jp-Dialog button", has_text="Restart").click()
    page.locator(".jp-CodeCell .jp-InputPrompt", has_text="[*]").first.wait_for(state="detached")
    page.locator("#jp-main-statusbar", has_text="| Idle").wait_for()
    page.locator(".jp-CodeCell").nth(1).click()
    page.keyboard.press("Shift+Enter")
    until(page, 1, "queued")
    page.locator(".jp-CodeCell .jp-InputPrompt", has_text="[1]:").wait_for()

    assert stopped == (["[1]:", "[ ]:"], "")
    assert text(page, 1) == "queued"
    page.context.close()


@pytest.mark.long
def test_a_question_is_asked_again_on_the_page_that_is_there(lab: Lab, browser: Browser, place: str) -> None:
    """`input()` of a cell whose page has gone is answered elsewhere, also the second one."""
    write(lab, f"{place}/question.ipynb", "print('go')\nfor _ in range(2):\n    print('hello', input('name?'))")
    page = opened(browser, lab, f"{place}/question.ipynb")
    run_all(page)
    page.locator(".jp-Stdin-input").wait_for()
    page.context.close()

    page = opened(browser, lab, f"{place}/question.ipynb")
    for name in ("ann", "bob"):
        page.locator(".jp-OutputArea-stdin-item:not(.jp-OutputArea-stdin-hiding) .jp-Stdin-input").fill(name)
        picture(page, "outputs_question")
        page.keyboard.press("Enter")
        until(page, 0, f"hello {name}")
    page.locator(".jp-CodeCell .jp-InputPrompt", has_text="[1]:").wait_for()
    page.locator(".jp-Stdin-input").wait_for(state="detached")

    assert text(page).split("\n") == ["go", "name? ann", "hello ann", "name? bob", "hello bob"]
    page.context.close()


@pytest.mark.long
def test_a_page_whose_network_stood_still_misses_no_line(lab: Lab, browser: Browser, place: str) -> None:
    """As a laptop that slept with the tab open: no line is missing or twice, and saving asks nothing about the file."""
    write(lab, f"{place}/asleep.ipynb", LINES.format(file="asleep.end"), "print('queued')")
    network = Network(lab.port)
    page = opened(browser, lab, f"{place}/asleep.ipynb", network.port)
    try:
        run_all(page)
        until(page, 0, "line 3")
        network.carries.clear()
        time.sleep(13)  # the server notices after 10 to 13
        network.carries.set()
        until(page, 0, "line 110")
        (lab.work / place / "asleep.end").touch()
        until(page, 1, "queued")
        page.wait_for_timeout(2000)  # for the reply, if there is one
        shown = (are_complete(text(page, 0), 110), text(page, 1), prompts(page)[:2])
        page.keyboard.press("Control+s")
        page.locator("#jp-main-statusbar", has_text="Saving completed").wait_for()

        assert shown == (True, "queued", ["[1]:", "[2]:"])
        assert page.locator(".jp-Dialog", has_text="changed on disk").count() == 0
    finally:
        page.context.close()
        network.close()


@pytest.mark.long
def test_a_long_cell_that_ends_on_a_hidden_page_is_notified(lab: Lab, browser: Browser) -> None:
    """Once its setting is on: with the notebook, whether it failed and how long it took; short cells are not.

    Only that the page is hidden is simulated, because Chromium without a display shows every page.
    """
    long = "import time; time.sleep(1.3)"
    write(lab, "long.ipynb", long, "6 * 7", f"{long}; 1 / 0")
    page = opened(browser, lab, "long.ipynb")
    page.context.grant_permissions(["notifications"])
    page.evaluate(WATCHED)
    run_all(page)
    until(page, 2, "ZeroDivisionError")

    page.get_by_role("menuitem", name="Settings", exact=True).click()
    page.get_by_role("menuitem", name="Settings Editor").first.click()
    page.locator(".jp-PluginList-entry", has_text="Notifications of cells").click()
    with page.expect_response(lambda told: "api/settings" in told.url and told.request.method == "PUT"):
        page.locator("input[id$=afterSeconds]").fill("1")
    page.locator(".lm-TabBar-tabLabel", has_text="long.ipynb").first.click()
    run_all(page)
    page.locator(".jp-InputPrompt", has_text="[6]").wait_for()
    assert page.evaluate("shown") == []
    page.evaluate("away = true")
    run_all(page)
    page.wait_for_function("shown.length == 2")

    assert [each.replace("\u00a0", " ") for each in page.evaluate("shown")] == [
        "long.ipynb: Cell [7] finished after 1 s",
        "long.ipynb: Cell [9] failed after 1 s",
    ]
    page.context.close()
