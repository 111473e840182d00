"""JupyterLab with the GPU panel on a simulated host, and what looks at the panel in a page."""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import clients
import nbformat
import websocket
from clones import free_port
from kernel_hosts import Host

from rocmlab.devices import Device
from rocmlab.lab import install
from rocmlab.simulation import GpuUse, Live

if TYPE_CHECKING:
    from playwright.sync_api import Locator, Page

TOKEN = "p" * 64
BASE_URL = "/user/ann/"
WAIT = 60_000  # milliseconds
IDLE_SECONDS = 4


class Lab:
    """JupyterLab on a simulated host whose GPUs and processes the test changes."""

    def __init__(self, host: Host, folder: Path, products: Sequence[str] = ()) -> None:
        self.host = host
        self.root = folder / "host"
        self.work = folder / "work"
        self.uses: list[GpuUse] = []
        self.live = Live(self.root, gpus=2, busy="0:40,1:80", processes=self.uses, products=products)
        self.seconds = 0.0
        host.offer()
        install.main(["--prefix", str(host.prefix)])
        self.work.mkdir()
        self.port = free_port()
        self.log = folder / "lab.log"
        self.process: subprocess.Popen[bytes] | None = None

    @contextlib.contextmanager
    def running(self) -> Iterator[Lab]:
        """Have the server run."""
        try:
            self.start()
            yield self
        finally:
            self.stop()

    def start(self) -> None:
        """Start the server, and wait until it answers."""
        prefix = self.host.prefix
        environment = {
            **os.environ,
            "JUPYTER_TOKEN": TOKEN,
            "JUPYTER_CONFIG_DIR": str(prefix / "etc/jupyter"),
            "IDLE_GPU_WARNING_SECONDS": str(IDLE_SECONDS),
        }
        command = [sys.executable, "-m", "jupyterlab", "--allow-root", "--ServerApp.ip=127.0.0.1"]
        command += [f"--ServerApp.port={self.port}", f"--ServerApp.root_dir={self.work}"]
        command += [f"--ServerApp.base_url={BASE_URL}"]
        command += [f"--LabApp.extra_labextensions_path={prefix / 'share/jupyter/labextensions'}"]
        with self.log.open("a") as log:
            self.process = subprocess.Popen(command, cwd=self.work, env=environment, stdout=log, stderr=log)
        end = time.monotonic() + WAIT / 1000
        while clients.ask(self.port, TOKEN, f"{BASE_URL}api/status")[0] != 200:
            assert self.process.poll() is None, self.log.read_text()
            assert time.monotonic() < end, self.log.read_text()
            time.sleep(0.2)

    def stop(self) -> None:
        """End the server and its kernels."""
        if self.process:
            self.process.terminate()
            try:
                self.process.wait(WAIT / 1000)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
                raise
        self.process = None

    def notebook(self, name: str, kernel: str = "torch") -> None:
        """Write a notebook for a kernel, by default one with a GPU."""
        notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell("1 + 1")])
        notebook.metadata.kernelspec = {"name": kernel, "display_name": "PyTorch", "language": "python"}
        nbformat.write(notebook, self.work / name)

    def unused_session(self, name: str) -> str:
        """Start a notebook's kernel over REST, which no client uses yet, and return its id."""
        self.notebook(name)
        wanted = {"path": name, "name": name, "type": "notebook", "kernel": {"name": "torch"}}
        path = f"{BASE_URL}api/sessions"
        status, answer = clients.ask(self.port, TOKEN, path, method="POST", body=wanted, timeout_seconds=WAIT / 1000)
        assert status == 201, status
        found: str = answer["kernel"]["id"]
        return found

    def session(self, name: str) -> dict:
        """Start a notebook's kernel as JupyterLab does, and return what the server tells of it."""
        channels = f"ws://127.0.0.1:{self.port}{BASE_URL}api/kernels/{self.unused_session(name)}/channels?token={TOKEN}"
        connection = websocket.create_connection(channels, timeout=WAIT / 1000)  # until then Jupyter does not ask it
        try:
            return self.kernel(name)
        finally:
            connection.close()

    def kernel(self, name: str) -> dict:
        """Return what the server tells of a notebook's kernel, when it has its process."""
        end = time.monotonic() + WAIT / 1000
        while time.monotonic() < end:
            for each in clients.ask(self.port, TOKEN, f"{BASE_URL}rocmlab/api/kernels", timeout_seconds=10)[1] or []:
                if each["notebook"] == name and each["pid"] and each["state"] == "idle":
                    found: dict = each
                    return found
            time.sleep(0.1)
        raise AssertionError(f"no kernel of {name}")

    def use(self, *uses: GpuUse) -> None:
        """Let these processes, and no others, be on the GPUs."""
        self.uses[:] = uses
        self.seconds += 1
        self.live.step(self.seconds)

    def use_no_more(self, pid: int) -> None:
        """Take a process away when it has ended, as its driver would."""
        end = time.monotonic() + WAIT / 1000
        while Path(f"/proc/{pid}").exists():
            assert time.monotonic() < end, f"{pid} lives"
            time.sleep(0.05)
        self.use(*(use for use in self.uses if use.pid != pid))

    def url(self, path: str) -> str:
        """Return an address of this server with the token."""
        return f"http://127.0.0.1:{self.port}{BASE_URL}{path}?token={TOKEN}"


def card(page: Page, device: Device) -> Locator:
    """Return what is shown of a device."""
    return page.locator(f".rocmlab-Card[data-device='{device.pci_address}']")


def value(page: Page, device: Device, metric: str) -> str:
    """Return a value as it is shown."""
    text = card(page, device).locator(f".rocmlab-mod-{metric} .rocmlab-Chart-value").inner_text()
    return text.replace("\xa0", " ")


def numbers(text: str) -> list[float]:
    """Return the numbers in a text."""
    return [float(word) for word in re.findall(r"\d+(?:\.\d+)?", text)]


def row(page: Page, name: str) -> Locator:
    """Return the table's row of a notebook."""
    return page.locator(".rocmlab-Table tbody tr").filter(has=page.locator(f"button:text-is('{name}')"))


def open_panel(page: Page, lab: Lab) -> None:
    """Open JupyterLab, and in it the panel from its tile in the launcher."""
    page.goto(lab.url("lab"))
    page.locator(".jp-LauncherCard[title^='What the GPUs do']").click(timeout=WAIT)
    page.wait_for_selector(".rocmlab-Status[data-status=live]", timeout=WAIT)


def open_sidebar(page: Page) -> Locator:
    """Open the compact view in JupyterLab's left sidebar, and return it when it shows the GPUs."""
    page.locator(".jp-SideBar [data-id=rocmlab-sidebar]").click(timeout=WAIT)
    sidebar = page.get_by_role("region", name="GPUs, in short")
    sidebar.locator(".rocmlab-Compact-device").first.wait_for(timeout=WAIT)
    return sidebar


def open_page(page: Page, lab: Lab) -> None:
    """Open the page of its own."""
    page.goto(lab.url("rocmlab/"))
    page.wait_for_selector(".rocmlab-Status[data-status=live]", timeout=WAIT)


def contrast(page: Page, selector: str) -> float:
    """Return the contrast of an element's text to what is behind it, as WCAG 2 counts it."""
    return page.locator(selector).first.evaluate(
        """node => {
          const rgb = text => text.match(/[\\d.]+/g).map(Number);
          let back = node;
          while ((rgb(getComputedStyle(back).backgroundColor)[3] ?? 1) === 0) back = back.parentElement;
          const behind = rgb(getComputedStyle(back).backgroundColor);
          const [r, g, b, a = 1] = rgb(getComputedStyle(node).color);
          const shown = [r, g, b].map((each, index) => each * a + behind[index] * (1 - a));
          const light = colour => colour.slice(0, 3).map(each => each / 255)
            .map(each => each <= 0.03928 ? each / 12.92 : ((each + 0.055) / 1.055) ** 2.4)
            .reduce((sum, each, index) => sum + each * [0.2126, 0.7152, 0.0722][index], 0);
          const [dark, bright] = [light(shown), light(behind)].sort((one, other) => one - other);
          return (bright + 0.05) / (dark + 0.05);
        }"""
    )
