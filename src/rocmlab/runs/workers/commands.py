"""The socket to the runner, as the child process sees it: commands come in, events go out, as JSON lines.

The process ends when the runner does, whatever it does at that moment: a thread waits for the socket's end. It needs
nothing but that the interpreter runs, and code that keeps the interpreter to itself runs in the kernel, not here.
"""

from __future__ import annotations

import json
import os
import select
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

Command = dict[str, Any]

MAX_DESCRIPTORS = 250  # the kernel's limit is 253


class Commands:
    """Receives commands from the runner, and reports."""

    def __init__(self, descriptor: int, leave: Callable[[], object]) -> None:
        """Begin to listen; `leave` is called in a thread when the runner is gone, just before this process ends."""
        self._socket = socket.socket(fileno=descriptor)
        self._socket.set_inheritable(False)
        self._leave = leave
        threading.Thread(target=self._watch, name="rocmlab-commands", daemon=True).start()

    def is_waiting(self) -> bool:
        """Return whether there is a command."""
        poll = select.poll()  # `select` refuses a descriptor above 1023
        poll.register(self._socket, select.POLLIN)
        return bool(poll.poll(0))

    def take(self) -> tuple[Command, list[int]] | None:
        """Wait for a command and return it with its descriptors; None if the runner is gone."""
        line, descriptors = b"", list[int]()
        while not line.endswith(b"\n"):
            try:
                data, received, _, _ = socket.recv_fds(self._socket, 65_536, MAX_DESCRIPTORS)
            except OSError:
                return None
            if not data:
                return None
            line += data
            descriptors += received
        for each in descriptors:
            os.set_inheritable(each, False)
        return json.loads(line), descriptors

    def stream(self) -> Iterator[Command]:
        """Yield commands without descriptors, of which several may come together, until the runner exits."""
        rest = b""
        while True:
            try:
                data = self._socket.recv(65_536)
            except OSError:
                return
            if not data:
                return
            *lines, rest = (rest + data).split(b"\n")
            yield from map(json.loads, lines)

    def report(self, event: str, **facts: object) -> None:
        """Tell the runner.

        Raises:
            OSError: it is gone, and this process ends.
        """
        self._socket.sendall((json.dumps({"event": event, **facts}) + "\n").encode())

    def _watch(self) -> None:
        poll = select.poll()
        poll.register(self._socket, getattr(select, "POLLRDHUP", 0))  # a hang-up is told in any case
        try:
            poll.poll()
            self._leave()
        finally:
            os._exit(1)


def block_slow_import() -> None:
    """Keep jsonschema from building a grammar for IRIs, which no notebook has, for a second at its import.

    Source: jsonschema works without `rfc3987_syntax` where it cannot be imported; JupyterLab's dependencies bring it.
    """
    sys.modules.setdefault("rfc3987_syntax", None)  # type: ignore[arg-type]
