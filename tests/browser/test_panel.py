"""The GPU panel as a user sees it: in JupyterLab, and as a page of its own, on a simulated host that changes."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from axe_playwright_python.sync_playwright import Axe
from kernel_hosts import simulated_host
from panel_labs import (
    WAIT,
    Lab,
    card,
    contrast,
    numbers,
    open_page,
    open_panel,
    open_sidebar,
    row,
    value,
)
from test_lab import picture

from rocmlab.devices import Device, sample
from rocmlab.kernels.leases import Holder
from rocmlab.simulation import GpuUse

if TYPE_CHECKING:
    from playwright.sync_api import ConsoleMessage, Page, Route

pytestmark = pytest.mark.browser
REACTION = 10_000  # milliseconds; it is far less on a machine that is not busy
GIB = 1 << 30
NAME = "each => each.getAttribute('aria-label') || each.textContent"
SLOW_START = re.compile(r"^Plugin \S+ .*(took [\d.]+ms|is taking too long) to activate\.$")
WCAG = ["wcag2a", "wcag2aa", "wcag21aa", "wcag22aa"]


@pytest.fixture
def lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Lab]:
    """A running JupyterLab with the panel."""
    with simulated_host(tmp_path, monkeypatch) as host, Lab(host, tmp_path).running() as lab:
        yield lab


@pytest.fixture
def complaints(page: Page) -> list[str]:
    """What the page writes to the console besides information; filled while the test runs.

    JupyterLab also warns of each plugin that takes long to start, which says how busy this machine is.
    """
    found: list[str] = []

    def note(message: ConsoleMessage) -> None:
        if message.type in ("error", "warning") and not SLOW_START.search(message.text):
            found.append(message.text)

    page.on("console", note)
    page.on("pageerror", lambda error: found.append(str(error)))
    return found


def test_the_panel_shows_what_the_tree_has(lab: Lab, page: Page, complaints: list[str]) -> None:
    """Every number is that of the files of its device, in words a screen reader has too, and marked as SIMULATED."""
    lab.use(GpuUse(pid=os.getpid(), gpu=1, vram_bytes=7 * GIB, cu_occupancy=48))
    open_panel(page, lab)
    page.wait_for_selector(f".rocmlab-Table >> text=PID {os.getpid()}", timeout=WAIT)

    assert page.locator(".rocmlab-Banner").inner_text().startswith("SIMULATED")
    for device in lab.host.devices:
        truth = sample(device, lab.root)
        assert card(page, device).locator("h3").inner_text() == f"GPU {device.index}"
        assert numbers(value(page, device, "busy")) == [truth.busy_percent]
        used, total = (truth.vram_used_bytes or 0) / GIB, (truth.vram_total_bytes or 0) / GIB
        assert numbers(value(page, device, "memory")) == pytest.approx([used, total], abs=0.051)
        power = [truth.power_watts or 0, truth.power_cap_watts or 0]
        assert numbers(value(page, device, "power")) == pytest.approx(power, abs=0.51)
        assert numbers(value(page, device, "temperature")) == pytest.approx([truth.junction_celsius], abs=0.51)
        plot = card(page, device).locator(".rocmlab-mod-busy [role=img]")
        assert plot.get_attribute("aria-label").startswith(f"Busy of GPU {device.index}: now ")
        assert card(page, device).locator("canvas").count() == 4
    cells = page.locator(".rocmlab-Table tbody tr td").all_inner_texts()
    assert [cell.replace("\xa0", " ") for cell in cells[:3]] == ["GPU 1", "7.0 GiB", "50 %"]
    assert page.locator(".rocmlab-Table th[scope=col]").count() == 7
    assert complaints == []


def test_it_can_be_used_without_seeing_it(lab: Lab, page: Page) -> None:
    """By axe-core's rules for WCAG 2.2 AA (names, roles, contrast) nothing is wrong: tab, sidebar, and page alone."""
    lab.use(GpuUse(pid=os.getpid(), gpu=1, vram_bytes=7 * GIB, cu_occupancy=48))
    for opened, scheme in ((open_panel, "light"), (open_page, "light"), (open_page, "dark")):
        page.emulate_media(color_scheme=scheme)
        opened(page, lab)
        page.wait_for_selector(f".rocmlab-Table >> text=PID {os.getpid()}", timeout=WAIT)
        if opened is open_panel:
            open_sidebar(page).get_by_text(re.compile(r"^7\.\d of 24\.0\sGiB$")).wait_for(timeout=WAIT)

        found = Axe().run(page, context=".rocmlab-Panel", options={"runOnly": WCAG})

        assert found.response["passes"]
        assert found.response["violations"] == []


def test_every_control_is_reached_by_the_keyboard(lab: Lab, page: Page) -> None:
    """The tab key goes through all buttons and links, in the order in which they are read.

    A kernel that starts, and one that waits for a GPU, show this instead of that they are idle.
    """
    lab.unused_session("train.ipynb")
    lease = lab.host.leases.take(lab.host.devices[1:], Holder.here("other.ipynb"))
    assert lease
    lab.unused_session("waits.ipynb")
    open_page(page, lab)
    starting = row(page, "train.ipynb").filter(has_text=re.compile(r"starting for \d+\s(s|min)"))
    starting.wait_for(timeout=WAIT)
    waits = row(page, "waits.ipynb").filter(has_text="waits for a GPU, 1st of 1")
    waits.wait_for(timeout=WAIT)
    page.locator(".rocmlab-Idle").get_by_text("train.ipynb has been starting for").wait_for(timeout=WAIT)
    picture(page, "panel_waits")
    assert waits.get_by_role("button", name="Interrupt").count() == 0
    controls = page.locator(".rocmlab-Panel :is(button:enabled, a[href], select, input, summary):visible")
    expected = [control.evaluate(NAME) for control in controls.all()]

    reached = []
    for _ in expected:
        page.keyboard.press("Tab")
        reached.append(page.evaluate(f"({NAME})(document.activeElement)"))

    assert any("train.ipynb" in name for name in expected)
    assert reached == expected
    lease.release()
    row(page, "waits.ipynb").filter(has_text="GPU 1").wait_for(timeout=WAIT)  # the server restarted it with a GPU


def rewrite(file: Path, name: str, number: int | None) -> None:
    """Replace one number of a file of the KFD topology."""
    file.write_text(re.sub(rf"(?m)^{name} .*$", f"{name} {number}", file.read_text()))


def details(page: Page, device: Device) -> dict[str, str]:
    """Open the details of a card, and return what they say."""
    card(page, device).locator("summary").click()
    facts = card(page, device).locator("dl > div")
    facts.first.wait_for(timeout=WAIT)
    lines = (fact.replace("\xa0", " ").partition("\n") for fact in facts.all_inner_texts())
    return {name: text.strip() for name, _, text in lines}


@pytest.mark.long
@pytest.mark.parametrize("pool", ["gtt", "vram"])
def test_an_apu_shows_where_frameworks_allocate_and_a_target_whether_rocm_supports_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, page: Page, pool: str
) -> None:
    """The memory that counts is the pool of `rocmlab devices`; a target without support is marked."""
    with simulated_host(tmp_path, monkeypatch) as host:
        lab = Lab(host, tmp_path, products=("rx7900xtx", "strix-halo"))
        if pool == "vram":  # as before Linux 6.10, on an older processor
            apu = host.devices[1]
            node = lab.root / f"sys/devices/virtual/kfd/kfd/topology/nodes/{apu.kfd_node}"
            rewrite(node / "properties", "gfx_target_version", 90002)
            rewrite(node / "mem_banks/0/properties", "size_in_bytes", apu.vram_bytes)
        radeon, apu = host.devices
        expected = ("gfx902", "unsupported") if pool == "vram" else ("gfx1151", "works")
        assert (apu.gfx, apu.support, apu.pool) == (*expected, pool)
        with lab.running():
            open_page(page, lab)
            read = card(page, apu).locator(".rocmlab-mod-memory .rocmlab-Chart-value")
            read.filter(has_text=re.compile(r"^\d")).wait_for(timeout=WAIT)
            title = card(page, apu).locator(".rocmlab-mod-memory").inner_text()
            shown, other = details(page, apu), details(page, radeon)
            chips = card(page, apu).locator(".rocmlab-mod-warn").all_inner_texts()
            total = value(page, apu, "memory").partition(" of ")[2]

    assert title.split()[0] == pool.upper()
    assert total == f"{(apu.pool_bytes or 0) / GIB:.1f} GiB"
    assert shown["Frameworks allocate from"] == f"{pool.upper()}, at most {total}"
    assert "hipMalloc is not counted" in shown["GTT in use"]
    assert "VRAM in use" in shown
    supported = {"gtt": "supported", "vram": "unsupported: ROCm's usual packages have no kernels for it"}
    assert shown["ROCm on this target"] == supported[pool]
    assert chips == ["unsupported"] * (pool == "vram")
    assert other["ROCm on this target"] == "supported"
    assert not {"Frameworks allocate from", "GTT in use", "VRAM in use"} & set(other)


def test_each_change_of_a_device_appears_by_itself(lab: Lab, page: Page) -> None:
    """From a file's new content to the number on the screen, five times, without a click or a new page."""
    open_panel(page, lab)
    device = lab.host.devices[0]
    shown = card(page, device).locator(".rocmlab-mod-busy .rocmlab-Chart-value")
    file = lab.root / f"sys/bus/pci/devices/{device.pci_address}/gpu_busy_percent"
    for percent in (11, 23, 35, 47, 59):
        file.write_text(f"{percent}\n")
        shown.filter(has_text=re.compile(rf"^{percent}\s%")).wait_for(timeout=REACTION)
        page.wait_for_timeout(170)  # so that not each change meets the sampler in the same moment


@pytest.mark.long
def test_a_notebook_is_shown_by_its_name_of_now_and_can_be_shut_down(
    lab: Lab, page: Page, complaints: list[str]
) -> None:
    """Its kernel's memory has its name, also after it was renamed; `Shut down` ends it and frees its lease."""
    lab.notebook("first.ipynb")
    page.goto(lab.url("lab/tree/first.ipynb"))
    page.wait_for_selector(".jp-Notebook-ExecutionIndicator[data-status=idle]", timeout=WAIT)
    pid = lab.kernel("first.ipynb")["pid"]
    assert lab.host.holders() == ["first.ipynb", None]
    lab.use(GpuUse(pid=pid, gpu=0, vram_bytes=9 * GIB, cu_occupancy=10))

    item = page.locator(".rocmlab-StatusItem-button")
    item.filter(has_text=re.compile(r"GPU 0\s+40\s%\s+9\.0/24\.0\sGiB")).wait_for(timeout=WAIT)
    page.locator(f".rocmlab-StatusItem-button[title*='this kernel, PID {pid}: 9.0']").wait_for(timeout=WAIT)
    picture(page, "panel_status_bar")
    item.click()
    row(page, "first.ipynb").filter(has_text="9.0").wait_for(timeout=WAIT)
    first = card(page, lab.host.devices[0])
    first.get_by_text("leased to first.ipynb").wait_for(timeout=WAIT)  # leases and processes come apart
    sidebar = open_sidebar(page)
    short = sidebar.get_by_role("article", name="GPU 0")
    short.get_by_role("button", name="Open first.ipynb").wait_for(timeout=WAIT)
    assert "idle for" in short.inner_text()
    picture(page, "panel_sidebar")

    tab = page.locator(".lm-DockPanel-tabBar .lm-TabBar-tab")
    tab.filter(has_text="first.ipynb").click()
    tab.filter(has_text="first.ipynb").click(button="right")
    page.get_by_role("menuitem", name=re.compile("^Rename")).first.click()
    page.locator(".jp-Dialog input").first.fill("renamed.ipynb")
    page.get_by_role("button", name=re.compile("^Rename")).click()
    tab.filter(has_text="GPUs").click()
    row(page, "renamed.ipynb").filter(has_text="9.0").wait_for(timeout=WAIT)
    assert row(page, "first.ipynb").count() == 0

    row(page, "renamed.ipynb").get_by_role("button", name="Shut down").click()
    page.locator(".jp-Dialog").get_by_text("That frees 9.0").wait_for(timeout=WAIT)
    page.locator(".jp-Dialog").get_by_role("button", name="Shut down").click()
    lab.use_no_more(pid)
    row(page, "renamed.ipynb").wait_for(state="detached", timeout=WAIT)

    first.get_by_text("free: no lease").wait_for(timeout=WAIT)  # the kernel's row goes before its lease
    short.get_by_text("free: no lease").wait_for(timeout=WAIT)
    assert lab.host.holders() == [None, None]
    assert complaints == []


def test_the_page_of_its_own_is_usable_by_keyboard(lab: Lab, page: Page, complaints: list[str]) -> None:
    """Below a base URL: Tab reaches a kernel's buttons, Enter asks, Escape leaves it alone, and Enter twice ends it."""
    started = lab.session("idle.ipynb")
    lab.use(GpuUse(pid=started["pid"], gpu=0, vram_bytes=5 * GIB))
    open_page(page, lab)
    assert "token" not in page.url
    free = page.get_by_role("button", name="Shut down idle.ipynb to free 5.0")
    free.wait_for(timeout=WAIT)
    assert free.inner_text().replace("\xa0", " ") == "Shut down to free 5.0 GiB"
    costs = row(page, "idle.ipynb").locator(".rocmlab-Row-costs")
    costs.filter(has_text=re.compile(r"^\d+\xa0(s|min) of GPU time, (≥ )?[\d.]+\xa0(J|Wh)$")).wait_for(timeout=WAIT)
    assert page.locator(".rocmlab-Total").inner_text().startswith("Since ")

    focused = page.locator(":focus")
    for _ in range(12):
        page.keyboard.press("Tab")
        if focused.get_attribute("aria-label") == "Shut down idle.ipynb":
            break
    assert focused.get_attribute("aria-label") == "Shut down idle.ipynb"
    page.keyboard.press("Enter")
    dialog = page.get_by_role("dialog", name="Shut down idle.ipynb?")
    dialog.wait_for(timeout=WAIT)
    assert focused.inner_text() == "Cancel"
    page.keyboard.press("Escape")
    dialog.wait_for(state="detached", timeout=WAIT)
    assert focused.get_attribute("aria-label") == "Shut down idle.ipynb"
    assert lab.host.holders() == ["idle.ipynb", None]

    page.keyboard.press("Space")
    dialog.wait_for(timeout=WAIT)
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    lab.use_no_more(started["pid"])
    row(page, "idle.ipynb").wait_for(state="detached", timeout=WAIT)
    page.get_by_text("idle.ipynb was shut down.").wait_for(state="attached", timeout=WAIT)
    assert lab.host.holders() == [None, None]
    assert complaints == []


def test_the_doctors_findings_are_shown_with_a_fix_to_copy(lab: Lab, page: Page, complaints: list[str]) -> None:
    """Where a node is missing the panel says what, why, and the command that fixes it, which a button copies."""
    (lab.root / "dev/kfd").unlink()
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    open_page(page, lab)
    problem = page.locator(".rocmlab-Problem").filter(has_text="/dev/kfd").first
    problem.wait_for(timeout=WAIT)
    fix = problem.locator("code").inner_text()

    problem.get_by_role("button", name="Copy the fix").click()
    problem.get_by_text("Copied").wait_for(timeout=WAIT)

    assert fix
    assert page.evaluate("navigator.clipboard.readText()") == fix
    assert all(text.strip() for text in problem.locator("p").all_inner_texts())
    assert complaints == []


@pytest.mark.long
def test_a_kernel_without_a_gpu_is_called_cpu(lab: Lab, page: Page) -> None:
    """The status bar does not sample for it, and does not show another kernel's GPU."""
    streams: list[str] = []
    page.on("request", lambda request: streams.append(request.url) if "api/stream" in request.url else None)
    lab.notebook("plain.ipynb", "torch-cpu")
    page.goto(lab.url("lab/tree/plain.ipynb"))
    item = page.locator(".rocmlab-StatusItem-button")
    item.filter(has_text="CPU").wait_for(timeout=WAIT)

    assert item.inner_text() == "CPU"
    assert streams == []


@pytest.mark.long
def test_a_kernel_on_a_gpu_that_nothing_can_reserve_is_not_called_cpu(lab: Lab, page: Page) -> None:
    """As on Metal and WSL2, which a changed answer of the server imitates."""

    def shared(route: Route) -> None:
        answer = route.fetch()
        route.fulfill(response=answer, json=[{**row, "is_gpu_shared": True} for row in answer.json()])

    page.route(re.compile(r"rocmlab/api/kernels\b"), shared)
    lab.notebook("shared.ipynb", "torch-cpu")
    page.goto(lab.url("lab/tree/shared.ipynb"))
    item = page.locator(".rocmlab-StatusItem-button")
    item.filter(has_text="shared").wait_for(timeout=WAIT)

    assert item.inner_text() == "GPU (shared)"


def test_a_lost_connection_is_said_and_comes_back(lab: Lab, page: Page) -> None:
    """While the server is away the page reports it; afterwards it continues by itself."""
    open_page(page, lab)
    errors: list[str] = []
    page.on("pageerror", lambda error: errors.append(str(error)))

    lab.stop()
    page.get_by_text("connection lost, retrying…").first.wait_for(timeout=WAIT)
    lab.start()
    page.wait_for_selector(".rocmlab-Status[data-status=live]", timeout=WAIT)

    assert page.locator("[role=status]").inner_text() == "Connected again."
    assert errors == []


def test_nothing_is_asked_for_while_nobody_looks(lab: Lab, page: Page) -> None:
    """The panel's tab and the sidebar share a stream; it ends with the last of them that is covered or closed."""
    streams: list[str] = []
    page.on("request", lambda request: streams.append("opened") if "api/stream" in request.url else None)
    page.on("requestfailed", lambda request: streams.append("closed") if "api/stream" in request.url else None)
    open_panel(page, lab)
    sidebar = open_sidebar(page)
    page.keyboard.press("Control+Shift+l")  # a new launcher, which covers the tab
    page.locator(".jp-LauncherCard").first.wait_for(timeout=WAIT)
    device = lab.host.devices[0]
    (lab.root / f"sys/bus/pci/devices/{device.pci_address}/gpu_busy_percent").write_text("12\n")
    sidebar.get_by_role("article", name="GPU 0").get_by_text(re.compile(r"^12\s%$")).wait_for(timeout=WAIT)
    assert streams == ["opened"]

    page.locator(".jp-SideBar [data-id=rocmlab-sidebar]").click()
    sidebar.wait_for(state="hidden", timeout=WAIT)
    end = time.monotonic() + WAIT / 1000
    while len(streams) < 2 and time.monotonic() < end:
        page.wait_for_timeout(50)

    assert streams == ["opened", "closed"]


TEXTS = (
    ".rocmlab-Summary",
    ".rocmlab-Banner strong",
    ".rocmlab-Chart-title",
    ".rocmlab-mod-busy .rocmlab-Chart-value",
    ".rocmlab-mod-memory .rocmlab-Chart-value",
    ".rocmlab-mod-power .rocmlab-Chart-value",
    ".rocmlab-mod-temperature .rocmlab-Chart-value",
    ".rocmlab-Card-lease",
    ".rocmlab-Table thead th",
    ".rocmlab-Button",
)

SIDEBAR_TEXTS = (
    ".rocmlab-Meter-name",
    ".rocmlab-Meter-value",
    ".rocmlab-Compact-heat",
    ".rocmlab-Compact .rocmlab-None",
)


@pytest.mark.long
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_light_and_dark_can_be_read(lab: Lab, page: Page, scheme: str) -> None:
    """Every text has WCAG's contrast of 4.5, no width makes it scroll sideways, and a name is text and nothing else."""
    name = "train <img src=x>.ipynb"
    started = lab.session(name)
    with_a_long_command_line = GpuUse(pid=os.getpid(), gpu=1, vram_bytes=7 * GIB, cu_occupancy=8)
    lab.use(GpuUse(pid=started["pid"], gpu=0, vram_bytes=11 * GIB, cu_occupancy=40), with_a_long_command_line)
    page.emulate_media(color_scheme=scheme)
    open_page(page, lab)
    row(page, name).filter(has_text="11.0").wait_for(timeout=WAIT)
    assert page.locator("img").count() == 0

    for text in TEXTS:
        assert contrast(page, text) >= 4.5, text
    for width in (1280, 800, 300):
        page.set_viewport_size({"width": width, "height": 860})
        picture(page, f"panel_page_{scheme}_{width}")
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), width


@pytest.mark.long
def test_it_follows_the_theme_of_jupyterlab(lab: Lab, page: Page, complaints: list[str]) -> None:
    """The dark theme changes the panel's colours, those of the charts too, without a reload."""
    open_panel(page, lab)
    plot = card(page, lab.host.devices[0]).locator("canvas").first
    plot.wait_for(timeout=WAIT)
    picture(page, "panel_lab_light")
    sidebar = open_sidebar(page)
    picture(page, "panel_sidebar_light")
    for text in SIDEBAR_TEXTS:
        assert contrast(page, text) >= 4.5, text
    before = plot.evaluate("node => node.toDataURL()")
    page.get_by_role("menuitem", name="Settings", exact=True).click()
    page.get_by_text("Theme", exact=True).hover()
    page.get_by_text("JupyterLab Dark", exact=True).click()
    page.wait_for_selector("body[data-jp-theme-light=false]", state="attached", timeout=WAIT)
    page.wait_for_timeout(1500)  # a snapshot later
    picture(page, "panel_sidebar_dark")
    for text in SIDEBAR_TEXTS:
        assert contrast(page, text) >= 4.5, text
    page.locator(".jp-SideBar [data-id=rocmlab-sidebar]").click()
    sidebar.wait_for(state="hidden", timeout=WAIT)
    picture(page, "panel_lab_dark")

    assert plot.evaluate("node => node.toDataURL()") != before
    for text in TEXTS[:-1]:
        assert contrast(page, text) >= 4.5, text
    assert complaints == []
