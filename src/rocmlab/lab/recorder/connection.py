"""Jupyter's connection of a page to a kernel, which also tells the recorder which cell each request is of.

Whatever fails in it is logged, and the connection does what Jupyter's own does.
"""

from __future__ import annotations

import contextlib
import json
import logging
from collections.abc import Iterator
from typing import Any, ClassVar, Protocol

from jupyter_server.services.kernels.connection import base as wire
from jupyter_server.services.kernels.connection.channels import ZMQChannelsWebsocketConnection

from rocmlab.lab.recorder.tap import Tap, is_on

log = logging.getLogger("rocmlab")

V1 = "v1.kernel.websocket.jupyter.org"


class Taps(Protocol):
    """The recorder of a server."""

    def tap(self, kernel_id: str, is_made: bool) -> Tap | None:
        """Return a kernel's; it is made if there is none and there is to be one."""


class RecordingConnection(ZMQChannelsWebsocketConnection):
    """A page's connection."""

    recorder: ClassVar[Taps]

    def connect(self) -> Any:  # noqa: ANN401
        """Connect, after the recorder: it hears whatever the page hears."""
        with _logged("connecting"):
            if tap := self.recorder.tap(self.kernel_id, is_on()):
                tap.listen()
        connected = super().connect()
        with _logged("connecting"):
            if tap := self.recorder.tap(self.kernel_id, False):
                tap.connected(self.session_id, self.websocket_handler)
        return connected

    def disconnect(self) -> None:  # type: ignore[override]  # as in its base
        """Disconnect; what comes from now on is for the file."""
        super().disconnect()  # type: ignore[no-untyped-call]
        with _logged("disconnecting"):
            if tap := self.recorder.tap(self.kernel_id, False):
                tap.disconnected(self.session_id, self.websocket_handler)

    def handle_incoming_message(self, incoming_msg: Any) -> None:  # noqa: ANN401
        """Take note of a cell and of an answer, before the kernel gets it."""
        with _logged("a page's message"):
            self._note(*self._parts(incoming_msg))
        super().handle_incoming_message(incoming_msg)

    def handle_outgoing_message(self, stream: Any, outgoing_msg: list[Any]) -> None:  # noqa: ANN401
        """Take note of a question, which may have to be asked again on another page, and of a cell's end."""
        channel = getattr(stream, "channel", stream)
        if channel != "iopub":
            with _logged("a kernel's message"):
                if tap := self.recorder.tap(self.kernel_id, False):
                    tap.hear(channel, outgoing_msg)
        super().handle_outgoing_message(stream, outgoing_msg)

    def _parts(self, text: Any) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:  # noqa: ANN401
        """Return header, metadata and content of a message; the last two only of what matters here."""
        if self.subprotocol != V1:
            message = wire.deserialize_binary_message(text) if isinstance(text, bytes) else json.loads(text)  # type: ignore[no-untyped-call]
            return message["header"], message.get("metadata") or {}, message["content"]
        channel, parts = wire.deserialize_msg_from_ws_v1(text)  # type: ignore[no-untyped-call]
        header = json.loads(parts[0]) if channel in ("shell", "stdin") else {}
        if header.get("msg_type") not in ("execute_request", "input_reply"):
            return header, {}, {}
        return header, json.loads(parts[2]), json.loads(parts[3])

    def _note(self, header: dict[str, Any], metadata: dict[str, Any], content: dict[str, Any]) -> None:
        if header.get("msg_type") == "input_reply":
            if tap := self.recorder.tap(self.kernel_id, False):
                tap.answered(str(content.get("value", "")))
            return
        cell = metadata.get("cellId") if header.get("msg_type") == "execute_request" else None
        if cell and is_on() and (tap := self.recorder.tap(self.kernel_id, True)):
            tap.sockets.setdefault(self.session_id, self.websocket_handler)
            tap.note_page(self.session_id)
            tap.records.begin(str(cell), header["msg_id"], self.session_id, str(content.get("code", "")))


def recording(base: Any, recorder: Taps) -> Any:  # noqa: ANN401
    """Return the class for a server whose own is `base`.

    Raises:
        TypeError: connections of that class are not known here.
    """
    if base is not ZMQChannelsWebsocketConnection:
        raise TypeError(f"connections to kernels are of the class {getattr(base, '__name__', base)}")
    return type("RecordingConnection", (RecordingConnection,), {"recorder": recorder})


@contextlib.contextmanager
def _logged(what: str) -> Iterator[None]:
    try:
        yield
    except Exception as err:
        log.error("the recorder failed at %s: %r", what, err)
