"""How a job of a run comes to its lease: at once, or when those who have the GPUs give them back.

A job whose turn it is in its run waits in the queue of the host (`rocmlab.kernels.tickets`); a run has one place there.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from typing import Any

from rocmlab.base import formatting, host_limits
from rocmlab.base.errors import RocmlabError
from rocmlab.devices import Device
from rocmlab.kernels import gpu_processes, ownership
from rocmlab.kernels.leases import Holder, Lease, Leases, Ticket, key
from rocmlab.runs.folder import RunFolder
from rocmlab.runs.jobs import Job
from rocmlab.runs.scheduling.place import Place

log = logging.getLogger("rocmlab")

FIRST_SECONDS = 0.05  # a lock may be looked at just then
POLL_SECONDS = 0.25
LONG_SECONDS, LONG_POLL_SECONDS = 10.0, 1.0  # who waits that long for others waits for long
WORTH_TELLING_SECONDS = 1.0
FEWER_SECONDS = 5.0  # after which a job that may begin with fewer GPUs takes those that others have not leased
CPU_SECONDS = 60.0  # after which it gives up its place, so that it does not keep the others of its run waiting


class Claim:
    """A job's claim to its place's GPUs, and the lease that it becomes. On the CPU there is nothing to lease.

    The first attempt is made at once, so that the run's message at a job's start is true. GPUs with other processes
    are taken last, and with a warning. Where no lease can be taken the job does not run; the error names the fix.
    """

    def __init__(
        self,
        job: Job,
        place: Place,
        folder: RunFolder,
        warnings: list[str],
        see: Callable[[dict[str, Any]], None],
        expected_seconds: float | None = None,
    ) -> None:
        self.lease: Lease | None = None
        self._expected_seconds = expected_seconds  # of the job; None if no earlier run shows it
        self._ticket: Ticket | None = None  # while it waits
        self._job = job
        self._place = place
        self._folder = folder
        self._warnings = warnings  # of the job's result
        self._see = see  # called when it waits, and when it has what it waits for
        self._leases = Leases.of_host()
        self._count = len(place.gpus)
        self._waits_since: float | None = None  # it is its turn, and others have leased what it claims
        self.why_not: str | None = None  # why it has given up
        self.failure: str | None = None  # why no lease can be taken here, and the fix
        self.is_gone = False  # that is why: another GPU will do
        self._is_settled = not place.gpus
        self._obey_limit()
        self._queried: set[Device] = set()  # whose drivers were asked for their processes
        self._seen = gpu_processes.in_time(self._gpus())  # their answers; none of one that hangs
        self._attempt()

    async def settled(self, is_stopped: Callable[[], bool]) -> bool:
        """Wait until the GPUs are leased; False if the job was stopped, gives up (`why_not`), or cannot (`failure`)."""
        try:
            return await self._settled(is_stopped)
        finally:
            self._leave_queue()

    async def _settled(self, is_stopped: Callable[[], bool]) -> bool:
        begin, pause, has_said = time.monotonic(), FIRST_SECONDS, False
        while not self._is_settled and not self.failure:
            await asyncio.sleep(pause)
            if is_stopped():
                return False
            is_its_turn = bool(self._place.options())
            self._seen = await gpu_processes.awaited(self._gpus())
            if is_stopped():
                return False
            self._attempt()
            if self.failure:
                break
            if is_its_turn and not self._is_settled and self._has_given_up():
                return False
            if is_its_turn and not self._is_settled and not has_said:
                self._say_who()
                has_said = True
            pause = POLL_SECONDS if self._waited_seconds() < LONG_SECONDS else LONG_POLL_SECONDS
        if self.failure or not await self._is_there():
            return False
        if has_said:
            self._say_waited(time.monotonic() - begin)
        if self._place.gpus:
            self._see({"event": "leased", "devices": [gpu.as_dict() for gpu in self._place.gpus]})
        await self._warn_of_unmanaged()
        return True

    async def _is_there(self) -> bool:
        """Note the numbers that its GPUs have now; the lease alone does not show that they are there."""
        try:
            await asyncio.to_thread(self._place.number)
        except RocmlabError as err:
            self.failure, self.is_gone = str(err), True
            return False
        return True

    def _has_given_up(self) -> bool:
        """Begin to count at the first look; note who has the GPUs when a job that can do without has waited enough."""
        self._waits_since = self._waits_since or time.monotonic()
        if not self._place.fewest or self._waited_seconds() < CPU_SECONDS:
            return False
        needed = formatting.plural(self._place.fewest, "GPU")
        self.why_not = f"it needs {needed}, and for {CPU_SECONDS:g} s too few were free: {'; '.join(self._holders())}"
        return True

    def _waited_seconds(self) -> float:
        """Return for how long others have had what it claims; 0 before its turn."""
        return time.monotonic() - self._waits_since if self._waits_since else 0.0

    def release(self) -> None:
        """Close this process's copies of the lease's descriptors."""
        self._leave_queue()
        if self.lease:
            self.lease.release()
            self.lease = None

    def _obey_limit(self) -> None:
        """Claim no more than the host allows a user, if the job can do with that."""
        if self._is_settled:
            return
        try:
            limits = self._leases.limits()
        except RocmlabError as err:
            self.failure = str(err)
            return
        allowed = limits.gpus_per_user
        if allowed is not None and 0 < self._place.fewest <= allowed < self._count:
            why = limits.where(f"{host_limits.MAX_GPUS}={allowed}")
            self._warn(f"it begins with {formatting.plural(allowed, 'GPU')} of {self._count}: {why}")
            self._count = allowed

    def _leave_queue(self) -> None:
        if self._ticket:
            self._ticket.close()
            self._ticket = None

    def _gpus(self) -> Sequence[Device]:
        """Return the GPUs that may be had, or are had, whose drivers are queried for processes next."""
        gpus = self._place.gpus if self._is_settled else self._place.options()
        self._queried = set(gpus)
        return gpus

    def _attempt(self) -> None:
        """Lease all that is claimed; after a while fewer, where fewer will do."""
        if self._is_settled or self.failure:
            return
        options = [gpu for gpu in self._place.options() if gpu in self._queried]
        if not options:
            return
        fewest = self._count
        if self._place.fewest and self._waited_seconds() >= FEWER_SECONDS:
            fewest = self._place.fewest
        for count in range(self._count, fewest - 1, -1):
            try:
                owned = ownership.take(self._leases, options, count, self._holder(), self._seen, self._ticket)
            except RocmlabError as err:
                self.failure = str(err)
                return
            if owned is None:
                continue
            self.lease = owned.lease
            if count < self._count:
                rest = "; ".join(self._holders(besides=owned.devices))
                self._warn(f"it begins with {formatting.plural(count, 'GPU')} of {self._count}: {rest}")
            for warning in owned.warnings:
                self._warn(warning)
            self._is_settled = True
            self._leave_queue()
            self._place.settle(owned.devices)
            return
        self._wait_in_queue(options)

    def _holder(self) -> Holder:
        return Holder.here(self._job.notebook, self._expected_seconds)

    def _wait_in_queue(self, options: Sequence[Device]) -> None:
        """Take a place among all who wait on this host, or show that it still waits, and for what."""
        try:
            if self._ticket is None:
                self._ticket = self._leases.join(options, self._count, self._holder())
            self._leases.renew(self._ticket, options, self._count)
        except RocmlabError as err:
            self.failure = str(err)

    def _holders(self, besides: Sequence[Device] = ()) -> list[str]:
        gpus = [gpu for gpu in self._place.options() if gpu not in besides]
        kept, limit = self._leases.kept(self._ticket), self._leases.why_not_more(self._count)
        return [
            *([limit] if limit else []),
            *(f"{_label(gpu)} is leased to {holder}" for gpu, holder in self._leases.held(gpus).items()),
            *(f"{_label(gpu)} is kept for {kept[key(gpu)]}, who waits longer" for gpu in gpus if key(gpu) in kept),
        ]

    def _say_who(self) -> None:
        who = self._holders()
        self._folder.log("job waits", job=self._job.name, gpus=self._count, held=who)
        self._see({"event": "waiting", "held": who})
        log.info("%s waits for %s: %s", self._job.name, formatting.plural(self._count, "GPU"), "; ".join(who))

    def _say_waited(self, seconds: float) -> None:
        addresses = [gpu.pci_address or gpu.name for gpu in self._place.gpus]
        self._folder.log("job leased", job=self._job.name, devices=addresses, waited_seconds=round(seconds, 3))
        if seconds >= WORTH_TELLING_SECONDS:
            waited = formatting.duration(seconds)
            self._warnings.append(f"it waited {waited} for GPUs that others had leased, which is not part of its time")

    async def _warn_of_unmanaged(self) -> None:
        if any(self._seen.get(gpu) for gpu in self._place.gpus):
            await asyncio.sleep(ownership.LINGER_SECONDS)
            self._seen = await gpu_processes.awaited(self._gpus())
            for warning in ownership.also_used(self._seen, _label):
                self._warn(warning)

    def _warn(self, message: str) -> None:
        self._warnings.append(message)
        log.warning("%s: %s", self._job.name, message)


def _label(gpu: Device) -> str:
    return formatting.device_label([gpu.as_dict()])
