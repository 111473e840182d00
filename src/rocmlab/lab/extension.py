"""Shut down idle kernels that have GPUs, if the user has enabled that.

The panel's extension imports it when CULL_IDLE_GPU_KERNELS_SECONDS is first set. A kernel that is busy, and
one without a lease, is never touched; one to which no page has connected since its start counts as idle. The warning
goes to the server's log and, as a message of the kernel, to every page that has the kernel open, where JupyterLab shows
it in its log (View > Show Log Console): no cell is running that it could belong to. The notice is counted by a clock
that no one sets, and that stands while the machine sleeps.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import datetime, timezone
from typing import Any

from tornado.ioloop import PeriodicCallback

from rocmlab.base.errors import RocmlabError
from rocmlab.lab.leased_kernels import IDLE, LeasedKernels
from rocmlab.lab.server.idle import CULLING as SETTING
from rocmlab.lab.server.idle import seconds

MAX_NOTICE_SECONDS = 300.0
NOTICE_SHARE = 0.1  # of the limit
MAX_PAUSE_SECONDS = 30.0


class Culler:
    """Looks at the kernels of a server now and then."""

    def __init__(
        self,
        server: Any,  # noqa: ANN401
        limit: float,
        now: Callable[[], datetime] | None = None,
        elapsed: Callable[[], float] = time.monotonic,
    ) -> None:
        """Look at a server's kernels.

        Args:
            server: jupyter_server's ServerApp.
            limit: seconds without work after which a kernel is shut down.
            now: returns the time.
            elapsed: returns seconds that only grow, whatever the time is set to.
        """
        self.limit = limit
        self.notice = min(MAX_NOTICE_SECONDS, limit * NOTICE_SHARE)
        self._kernels = server.kernel_manager
        self._leased = LeasedKernels(server)
        self._log = server.log
        self._now = now or (lambda: datetime.now(timezone.utc))
        self._elapsed = elapsed
        self._warned: dict[str, tuple[datetime, float]] = {}  # kernel: its last work, and `elapsed` at its warning
        pause = min(MAX_PAUSE_SECONDS, self.notice / 2)
        self._timer = PeriodicCallback(self.look, pause * 1000)

    def start(self) -> None:
        """Begin to look; on the event loop."""
        self._log.info("kernels that have GPUs are shut down after %g seconds without work", self.limit)
        self._timer.start()

    def stop(self) -> None:
        """Look no more."""
        self._timer.stop()

    async def look(self) -> None:
        """Warn the users of idle kernels, and shut down those that were warned long enough ago."""
        now = self._now()
        idle = {kernel_id: since for kernel_id in self._kernels.list_kernel_ids() if (since := self._idle(kernel_id))}
        self._warned = {each: told for each, told in self._warned.items() if idle.get(each) == told[0]}
        for kernel_id, since in idle.items():
            if self._idle(kernel_id) != since:
                continue  # it was used while another one was shut down
            quiet = (now - since).total_seconds()
            if kernel_id not in self._warned:
                if quiet >= self.limit - self.notice:
                    left = max(self.limit - quiet, self.notice)
                    self._warned[kernel_id] = (since, self._elapsed())
                    self._tell(kernel_id, f"in {left:.0f} seconds it is shut down, unless a cell is run")
            elif quiet >= self.limit and self._elapsed() - self._warned[kernel_id][1] >= self.notice:
                self._tell(kernel_id, "it is shut down now; what it had in memory is lost")
                self._warned.pop(kernel_id, None)
                await self._leased.shut_down(kernel_id)

    def _idle(self, kernel_id: str) -> datetime | None:
        """Return since when a kernel with a lease has done nothing; None for every other, and one that is gone."""
        if self._leased.lease(kernel_id) is None:
            return None
        manager = self._kernels.get_kernel(kernel_id)
        if manager.execution_state not in IDLE:
            return None
        since: datetime | None = manager.last_activity
        return since

    def _tell(self, kernel_id: str, what: str) -> None:
        """Say it in the log and to every page that has the kernel open."""
        why = f"this kernel holds a GPU and has been idle for a long time ({SETTING}={self.limit:g})"
        self._leased.tell(kernel_id, f"{why}: {what}")


class Culling:
    """The Culler of a server, as the setting is now: it starts, changes and stops without a restart."""

    def __init__(self, server: Any) -> None:  # noqa: ANN401  jupyter_server's ServerApp
        self._server = server
        self._text = ""
        self._culler: Culler | None = None

    def apply(self, text: str) -> None:
        """Take a value of the setting; one that is not a time stops the Culler, and is reported in the log."""
        if text == self._text:
            return
        self._text = text
        self.stop()
        try:
            limit = seconds(SETTING, text or "0")
        except RocmlabError as err:
            self._server.log.error("%s", err)
            return
        if limit:
            self._culler = Culler(self._server, limit)
            self._culler.start()

    def stop(self) -> None:
        """Look at no kernel any more."""
        if self._culler is not None:
            self._culler.stop()
            self._culler = None
