"""Which lab of the hub gets which GPUs, in the order of the host's own queue.

A lab that waits has a ticket there, among kernels and runs of the host that wait as well. The lab's own process takes
the lease, so the ticket keeps its GPUs until that has happened.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from rocmlab.base.errors import RocmlabError
from rocmlab.devices import Device
from rocmlab.kernels.holders import Holder
from rocmlab.kernels.leases import Leases, key
from rocmlab.kernels.tickets import Ticket, Waiter

LOOK_SECONDS = 1.0
WHAT = "a lab of the hub"  # in place of a notebook, where others see who waits


@dataclass(eq=False)
class Place:
    """The place of one lab, until it is closed."""

    user: str
    count: int
    ticket: Ticket
    secret: str = field(default_factory=lambda: secrets.token_urlsafe(16))  # who has it may give the place up
    is_cancelled: bool = False

    def close(self) -> None:
        """Leave the queue."""
        self.ticket.close()


class Queue:
    """The GPUs of this host as the hub gives them to labs."""

    def __init__(self, leases: Leases, devices: Callable[[], Sequence[Device]]) -> None:
        self._leases = leases
        self.devices = devices

    def held(self) -> Mapping[Device, Holder]:
        """Return who has each GPU."""
        return self._leases.held(self.devices())

    def join(self, user: str, count: int) -> Place:
        """Take the last place of the host's queue.

        Raises:
            RocmlabError: no ticket can be made, or this host has fewer GPUs.
        """
        devices = self.devices()
        if count > len(devices):
            raise RocmlabError(f"{count} GPUs cannot be given", f"this machine has {len(devices)}", "choose fewer")
        return Place(user, count, self._leases.join(devices, count, replace(Holder.here(WHAT), owner=user)))

    async def wait(self, place: Place, limit_seconds: float, check: Callable[[], None] = lambda: None) -> list[Device]:
        """Wait until its GPUs are free, and return them; the place keeps them until it is closed.

        Args:
            place: of the lab.
            limit_seconds: how long it waits.
            check: raises RocmlabError once no lab is started any more.

        Raises:
            RocmlabError: they are not free in time, or the user has given up.
        """
        deadline = time.monotonic() + limit_seconds
        while True:
            check()
            found = await asyncio.to_thread(self._look, place)
            if place.is_cancelled:
                raise RocmlabError("the start was cancelled", f"{place.user} no longer waits", "start the lab again")
            if len(found) >= place.count:
                return found[: place.count]
            if time.monotonic() > deadline:
                gpus = f"{place.count} GPU{'s were' if place.count > 1 else ' was'}"
                raise RocmlabError(
                    f"{gpus} not free in {limit_seconds:.0f} s",
                    "; ".join(self.lines()) or "others wait before this lab",
                    "start the lab again, or start it without GPUs of its own (HUB_WAIT_SECONDS limits the wait)",
                )
            await asyncio.sleep(LOOK_SECONDS)

    def _look(self, place: Place) -> list[Device]:
        """Return which GPUs are free and kept for no one who waits longer."""
        devices = self.devices()
        self._leases.renew(place.ticket, devices, place.count)
        taken, kept = self._leases.held(devices), self._leases.kept(place.ticket)
        return [device for device in devices if device not in taken and key(device) not in kept]

    def waiting(self) -> list[Waiter]:
        """Return who waits for GPUs of this host, of the hub or not, in the order in which they are served."""
        return self._leases.waiting()

    def ahead(self, place: Place) -> int:
        """Return how many wait longer."""
        names = [waiter.place[1] for waiter in self._leases.waiting()]
        return names.index(place.ticket.name) if place.ticket.name in names else 0

    def is_leased(self, devices: Sequence[Device]) -> bool:
        """Return whether each of these GPUs has a lease."""
        return len(self._leases.held(devices)) == len(devices)

    def lines(self) -> list[str]:
        """Return who has which GPU, a line each."""
        return [f"{label(device)}: {holder.who()}" for device, holder in self.held().items()]


def label(device: Device) -> str:
    """Return how users call a GPU."""
    return f"GPU {device.index}: {device.name}" if device.index is not None else device.name
