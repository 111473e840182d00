"""The Jupyter messaging protocol, as much of it as running a notebook takes.

Source: the protocol's own document, version 5.3 ("Messaging in Jupyter": wire protocol, channels, heartbeat).
"""

from __future__ import annotations

import getpass
import hashlib
import hmac
import json
import logging
import os
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Any

import zmq

log = logging.getLogger("rocmlab")

DELIMITER = b"<IDS|MSG>"
RECONNECT_MILLISECONDS = 5  # the kernel binds its sockets while we wait


@dataclass(frozen=True)
class Message:
    """A message of a kernel."""

    kind: str
    parent: str | None  # id of the request that it answers or belongs to
    content: dict[str, Any]
    header: dict[str, Any]
    buffers: list[bytes]


class Channels:
    """The sockets of one kernel."""

    def __init__(self, connection: dict[str, Any]) -> None:
        key = connection["key"]
        self._key = key if isinstance(key, bytes) else str(key).encode()
        self._connection = connection
        self._session = secrets.token_hex(16)
        self._count = 0
        self._user = _user()
        self.context: zmq.Context[Any] = zmq.Context()
        # What is not taken is lost silently, and this side is the fast one.
        self.iopub = self._open("iopub_port", zmq.SUB, {zmq.RCVHWM: 0, zmq.SUBSCRIBE: b""})
        identity = {zmq.IDENTITY: self._session.encode()}
        self.shell = self._open("shell_port", zmq.DEALER, identity)
        self.control = self._open("control_port", zmq.DEALER, identity)
        self.heartbeat = self._open("hb_port", zmq.DEALER, identity)

    def _open(self, port: str, kind: int, options: Mapping[zmq.SocketOption, int | bytes]) -> zmq.Socket[bytes]:
        socket: zmq.Socket[bytes] = self.context.socket(kind)
        for option, value in {zmq.LINGER: 0, zmq.RECONNECT_IVL: RECONNECT_MILLISECONDS, **options}.items():
            socket.setsockopt(option, value)
        ip, number = self._connection["ip"], self._connection[port]
        is_ipc = self._connection["transport"] == "ipc"
        socket.connect(f"ipc://{ip}-{number}" if is_ipc else f"tcp://{ip}:{number}")
        return socket

    def request(self, socket: zmq.Socket[bytes], kind: str, content: dict[str, Any]) -> str:
        """Send a message and return its id."""
        self._count += 1
        identity = f"{self._session}_{os.getpid()}_{self._count}"
        header = {
            "msg_id": identity,
            "msg_type": kind,
            "session": self._session,
            "username": self._user,
            "date": now(),
            "version": "5.3",
        }
        parts = [json.dumps(part, ensure_ascii=True).encode() for part in (header, {}, {}, content)]
        socket.send_multipart([DELIMITER, self._sign(parts), *parts])
        return identity

    def receive(self, socket: zmq.Socket[bytes]) -> Message | None:
        """Return a waiting message; None if there is none, or one that is not the kernel's."""
        try:
            frames = socket.recv_multipart(zmq.NOBLOCK)
            start = frames.index(DELIMITER) + 1
        except zmq.Again:
            return None
        except ValueError:
            log.warning("a message without the protocol's delimiter was ignored")
            return None
        signature, *parts = frames[start : start + 5]
        if len(parts) != 4 or (self._key and not hmac.compare_digest(signature, self._sign(parts))):
            log.warning("a message with a wrong signature was ignored")
            return None
        # A kernel may print bytes that are not text, such as a file name in another encoding: ipykernel sends them.
        texts = (part.decode("utf-8", "replace") for part in (parts[0], parts[1], parts[3]))
        header, parent, content = map(json.loads, texts)
        return Message(header["msg_type"], parent.get("msg_id"), content, header, frames[start + 5 :])

    def _sign(self, parts: list[bytes]) -> bytes:
        if not self._key:
            return b""
        code = hmac.new(self._key, digestmod=hashlib.sha256)
        for part in parts:
            code.update(part)
        return code.hexdigest().encode()

    def close(self) -> None:
        """Close all sockets."""
        self.context.destroy(linger=0)


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a user id without a name
        return str(os.getuid())


def now() -> str:
    """Return the time as the protocol wants it."""
    return datetime.now(timezone.utc).isoformat().replace("+00:00", "Z")
