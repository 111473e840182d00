"""Kernels that own their GPUs, as a user sees them: JupyterLab on a simulated host with two GPUs."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import clients
import nbformat
import pytest
from clones import free_port
from kernel_hosts import Host, simulated_host
from test_lab import picture, run_all

from rocmlab.lab import install

if TYPE_CHECKING:
    from playwright.sync_api import Page

pytestmark = pytest.mark.browser
TOKEN = "t" * 64
CELL = "import os\nprint('GPUs of this kernel:', os.environ['HIP_VISIBLE_DEVICES'])"
START_SECONDS = 120
STOP_SECONDS = 15
XTX = "AMD Radeon RX 7900 XTX"
PICTURES_LOADED = """() => {
  const cards = [...document.querySelector('.jp-Launcher-section').querySelectorAll('.jp-LauncherCard')];
  const loaded = image => image && image.complete && image.naturalWidth > 0;
  return cards.every(card => loaded(card.querySelector('.jp-LauncherCard-icon img')));
}"""


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Host]:
    """A simulated host with two GPUs and its kernels."""
    with simulated_host(tmp_path, monkeypatch) as found:
        found.offer()
        yield found


@pytest.fixture
def address(host: Host, tmp_path: Path) -> Iterator[str]:
    """A running JupyterLab with our configuration, which shows three notebooks."""
    install.main(["--prefix", str(host.prefix)])
    work = tmp_path / "work"
    work.mkdir()
    for name in ("first", "second", "third"):
        notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(CELL)])
        notebook.metadata.kernelspec = {"name": "torch", "display_name": "PyTorch", "language": "python"}
        nbformat.write(notebook, work / f"{name}.ipynb")
    port = free_port()
    environment = {**os.environ, "JUPYTER_TOKEN": TOKEN, "JUPYTER_CONFIG_DIR": str(host.prefix / "etc/jupyter")}
    command = [sys.executable, "-m", "jupyterlab", "--allow-root", "--ServerApp.ip=127.0.0.1"]
    with open(tmp_path / "lab.log", "w") as log:
        lab = subprocess.Popen(
            [*command, f"--ServerApp.port={port}", f"--ServerApp.root_dir={work}"],
            cwd=work,
            env=environment,
            stdout=log,
            stderr=subprocess.STDOUT,
        )
    try:
        begin = time.monotonic()
        while not clients.answers(port, TOKEN):
            assert lab.poll() is None, (tmp_path / "lab.log").read_text()
            assert time.monotonic() - begin < START_SECONDS
            time.sleep(0.2)
        yield f"http://127.0.0.1:{port}/lab"
    finally:
        clients.ask(port, TOKEN, "/api/shutdown", method="POST")
        try:
            lab.wait(STOP_SECONDS)
        finally:
            lab.kill()
            lab.wait()


def output(page: Page, address: str, name: str) -> str:
    """Open a notebook in a workspace of its own, run it, and return what its cell says."""
    run_all(page, f"{address}/workspaces/{name}/tree/{name}.ipynb?token={TOKEN}")
    found = page.locator(".jp-CodeCell .jp-OutputArea-output").first
    found.wait_for(timeout=60_000)
    return found.inner_text()


def test_the_launcher_offers_gpus_and_the_third_notebook_hears_who_has_them(
    host: Host, address: str, page: Page
) -> None:
    """Two notebooks get a GPU each; the third is informed which notebooks these are, and what can be done."""
    page.goto(f"{address}?token={TOKEN}")
    words = ("one free GPU, SIMULATED", "all 2 GPUs, SIMULATED", "CPU")
    named = tuple(f"GPU {number}: {XTX}, SIMULATED" for number in range(2))
    ours = {f"{title} ({text})" for title in ("TensorFlow", "PyTorch") for text in (*words, *named)}
    labels = page.locator(".jp-Launcher-section").first.locator(".jp-LauncherCard-label")
    cards = labels.filter(has_text=re.compile(r"^(TensorFlow|PyTorch)\b"))
    cards.nth(len(ours) - 1).wait_for(timeout=60_000)  # they are not drawn at once
    assert set(cards.all_inner_texts()) == ours
    page.wait_for_function(PICTURES_LOADED, timeout=60_000)
    picture(page, "kernels_launcher")

    assert output(page, address, "first").strip() == "GPUs of this kernel: 0"
    assert output(page, address, "second").strip() == "GPUs of this kernel: 1"
    picture(page, "kernels_second")
    refused = output(page, address, "third")
    picture(page, "kernels_refused")

    assert "no GPU is free" in refused
    assert re.search(r"GPU 0: .*\n  leased to first\.ipynb \(process \d+", refused)
    assert re.search(r"GPU 1: .*\n  leased to second\.ipynb \(process \d+", refused)
    assert "Change Kernel… > PyTorch (CPU)" in refused
    assert host.holders() == ["first.ipynb", "second.ipynb"]
