"""What the panel's page makes of answers that are hard to get from a real server: a test makes them up."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

import pytest

from rocmlab.lab.server.page import FOLDER

if TYPE_CHECKING:
    from playwright.sync_api import Locator, Page, Route

pytestmark = pytest.mark.browser
WAIT = 60_000  # milliseconds
BASE = "http://lab.test/rocmlab/"
FIRST, SECOND = "0000:03:00.0", "0000:83:00.0"
# Instead of the connection to the server: what a test tells.
STREAM = """
window.EventSource = class extends EventTarget {
  constructor() {
    super();
    window.tell = (name, data) => this.dispatchEvent(new MessageEvent(name, { data: JSON.stringify(data) }));
    setTimeout(() => this.dispatchEvent(new Event('open')));
  }
  close() {}
};
"""


def device(name: str, index: int) -> dict[str, Any]:
    """Return a GPU."""
    return {
        "id": name,
        "backend": "rocm",
        "index": index,
        "name": "AMD Radeon",
        "is_usable": True,
        "pci_address": name,
        "support": None,
        "pool": None,
        "pool_bytes": None,
        "vram_bytes": 1 << 34,
    }


def sample(busy_percent: float) -> dict[str, Any]:
    """Return what a GPU reports; everything else is unknown."""
    names = ("vram_used_bytes", "vram_total_bytes", "power_watts", "power_cap_watts", "junction_celsius")
    others = ("edge_celsius", "junction_critical_celsius", "throttle_reasons", "link_width", "ecc_uncorrected")
    return {**dict.fromkeys((*names, *others)), "is_asleep": False, "busy_percent": busy_percent}


def snapshot(time_seconds: float, busy_percent: float = 0, *processes: dict[str, Any]) -> dict[str, Any]:
    """Return what is sent each second."""
    samples = {FIRST: sample(busy_percent), SECOND: sample(busy_percent)}
    return {"time_seconds": time_seconds, "samples": samples, "energy_joules": {}, "processes": list(processes)}


def lease(name: str, **more: Any) -> dict[str, Any]:
    """Return a lease of another user's kernel."""
    unknown = dict.fromkeys(("host", "started", "kernel_id", "local_pid"))
    return {"device": name, "owner": "uid 1002 (bob)", **unknown, **more}


def state(leases: list[dict[str, Any]] | None) -> dict[str, Any]:
    """Return what is sent besides."""
    return {"leases": leases, "kernels": [], "problems": [], "idle_holders": [], "costs": []}


def opened(page: Page, nodes: list[dict[str, Any]] | None = None) -> None:
    """Open the page of a lab with two GPUs, in a cluster if nodes are given."""
    answers = {
        "api/devices": {
            "simulated": False,
            "is_in_cluster": nodes is not None,
            "devices": [device(FIRST, 0), device(SECOND, 1)],
            "problems": [],
        },
        "api/history": {"times": {}, "series": {}},
        "api/cluster": {"state": "alive", "age_seconds": 0, "nodes": nodes, "problem": None},
    }

    def answer(route: Route) -> None:
        path = route.request.url.partition("?")[0].removeprefix(BASE)
        if path in answers:
            route.fulfill(body=json.dumps(answers[path]), content_type="application/json")
        else:
            route.fulfill(path=FOLDER / (path.removeprefix("static/") or "index.html"))

    page.route(re.compile(re.escape(BASE)), answer)
    page.add_init_script(STREAM)
    page.goto(BASE)
    card(page, SECOND).wait_for(timeout=WAIT)


def tell(page: Page, name: str, data: dict[str, Any]) -> None:
    """Send an event to the page."""
    page.evaluate("([name, data]) => window.tell(name, data)", [name, data])


def card(page: Page, name: str) -> Locator:
    """Return what is shown of a GPU."""
    return page.locator(f".rocmlab-Card[data-device='{name}']")


def test_a_lease_of_another_container_is_shown_whatever_number_its_process_has(page: Page) -> None:
    """Its number, as that container counts, is here one of a process that has nothing to do with it."""
    own = {"device": FIRST, "pid": 34567, "local_pid": 107, "name": "python", "owner": None, "is_estimated": False}
    process = {**own, "command": "python", "vram_bytes": 1 << 30, "compute_units_percent": None}
    mine = lease(FIRST, notebook="mine.ipynb", pid=107, local_pid=107)
    opened(page)
    tell(page, "snapshot", snapshot(10_000, 0, process))

    for pid in (108, 107, 34567):
        theirs = lease(SECOND, notebook=f"theirs-{pid}.ipynb", pid=pid)
        tell(page, "state", state([mine, theirs]))

        rows = page.locator(".rocmlab-Table tbody tr")
        rows.filter(has_text=f"theirs-{pid}.ipynb").wait_for(timeout=WAIT)
        assert "GPU 1" in rows.filter(has_text=f"theirs-{pid}.ipynb").inner_text()
        assert rows.count() == 2  # the own lease is that of the process
        assert f"leased to theirs-{pid}.ipynb" in card(page, SECOND).inner_text()


def test_leases_that_are_unknown_are_not_free(page: Page) -> None:
    """No GPU is called free as long as no one knows; one is when that is known."""
    opened(page)
    tell(page, "snapshot", snapshot(10_000))
    tell(page, "state", state([]))
    card(page, FIRST).get_by_text("free: no lease").wait_for(timeout=WAIT)

    tell(page, "state", state(None))

    card(page, FIRST).get_by_text("free: no lease").wait_for(state="hidden", timeout=WAIT)
    assert page.get_by_text("free: no lease").locator("visible=true").count() == 0


def test_a_node_whose_leases_are_unknown_says_so(page: Page) -> None:
    """The cluster's column of users has it; a GPU of a node that knows is free."""
    seen = {"name": "AMD Radeon", "gfx": "gfx1100", "is_usable": True, "is_asleep": False, "lease": None}
    read = {"why_not": None, "busy_percent": 0, "memory_used_bytes": None, "memory_total_bytes": None}
    devices = [
        {**seen, **read, "id": FIRST, "index": 0, "is_lease_unknown": True},
        {**seen, **read, "id": SECOND, "index": 1, "is_lease_unknown": False},
    ]
    named = {"id": "a", "hostname": "a", "address": "10.0.0.1", "rocm": None, "cpus": 8, "gpus": 2, "problem": None}
    facts = {"is_alive": True, "is_head": True, "is_here": True, "simulated": False}
    opened(page, [{**named, **facts, "devices": devices, "gpus_given": 0, "jobs_without_gpu": 0}])
    tell(page, "snapshot", snapshot(10_000))

    rows = page.locator(".rocmlab-Node tbody tr")
    rows.nth(1).wait_for(timeout=WAIT)

    assert [text.split("\t")[-1] for text in rows.all_inner_texts()] == [
        "unknown: its leases cannot be read",
        "free: no lease",
    ]


def test_a_clock_that_is_set_back_begins_the_charts_anew(page: Page) -> None:
    """Points of before would be in the future; a point that comes twice or a little late is omitted as before."""
    page.clock.install()
    opened(page)
    for number, busy in ((10_000, 50), (10_001, 50), (9_999, 3)):
        tell(page, "snapshot", snapshot(number, busy))
    plot = card(page, FIRST).locator(".rocmlab-mod-busy [role=img]")

    def told(time_seconds: float, busy_percent: float) -> str:
        page.clock.fast_forward(30_000)  # what a screen reader is told is not written again sooner
        tell(page, "snapshot", snapshot(time_seconds, busy_percent))
        return re.sub(r"\s", " ", plot.get_attribute("aria-label") or "")

    assert "between 50 % and 50 %" in told(10_002, 50)

    tell(page, "snapshot", snapshot(6_400, 90))

    assert "between 80 % and 90 %" in told(6_401, 80)
