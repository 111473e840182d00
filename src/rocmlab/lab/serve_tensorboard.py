"""TensorBoard on a socket file, which no other user of the host can open, for jupyter-server-proxy.

Run by an interpreter that has TensorBoard: `python -m rocmlab.lab.serve_tensorboard SOCKET FOLDER`.
"""

from __future__ import annotations

import os
import sys
import time
from functools import partial
from types import ModuleType
from typing import Any

from tensorboard import default, program
from werkzeug.serving import WSGIRequestHandler, make_server


class Silent(WSGIRequestHandler):  # type: ignore[misc]  # it has no types
    """Logs no requests: an address may hold the lab's token, and what is printed here is in the lab's log."""

    def log_request(self, code: int | str = "-", size: int | str = "-") -> None:
        """Log nothing; errors are logged as usual."""


class SocketServer(program.TensorBoardServer):  # type: ignore[misc]  # it has no types
    """TensorBoard's application behind a Unix domain socket, which its own server does not offer."""

    def __init__(self, socket: str, wsgi_app: Any, _flags: Any) -> None:  # noqa: ANN401  TensorBoard's
        self._server = make_server(f"unix://{socket}", 0, wsgi_app, threaded=True, request_handler=Silent)

    def serve_forever(self) -> None:
        """Serve until the process ends."""
        self._server.serve_forever()

    def get_url(self) -> str:
        """Return nothing: the address is the lab's business."""
        return ""


def main(socket: str, folder: str) -> None:
    """Serve the event files below a folder for as long as the lab lives."""
    lab = os.getppid()
    os.umask(0o077)
    sys.modules["tensorboard.compat.notf"] = ModuleType(
        "notf"
    )  # its switch: without TensorFlow, whose import takes long
    board = program.TensorBoard(default.get_plugins(), server_class=partial(SocketServer, socket))
    # Its faster reader would be a process of its own, on a port that every user of the host can open.
    board.configure(argv=["tensorboard", "--logdir", folder, "--load_fast", "false"])
    board.launch()
    while os.getppid() == lab:
        time.sleep(1)


if __name__ == "__main__":
    main(*sys.argv[1:])
