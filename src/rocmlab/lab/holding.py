"""How long a kernel may hold its GPUs while other users wait for them, if the host has such a limit.

A kernel beyond the limit is warned first: in the server's log, on every page that has it open, in the panel, and in the
note of its lease, which `rocmlab leases` shows. After the notice it is shut down if it is idle, as by
`CULL_IDLE_GPU_KERNELS_SECONDS`. A cell that runs then may continue for a grace period. If no one waits any more,
nothing happens, and a later waiter brings a new warning. Jobs of `rocmlab run` end by themselves and are not ended.

Of several kernels one is shut down at a look: its GPU may be all that is waited for. The notice is counted by a clock
that no one sets, and that stands while the machine sleeps.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from typing import Any

from tornado.ioloop import PeriodicCallback

from rocmlab.base.errors import RocmlabError
from rocmlab.base.formatting import duration, utc
from rocmlab.base.host_limits import MAX_HOLD, HostLimits
from rocmlab.kernels.leases import Holder, Lease, Leases, Waiter
from rocmlab.lab.leased_kernels import IDLE, LeasedKernels

LOOK_SECONDS = 15.0


@dataclass
class Warned:
    """A kernel that holds GPUs beyond the limit."""

    since_seconds: float  # of the warning, on the clock that no one sets
    is_in_grace: bool = False  # its cell continues beyond the notice, and its pages have been told


class Holding:
    """Looks at the kernels of a server now and then."""

    def __init__(
        self,
        server: Any,  # noqa: ANN401
        leases: Leases | None = None,
        now: Callable[[], datetime] | None = None,
        elapsed: Callable[[], float] = time.monotonic,
    ) -> None:
        """Look at a server's kernels.

        Args:
            server: jupyter_server's ServerApp.
            leases: of the host.
            now: returns the time.
            elapsed: returns seconds that only grow, whatever the time is set to.
        """
        self._kernels = server.kernel_manager
        self._leased = LeasedKernels(server)
        self._log = server.log
        self._leases = leases or Leases.of_host()
        self._now = now or (lambda: datetime.now(timezone.utc))
        self._elapsed = elapsed
        self._warned: dict[str, Warned] = {}
        self._problem = ""
        self._timer = PeriodicCallback(self.look, LOOK_SECONDS * 1000)

    def start(self) -> None:
        """Begin to look; on the event loop."""
        self._timer.start()

    def stop(self) -> None:
        """Look no more."""
        self._timer.stop()

    async def look(self) -> None:
        """Warn kernels that hold GPUs too long while others wait, and shut down those whose notice has passed."""
        kernel_ids = self._kernels.list_kernel_ids()
        leased = [(kernel_id, lease) for kernel_id in kernel_ids if (lease := self._leased.lease(kernel_id))]
        try:
            limits, waiters = await asyncio.to_thread(lambda: (self._leases.limits(), self._unserved()))
        except RocmlabError as err:
            if str(err) != self._problem:
                self._log.error("%s", err)
            self._problem = str(err)
            return
        due = {kernel_id: lease for kernel_id, lease in leased if self._is_due(lease, limits, waiters)}
        for kernel_id in set(self._warned) - set(due):
            del self._warned[kernel_id]
            if lease := self._leased.lease(kernel_id):
                lease.describe(replace(lease.holder, ends=None))
                self._leased.tell(kernel_id, "no other user waits for this kernel's GPU any more: it stays")
        has_ended = False
        for kernel_id, lease in due.items():
            if not has_ended and self._is_over(kernel_id, limits):
                has_ended = True
                self._leased.tell(
                    kernel_id, "it is shut down now: other users wait for its GPU; what it had in memory is lost"
                )
                self._warned.pop(kernel_id, None)
                await self._leased.shut_down(kernel_id)
            else:
                self._remind(kernel_id, lease, limits)

    def _unserved(self) -> list[Waiter]:
        """Return who waits, and is not just about to take what is free and kept for it."""
        kept = Counter(waiter.place for waiter in self._leases.kept().values())
        return [waiter for waiter in self._leases.waiting() if kept[waiter.place] < waiter.count]

    def _is_due(self, lease: Lease, limits: HostLimits, waiters: Sequence[Waiter]) -> bool:
        if limits.hold_seconds is None or not lease.holder.started:
            return False
        started = datetime.fromisoformat(lease.holder.started.replace("Z", "+00:00"))
        is_long = (self._now() - started).total_seconds() >= limits.hold_seconds
        return is_long and any(
            waiter.is_in_turn
            and _is_other(waiter.holder, lease.holder)
            and not set(lease.names).isdisjoint(waiter.locks)
            for waiter in waiters
        )

    def _is_over(self, kernel_id: str, limits: HostLimits) -> bool:
        """Return whether a kernel's notice has passed and it is idle, or its grace period as well."""
        found = self._warned.get(kernel_id)
        if found is None or kernel_id not in self._kernels:
            return False
        seconds = self._elapsed() - found.since_seconds
        is_idle = self._kernels.get_kernel(kernel_id).execution_state in IDLE
        return seconds >= limits.notice_seconds + (0 if is_idle else limits.grace_seconds)

    def _remind(self, kernel_id: str, lease: Lease, limits: HostLimits) -> None:
        found = self._warned.get(kernel_id)
        if found is None:
            self._warned[kernel_id] = Warned(self._elapsed())
            ends = datetime.fromtimestamp(self._now().timestamp() + limits.notice_seconds, timezone.utc)
            text = utc(ends)
            lease.describe(replace(lease.holder, ends=text))
            self._leased.tell(
                kernel_id,
                f"other users wait for this kernel's GPU, which it has longer than {duration(limits.hold_seconds)} "
                f"({limits.where(MAX_HOLD)}). Save what you need: in {duration(limits.notice_seconds)} it is shut down "
                f"if it is idle; a cell that runs then may continue for {duration(limits.grace_seconds)}",
            )
            return
        seconds = self._elapsed() - found.since_seconds
        is_busy = kernel_id in self._kernels and self._kernels.get_kernel(kernel_id).execution_state not in IDLE
        if seconds >= limits.notice_seconds and is_busy and not found.is_in_grace:
            found.is_in_grace = True
            rest = duration(max(0.0, limits.notice_seconds + limits.grace_seconds - seconds))
            self._leased.tell(
                kernel_id, f"other users wait for its GPU: it is shut down when its cell ends, or in {rest}"
            )


def _is_other(waiter: Holder, holder: Holder) -> bool:
    """Return whether they are two users: by uid, or in containers with the same uid by who started them."""
    return (waiter.uid, waiter.owner) != (holder.uid, holder.owner)
