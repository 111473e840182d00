"""The recorder in a real jupyter_server, with pages of several notebooks that share a kernel."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import nbformat
import pytest
import websocket
from kernel_hosts import Host
from panel_servers import Page, Server, wait

pytestmark = pytest.mark.slow


@pytest.fixture
def server(host: Host) -> Iterator[Server]:
    """A server with our extension."""
    host.offer()
    found = Server(host)
    try:
        yield found.up()
    finally:
        found.stop()


def printed(server: Server, name: str) -> str:
    """Return what the file of a notebook has of its cell."""
    (cell,) = nbformat.read(server.folder / name, 4).cells
    return "".join(each.get("text", "") for each in cell.outputs)


def answers(page: Page) -> bool:
    """Read what a page has got, and so answer the server's question whether it is still there."""
    page.channel.settimeout(0.1)
    with contextlib.suppress(websocket.WebSocketTimeoutException):
        while True:
            page.channel.recv()
    return True


def test_a_closed_notebook_is_written_while_a_page_has_another_one_of_its_kernel_open(server: Server) -> None:
    """That page has run nothing, and tells which notebook it has."""
    for name in ("closed.ipynb", "open.ipynb"):
        cells = [nbformat.v4.new_code_cell("source", id=f"of-{name.removesuffix('.ipynb')}")]
        nbformat.write(nbformat.v4.new_notebook(cells=cells), server.folder / name)
    kernel = server.notebook("closed.ipynb", "torch")["kernel"]["id"]
    wanted = {"path": "open.ipynb", "name": "open.ipynb", "type": "notebook", "kernel": {"id": kernel}}
    notebook = server.json("api/sessions", "POST", wanted, status=201)["id"]
    closed, opened = Page(server, kernel), Page(server, kernel)
    server.json(f"rocmlab/api/outputs/{kernel}?session={opened.session}&notebook={notebook}")
    code = "import time\nprint('begun', flush=True)\ntime.sleep(600)"

    closed.until("stream", closed.run("of-closed", code))
    closed.close()
    wait(lambda: answers(opened) and printed(server, "closed.ipynb") == "begun\n")
    opened.close()

    assert printed(server, "open.ipynb") == ""
