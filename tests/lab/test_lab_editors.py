"""A lab as VS Code's Jupyter extension uses one: the token in a header, no cookies, sessions with names of its own.

Source: microsoft/vscode-jupyter, `src/kernels/jupyter/session`, which uses JupyterLab's client of the API.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator

import clients
import pytest
import websocket
from kernel_hosts import Host
from panel_servers import TOKEN, Server, wait

PROTOCOLS = (None, ["v1.kernel.websocket.jupyter.org"])


@pytest.fixture
def server(host: Host) -> Iterator[Server]:
    """A server whose kernels are this interpreter."""
    host.offer()
    found = Server(host, has_jupyterlab=True)
    try:
        yield found.up()
    finally:
        found.stop()


@pytest.mark.long
@pytest.mark.slow
def test_a_session_of_vs_code_runs_restarts_and_ends(server: Server) -> None:
    """Its path is of a file that the server does not have; nothing of it needs a cookie or an XSRF token."""
    assert "torch-cpu" in server.json("api/kernelspecs")["kernelspecs"]
    name = f"mine-{uuid.uuid4()}.ipynb"
    wanted = {"path": f"mine-jvsc-{uuid.uuid4()}.ipynb", "name": name, "type": "notebook"}
    session = server.json("api/sessions", "POST", {**wanted, "kernel": {"name": "torch-cpu"}}, status=201)
    kernel = session["kernel"]["id"]
    own = uuid.uuid4().hex
    address = f"ws://127.0.0.1:{server.port}/api/kernels/{kernel}/channels?session_id={own}"

    def run(code: str, protocols: list[str] | None, token: str = TOKEN) -> str:
        options = {"header": [f"Authorization: token {token}"], "subprotocols": protocols, "suppress_origin": True}
        channel = websocket.create_connection(address, timeout=60, **options)
        try:
            assert channel.getsubprotocol() == (protocols[0] if protocols else None)
            return "" if protocols else clients.execute_on(channel, own, code)
        finally:
            channel.close()

    for protocols in PROTOCOLS:
        run("a = 6 * 7", protocols)
    assert run("print(a)", None) == "42\n"
    with pytest.raises(websocket.WebSocketBadStatusException, match="403"):
        run("", None, token="0" * len(TOKEN))
    assert server.request(f"api/kernels/{kernel}/interrupt", "POST")[0] == 204
    server.json(f"api/kernels/{kernel}/restart", "POST")
    wait(lambda: "NameError" in run("print(a)", None))
    assert [each["name"] for each in server.json("api/sessions")] == [name]
    server.json(f"api/sessions/{session['id']}", "DELETE", status=204)
    assert server.json("api/kernels") == []
