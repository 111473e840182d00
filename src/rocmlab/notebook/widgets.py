"""The state of a notebook's widgets, which a browser shows without a kernel, and the widget that catches output.

Source: nbclient 0.11, client.py (`handle_comm_msg`, `set_widgets_metadata`) and output_widget.py.
"""

from __future__ import annotations

import base64
from collections.abc import Callable
from typing import Any

from rocmlab.notebook.outputs import CellOutputs, Display, OverflowLog
from rocmlab.notebook.wire import Message

STATE = "application/vnd.jupyter.widget-state+json"
CAUGHT_BYTES = 1_000_000  # of printed text that one output widget keeps


class Widgets:
    """Follows the comm messages of a kernel."""

    def __init__(self, send: Callable[[str, dict[str, Any]], object], overflow: OverflowLog) -> None:
        self._send = send  # a comm message to the kernel: id of the comm, data
        self._overflow_log = overflow
        self._states: dict[str, dict[str, Any]] = {}
        self._buffers: dict[str, dict[tuple[str, ...], dict[str, Any]]] = {}
        self._catching: dict[str, str] = {}  # id of an output widget -> the request whose output it catches
        self._caught: dict[str, CellOutputs] = {}

    def take(self, message: Message) -> None:
        """Take a comm message."""
        content = message.content
        identity, data = str(content["comm_id"]), content.get("data") or {}
        state = data.get("state")
        if not isinstance(state, dict):
            return
        self._states.setdefault(identity, {}).update(state)
        if data.get("buffer_paths"):
            kept = self._buffers.setdefault(identity, {})
            for path, buffer in zip(data["buffer_paths"], message.buffers, strict=False):
                encoded = base64.b64encode(buffer).decode()
                kept[tuple(map(str, path))] = {"data": encoded, "encoding": "base64", "path": path}
        if self._states[identity].get("_model_name") == "OutputModel" and "msg_id" in state:
            self._catch(identity, state["msg_id"])

    def _catch(self, identity: str, request: str | None) -> None:
        self._catching.pop(identity, None)
        if request:
            self._catching[identity] = request  # behind those that catch already: the last one wins
            if identity not in self._caught:
                cell: dict[str, Any] = {}
                self._caught[identity] = CellOutputs(cell, "output widget", Display(), CAUGHT_BYTES, self._overflow_log)

    def catch(self, message: Message) -> bool:
        """Take an output that belongs into a widget; False if it does not."""
        for identity in reversed(self._catching):
            if self._catching[identity] == message.parent:
                caught = self._caught[identity]
                caught.take(message.kind, message.content)
                caught.render()
                self._states[identity]["outputs"] = caught.outputs
                self._send(identity, {"method": "update", "state": {"outputs": caught.outputs}, "buffer_paths": []})
                return True
        return False

    def store(self, notebook: dict[str, Any]) -> None:
        """Put the states into the notebook's metadata."""
        known = {identity: state for identity, state in self._states.items() if "_model_name" in state}
        if not self._states:
            return
        stored: dict[str, Any] = {}
        for identity, state in known.items():
            stored[identity] = {
                "model_name": state.get("_model_name"),
                "model_module": state.get("_model_module"),
                "model_module_version": state.get("_model_module_version"),
                "state": state,
            }
            if identity in self._buffers:
                stored[identity]["buffers"] = list(self._buffers[identity].values())
        notebook["metadata"]["widgets"] = {STATE: {"state": stored, "version_major": 2, "version_minor": 0}}
