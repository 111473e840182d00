"""Behind JupyterHub: what computes counts as activity, so that the hub does not stop a lab in which a training runs.

JupyterHub goes by messages and requests, which each lab reports to it now and then. A cell that prints nothing has
none, nor has a run that was started in a terminal. So a busy kernel counts, and a process of this user that holds a GPU
and is no kernel of this server.
"""

from __future__ import annotations

import asyncio
import os
import time
from datetime import datetime, timezone
from typing import Any

from rocmlab.base.errors import RocmlabError
from rocmlab.devices import discover
from rocmlab.kernels.leases import Leases

LOOK_SECONDS = 60.0
INTERVAL = "JUPYTERHUB_ACTIVITY_INTERVAL"  # of the reports, in seconds; a hub that soon stops idle labs makes it short
NAME = "rocmlab"  # in Jupyter's table of activities


class Activity:
    """Looks now and then whether something computes in one server."""

    def __init__(self, server: Any) -> None:  # noqa: ANN401  jupyter_server's ServerApp
        self._server = server
        interval = os.environ.get(INTERVAL, "")
        self._every_seconds = min(LOOK_SECONDS, float(interval)) if interval.isdecimal() else LOOK_SECONDS
        self._next = 0.0
        self._task: asyncio.Task[None] | None = None

    def follow(self) -> None:
        """Look, unless that was done a moment ago; on the event loop."""
        if time.monotonic() < self._next:
            return
        self._next = time.monotonic() + self._every_seconds
        self._task = asyncio.ensure_future(self.look())

    async def look(self) -> None:
        """Tell Jupyter of activity if something computes."""
        kernels = self._server.kernel_manager
        found = [kernels.get_kernel(kernel_id) for kernel_id in kernels.list_kernel_ids()]
        own = {getattr(manager.provisioner, "pid", None) for manager in found}
        if any(manager.execution_state == "busy" for manager in found) or await asyncio.to_thread(is_computing, own):
            self._server.web_app.settings["last_activity_times"][NAME] = datetime.now(timezone.utc)


def is_computing(kernels: set[int | None]) -> bool:
    """Return whether a process of this user holds a GPU that is neither this lab nor one of these kernels."""
    devices = [device for device in discover() if device.backend in ("rocm", "cuda")]
    try:
        holders = Leases.of_host().held(devices).values() if devices else ()
    except RocmlabError:  # no lease can be looked at, so none can be taken
        return False
    return any(
        holder.uid == os.getuid() and holder.pid is not None and holder.pid not in {*kernels, os.getpid()}
        for holder in holders
    )
