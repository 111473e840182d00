"""What a server knows in addition to samples: its kernels, leases, problems, and idle kernels that hold memory."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from rocmlab.base import live
from rocmlab.base.errors import RocmlabError
from rocmlab.devices import Device, discover
from rocmlab.devices.processes import namespace
from rocmlab.lab.server import idle, look
from rocmlab.lab.server.kernels import Kernels, Row
from rocmlab.lab.server.paths import Shown
from rocmlab.lab.server.shared_reader import SharedReader
from rocmlab.lab.server.wire import failure
from rocmlab.telemetry.model import Snapshot, device_id

LEASES_SECONDS = 2.0  # between two looks
DOCTOR_SECONDS = 300.0  # each time costs some 40 ms of a core with eight GPUs
DOCTOR_LEAST_SECONDS = 60.0
TIMEOUT_SECONDS = 3.0  # with the doctor, for who waits for it
NEVER = float("-inf")


class State:
    """What is queried again only when the last answer is old."""

    def __init__(self, root: Path, kernels: Kernels, shown: Shown) -> None:
        self.root = root
        self._shown = shown
        self.rows: tuple[Row, ...] = ()  # of the kernels; replaced as a whole, because the sampler's thread reads it
        self.found: list[Row] = []  # by the doctor
        self._kernels = kernels
        self._held: list[Row] | None = None  # None: unknown
        self._held_problems: list[Row] = []
        self._tickets: list[str] = []  # of all who wait for GPUs, in the order of the queue
        self._leases_asked = self._doctor_asked = NEVER
        self._asking: asyncio.Task[None] | None = None  # the doctor
        self._examined: Sequence[Device] = ()  # the devices when the doctor was started
        self._known: Sequence[Device] = ()
        self._devices: SharedReader[list[Device]] = SharedReader("the devices", 10.0)
        self._leases: SharedReader[tuple[list[Row], list[Row], list[str]]] = SharedReader("the leases", 5.0)
        self._problems: SharedReader[list[Row]] = SharedReader("the doctor's findings", 60.0)

    async def devices(self) -> list[Device]:
        """Return every device of the host."""
        self._known = found = await self._devices.do(lambda: discover(self.root))
        return found

    async def kernels(self) -> list[Row]:
        """Return the current kernels; of those that wait for GPUs with their place in the queue, if it is known."""
        rows = await self._kernels.rows()
        if any(row["queue"] for row in rows):
            await self._look_at_leases(())
        rows = [{**row, "queue": _placed(row["queue"], self._tickets)} for row in rows]
        self.rows = tuple(rows)
        return rows

    async def leases(self, devices: Sequence[Device]) -> list[Row] | None:
        """Return who holds which GPU, None if that cannot be read.

        Those of our kernels have the notebook's current path and the kernel's id. `local_pid` is the holder's process
        as this server counts, None if it is in another PID namespace.
        """
        await self._look_at_leases(devices)
        return None if self._held is None else _named(self._held, self.rows)

    async def _look_at_leases(self, devices: Sequence[Device]) -> None:
        if time.monotonic() - self._leases_asked >= LEASES_SECONDS:
            self._leases_asked = time.monotonic()
            try:
                seen = devices or self._known or await self.devices()
                self._held, self._held_problems, self._tickets = await self._leases.do(lambda: self._look(seen))
            except Exception as err:
                self._held, self._held_problems, self._tickets = None, [failure("leases cannot be shown", err)], []

    def _look(self, seen: Sequence[Device]) -> tuple[list[Row], list[Row], list[str]]:
        rows, waiters = look.leases(seen, self._shown), look.waiting()
        return rows, look.queue(rows, waiters), [waiter.place[1] for waiter in waiters]

    def forget_leases(self) -> None:
        """Look at them again next time, because something was done to a kernel."""
        self._leases_asked = NEVER

    def begin_to_ask_doctor(self, devices: Sequence[Device], told: Callable[[], None]) -> None:
        """Ask the doctor again, if the last answer is old, and sooner if the host has other devices than then.

        Args:
            devices: as the sampler has them now.
            told: called when there is another answer.
        """
        is_asked = self._asking is not None and not self._asking.done()
        quiet = time.monotonic() - self._doctor_asked
        self._examined = self._examined or devices  # the sampler may have no devices yet when the doctor starts
        is_other = quiet >= DOCTOR_LEAST_SECONDS and _ids(devices) != _ids(self._examined)
        if not is_asked and (is_other or quiet >= DOCTOR_SECONDS):
            self._doctor_asked, self._examined = time.monotonic(), devices
            self._asking = asyncio.ensure_future(self._ask(told))

    async def doctor_answered(self) -> None:
        """Wait for the doctor, if it runs, but not for long."""
        if self._asking is not None:
            await asyncio.wait([self._asking], timeout=TIMEOUT_SECONDS)

    async def _ask(self, told: Callable[[], None]) -> None:
        try:
            self.found = await self._problems.do(lambda: look.problems(self.root))
        except Exception as err:
            self.found = [failure("the doctor could not run", err)]
        told()

    async def now(self, snapshot: Snapshot | None, devices: Sequence[Device], failures: Sequence[Row]) -> Row:
        """Return all of it, ready for JSON; snapshot, devices and failures are the sampler's, as far as known."""
        problems: list[Row] = list(failures)
        holders: list[Row] = []
        rows: list[Row] = []
        try:
            rows = await self.kernels()
            holders = idle.holders(rows, snapshot.processes if snapshot else None, idle.Limits.of(live.values()))
        except RocmlabError as err:
            problems.append(failure("", err))
        except Exception as err:
            problems.append(failure("the kernels cannot be listed", err))
        leases = await self.leases(devices)
        return {
            "leases": leases,
            "kernels": rows,
            "problems": _distinct([*problems, *self._held_problems, *self.found]),
            "idle_holders": holders,
        }

    def tasks(self) -> list[asyncio.Task[None]]:
        """Return what is under way."""
        return [self._asking] if self._asking else []


def _ids(devices: Sequence[Device]) -> list[str]:
    return [device_id(device) for device in devices]


def _distinct(problems: Sequence[Row]) -> list[Row]:
    """Return each once: the sampler may have found what the doctor finds."""
    return list({problem["what"]: problem for problem in problems}.values())


def _placed(queue: Row | None, tickets: Sequence[str]) -> Row | None:
    """Return for how many GPUs a kernel waits, and its place; None where it is not known yet."""
    if queue is None:
        return None
    place = tickets.index(queue["ticket"]) + 1 if queue["ticket"] in tickets else None
    return {"gpus": queue["gpus"], "place": place, "length": len(tickets) if place else None}


def _named(leases: Sequence[Row], kernels: Sequence[Row]) -> list[Row]:
    # Also by the start: what was read of a device a moment ago may be the lease of the kernel before.
    owners = {
        (device, kernel["since"]): kernel for kernel in kernels if kernel["since"] for device in kernel["devices"]
    }
    found, own = [], namespace()
    for lease in leases:
        kernel = owners.get((lease["device"], lease["started"]))
        notebook = (kernel["notebook"] if kernel else None) or lease["notebook"]
        added = {
            "notebook": notebook,
            "local_pid": lease["pid"] if lease["namespace"] == own else None,
            "kernel_id": kernel["kernel_id"] if kernel else None,
        }
        found.append({**lease, **added})
    return found
