"""The panel's section about a cluster, as a user sees it: two simulated machines, then one."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from cluster_pairs import WAIT_SECONDS, Pair, pair
from kernel_hosts import simulated_host
from panel_labs import Lab, contrast, open_page, open_panel
from test_lab import picture

from rocmlab.devices import discover
from rocmlab.kernels.leases import Holder, Leases

if TYPE_CHECKING:
    from playwright.sync_api import Locator, Page

pytestmark = [pytest.mark.browser, pytest.mark.cluster, pytest.mark.long("a cluster of containers")]
WAIT = WAIT_SECONDS * 1000  # milliseconds


@pytest.fixture
def both() -> Iterator[Pair]:
    """A head and a worker with shares of their own."""
    with pair(is_share_common=False) as found:
        yield found


@pytest.fixture
def lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, both: Pair) -> Iterator[Lab]:
    """JupyterLab on the head, with the GPUs of the head's simulated host."""
    with simulated_host(tmp_path, monkeypatch) as host:
        lab = Lab(host, tmp_path)
        for name, value in both.head.environment.items():
            if name.startswith(("CLUSTER", "RAY_", "ROCMLAB_")):
                monkeypatch.setenv(name, value)
        with lab.running():
            yield lab


def wait_for_devices(*nodes: Locator) -> None:
    """Wait until the GPUs of these nodes are shown: a node is listed before it has answered what it has."""
    for node in nodes:
        node.locator("tbody tr").nth(1).wait_for(timeout=WAIT)


def test_the_cluster_is_shown_until_its_worker_is_lost(
    lab: Lab, page: Page, both: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two nodes with their GPUs and leases, in both themes; the lost one is named, and then the lost head."""
    worker = both.worker.environment
    monkeypatch.setenv("ROCMLAB_ROOT", worker["ROCMLAB_ROOT"])
    device = next(each for each in discover() if each.index == 1)
    lease = Leases.of_host(worker, Path(worker["ROCMLAB_ROOT"])).take([device], Holder.here("train.ipynb"))
    assert lease is not None
    page.set_viewport_size({"width": 1280, "height": 1500})
    page.emulate_media(color_scheme="light")
    open_page(page, lab)
    nodes = page.locator(".rocmlab-Node")
    section = page.locator(".rocmlab-Cluster")
    section.get_by_text("2 nodes · 4 GPUs").wait_for(timeout=WAIT)

    assert nodes.count() == 2
    head, other = nodes.nth(0), nodes.nth(1)
    wait_for_devices(head, other)
    assert both.head.address in head.inner_text()
    assert head.locator(".rocmlab-Chip:visible").all_inner_texts() == ["head", "this lab", "SIMULATED"]
    assert other.locator(".rocmlab-Chip:visible").all_inner_texts() == ["SIMULATED"]
    rows = other.locator("tbody tr").all_inner_texts()
    assert [row.split("\t")[0] for row in rows] == ["GPU 0 (gfx1100)", "GPU 1 (gfx1100)"]
    assert rows[0].endswith("free: no lease")
    assert rows[1].endswith("train.ipynb")
    for scheme in ("light", "dark"):
        page.emulate_media(color_scheme=scheme)
        assert contrast(page, ".rocmlab-Node-detail") >= 4.5
        assert contrast(page, ".rocmlab-Node .rocmlab-Chip.rocmlab-mod-warn:not([hidden])") >= 4.5
        section.scroll_into_view_if_needed()
        picture(page, f"panel_cluster_{scheme}")
    page.set_viewport_size({"width": 420, "height": 1500})
    assert section.evaluate("node => node.scrollWidth <= node.clientWidth")
    picture(page, "panel_cluster_narrow")
    lease.release()

    page.set_viewport_size({"width": 1280, "height": 1500})
    both.worker.die()
    section.get_by_text("1 node · 1 lost · 2 GPUs").wait_for(timeout=WAIT)
    assert other.locator(".rocmlab-Chip:visible").all_inner_texts()[0] == "lost"
    assert "Its jobs run elsewhere" in other.inner_text()
    both.head.die()
    section.get_by_text(re.compile("the head of the cluster at .* is lost")).first.wait_for(timeout=WAIT)
    section.get_by_text(re.compile("Last known state, .* ago")).wait_for(timeout=WAIT)
    picture(page, "panel_cluster_lost")


def test_without_a_cluster_nothing_is_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, page: Page) -> None:
    """No section, and no question that the browser would complain about."""
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    with simulated_host(tmp_path, monkeypatch) as host, Lab(host, tmp_path).running() as lab:
        open_panel(page, lab)
        page.wait_for_timeout(1000)
        assert page.locator(".rocmlab-Cluster").is_hidden()

    assert not [url for url in asked if "api/cluster" in url]
