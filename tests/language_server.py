"""A conversation with a lab's language server, as JupyterLab has it."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

import clients
import websocket

WAIT_SECONDS = 240.0  # on a busy machine a start takes more than a minute
CODE = "import json\nimport os\n\nos.getp"


def said(server: clients.Server) -> tuple[list[str], set[tuple[str, str]]]:
    """Open CODE in a lab's server; return the completions at its end, and each warning's program and code."""
    header = [f"Authorization: token {server.token}"]
    url = f"ws://{server.address}/lsp/ws/pylsp"
    channel = websocket.create_connection(url, header=header, suppress_origin=True, timeout=WAIT_SECONDS)

    def send(method: str, number: int | None = None, **params: object) -> None:
        identity = {} if number is None else {"id": number}
        channel.send(json.dumps({"jsonrpc": "2.0", "method": method, "params": params, **identity}))

    def receive(is_it: Callable[[dict[str, Any]], object]) -> dict[str, Any]:
        """Return the first message of a kind, which may have come before another one that was waited for."""
        while not (found := next(filter(is_it, messages), None)):
            messages.append(json.loads(channel.recv()))
        return found

    messages: list[dict[str, Any]] = []
    page = server.request("/lab", token=server.token)[1]
    base = re.search(r'"virtualDocumentsUri": "([^"]+)"', page)
    assert base
    address = f"{base[1]}/test.py"
    document = {"uri": address, "languageId": "python", "version": 1, "text": CODE}
    try:
        send("initialize", 1, processId=None, rootUri=None, capabilities={})
        receive(lambda message: message.get("id") == 1)
        send("initialized")
        status = json.loads(server.request("/lsp/status", token=server.token)[1])
        send("workspace/didChangeConfiguration", settings=status["specs"]["pylsp"]["workspace_configuration"])
        send("textDocument/didOpen", textDocument=document)
        send("textDocument/completion", 2, textDocument={"uri": address}, position={"line": 3, "character": 7})
        offered = receive(lambda message: message.get("id") == 2)["result"]["items"]
        warned = receive(lambda message: message.get("params", {}).get("diagnostics"))["params"]["diagnostics"]
    finally:
        channel.close()
    return [item["label"] for item in offered], {(each["source"], each["code"]) for each in warned}
