"""Messages of a kernel to every page that has it open, where JupyterLab shows them (View > Show Log Console).

No cell is running that they could belong to.
"""

from __future__ import annotations

import sys


def tell(kernel_id: str, text: str) -> None:
    """Send a line to each page that has the kernel open; outside a server there is none."""
    channels = sys.modules.get("jupyter_server.services.kernels.connection.channels")
    if channels is None:
        return
    for connection in list(channels.ZMQChannelsWebsocketConnection._open_sockets):
        if connection.kernel_id == kernel_id:
            connection.write_stderr(text, {})
