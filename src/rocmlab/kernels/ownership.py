"""What a kernel owns: some GPUs and the lease on them, or the CPU alone; or the reason why it gets neither."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from typing import Any

from rocmlab.base.errors import RocmlabError
from rocmlab.base.safe import printable
from rocmlab.devices import Device, discover, system_root, visibility
from rocmlab.kernels import gpu_processes
from rocmlab.kernels.gpu_processes import GpuProcess
from rocmlab.kernels.gpus import Gpus, are_mixed, label, look
from rocmlab.kernels.leases import Holder, Lease, Leases, Ticket, key

log = logging.getLogger("rocmlab")

LINGER_SECONDS = 0.5  # the driver still lists a process that has just ended
UNNAMED = "a kernel without a notebook"
GONE = (
    "Kernel > Restart Kernel… takes another GPU, unless this kernel is for that one alone;\n"
    "make doctor, on the host, shows what is wrong with it;\n"
    "or compute on the CPU: Kernel > Change Kernel… > {title} (CPU)"
)
FULL = "you have as many GPUs as a user of this host may have"
DRAINED = "this machine gives no new GPUs"
WHAT_TO_DO = (
    "in a notebook that no longer needs its GPU: Kernel > Shut Down Kernel,\n"
    "then here: Kernel > Restart Kernel…, which retries;\n"
    "or compute on the CPU: Kernel > Change Kernel… > {title} (CPU)"
)
WAITS = (
    "wait: this kernel was then number {place} in the queue of this host; when it is its turn, it is restarted with\n"
    "its GPU (Kernel > Shut Down Kernel leaves the queue); or free a GPU:\n"
)


@dataclass
class Owned:
    """What one kernel has been given."""

    devices: tuple[Device, ...] = ()  # none: the CPU
    lease: Lease | None = None  # this process's copy; the kernel has another
    is_shared: bool = False  # no one can reserve its GPU, so that it is not masked either
    warnings: tuple[str, ...] = ()

    def environment(self, base: Mapping[str, str]) -> dict[str, str]:
        """Return the kernel's environment: `base` with the masks that give it these GPUs and no other."""
        return dict(base) if self.is_shared else visibility.apply(base, self.devices)

    def belongs_to(self, pid: int) -> None:
        """Name the kernel's process as the holder. Unlike `Lease.passed_to` this keeps our copy, for a restart."""
        if self.lease:
            self.lease.describe(replace(self.lease.holder, pid=pid))

    def release(self) -> None:
        """Close this process's copy: the lease ends with the kernel's process, or now if that has ended."""
        if self.lease:
            self.lease.release()

    def banner(self) -> str:
        """Return for the user what the kernel has."""
        lines = [_described(device, is_leased=self.lease is not None) for device in self.devices]
        if not self.devices:
            lines = ["a GPU that every program shares: no lease" if self.is_shared else "CPU: this kernel has no GPU"]
        if are_mixed(self.devices):
            lines.append("these GPUs are of different kinds (mixed)")
        if any(device.simulated for device in self.devices):
            lines.append("SIMULATED: not a GPU of this machine; the CPU computes")
        return "\n".join([*lines, *(f"warning: {printable(text)}" for text in self.warnings)]) + "\n"


class NotFree(RocmlabError):
    """What a kernel requests is leased, or kept for others; it may wait for its turn."""

    turn: Turn | None = None  # its place in the queue; None: it does not wait


class Turn:
    """A kernel's place among all who wait for GPUs of this host, until it gets some or leaves."""

    def __init__(
        self,
        leases: Leases,
        found: tuple[Sequence[Device], int],
        look_again: Callable[[], tuple[Sequence[Device], int]],
        holder: Holder,
        title: str,
    ) -> None:
        """Make a first attempt possible; `join` begins the waiting.

        Args:
            leases: of the host.
            found: the GPUs among which the kernel may choose, and how many it needs.
            look_again: returns the same as it is later: GPUs vanish and appear, which numbers the others again.
            holder: for whom.
            title: of the framework, for messages.
        """
        self._leases = leases
        self._options, self._count = found
        self._look_again = look_again
        self._holder = holder
        self._title = title
        self._ticket: Ticket | None = None

    @property
    def count(self) -> int:
        """How many GPUs the kernel waits for."""
        return self._count

    @property
    def ticket_name(self) -> str | None:
        """What it is called in the queue; None: it does not wait."""
        ticket = self._ticket
        return ticket.name if ticket else None

    def attempt(self) -> Owned | None:
        """Lease what the kernel needs if that is free and it is its turn; that ends the waiting.

        Raises:
            RocmlabError: no lease can be taken, or what the kernel needs is not there any more.
        """
        ticket = self._ticket  # another thread may leave meanwhile
        if ticket is not None:
            self._options, self._count = self._look_again()
            self._leases.renew(ticket, self._options, self._count)
        seen = gpu_processes.in_time(self._options)
        holder = replace(self._holder, started=Holder.here("").started)
        owned = take(self._leases, self._options, self._count, holder, seen, ticket)
        if owned is not None:
            self.leave()
            return checked(owned)
        return None

    def join(self) -> None:
        """Begin to wait."""
        if self._ticket is None:
            self._ticket = self._leases.join(self._options, self._count, self._holder)
            self._leases.renew(self._ticket, self._options, self._count)

    def leave(self) -> None:
        """Wait no more."""
        ticket, self._ticket = self._ticket, None
        if ticket is not None:
            ticket.close()

    def not_free(self) -> NotFree:
        """Return the error that shows who has the GPUs, and whether the kernel waits."""
        leases, options, count = self._leases, self._options, self._count
        holders = leases.held(options)
        held = [(device, holders.get(device)) for device in options]
        now = datetime.now(timezone.utc).strftime("%H:%M:%S")
        free = sum(holder is None for _, holder in held)
        if len(options) == 1:
            what = f"GPU {options[0].index} is not free" if options[0].index is not None else "the GPU is not free"
        elif count == 1:
            what = "no GPU is free"
        else:
            what = f"{count} GPUs are not free together: {free} of {len(options)} are"
        lines = [f"{label(device)}\n  leased to {holder}" for device, holder in held if holder]
        kept = leases.kept(self._ticket)
        lines += [
            f"{label(each)}\n  kept for {kept[key(each)]}, who waits longer" for each in options if key(each) in kept
        ]
        if limit := leases.why_not_more(count):
            is_drained = leases.limits().drained is not None
            what = DRAINED if is_drained else FULL
            lines = [limit, *lines]
        why = "\n".join([f"at {now} UTC, when this kernel was started:", *lines])
        fix = WHAT_TO_DO.format(title=self._title)
        if self._ticket is not None:
            names = [waiter.place[1] for waiter in leases.waiting()]
            place = names.index(self._ticket.name) + 1 if self._ticket.name in names else len(names)
            fix = WAITS.format(place=place) + fix
        found = NotFree(what, why, fix, exit_code=1)
        found.turn = self if self._ticket is not None else None
        return found


def claim(
    wanted: int | str, notebook: str | None, environment: Mapping[str, str], title: str, *, waits: bool = False
) -> Owned:
    """Lease what a kernelspec requests.

    Args:
        wanted: that many GPUs, whichever are free (1 on a lab without GPUs is the CPU); `all` of them or nothing; 0 the
            CPU; or the PCI address of one.
        notebook: whose kernel it is.
        environment: of the server, with its masks and the folder of the leases.
        title: of the framework, for messages.
        waits: take a place in the queue where that is not free now; the error has it.

    Raises:
        NotFree: that is not available now; it names the holders.
        RocmlabError: no lease can be taken on this host.
    """
    if isinstance(wanted, bool) or not isinstance(wanted, int | str) or (isinstance(wanted, int) and wanted < 0):
        raise RocmlabError(
            f"the kernelspec asks for {wanted!r} GPUs",
            "it is a number, `all`, or a PCI address",
            "rocmlab kernels install",
        )
    if wanted in (0, "0"):
        return Owned()
    gpus = _look(environment, title)
    if gpus.is_shared or not gpus.devices:
        if gpus.is_shared or wanted in (1, "1"):
            return Owned(is_shared=gpus.is_shared)
        raise RocmlabError(
            "this lab has no GPU", f"this kernel is for {_as_text(wanted)}", f"choose the kernel {title}"
        )

    def look_again() -> tuple[list[Device], int]:
        return _options(wanted, _look(environment, title), title)

    holder = Holder.here(notebook or UNNAMED)
    turn = Turn(Leases.of_host(environment), _options(wanted, gpus, title), look_again, holder, title)
    owned = turn.attempt()
    if owned is None:
        try:
            if waits:
                turn.join()
            refusal = turn.not_free()
        except BaseException:
            turn.leave()
            raise
        raise refusal
    return owned


def _look(environment: Mapping[str, str], title: str) -> Gpus:
    """Return the GPUs of this lab; raise RocmlabError if it is meant for some and has none."""
    gpus = look(environment)
    if found := gpus.problem:
        fix = f"{found.fix}\nor compute on the CPU: Kernel > Change Kernel… > {title} (CPU)"
        raise RocmlabError(found.what, found.why, fix)
    return gpus


def _options(wanted: int | str, gpus: Gpus, title: str) -> tuple[list[Device], int]:
    """Return among which GPUs the kernel may choose, and how many it gets."""
    devices = list(gpus.devices)
    if not devices:
        raise RocmlabError(
            "this lab has no GPU any more",
            "it had when this kernel began to wait for one",
            f"on the host: make doctor; or compute on the CPU: Kernel > Change Kernel… > {title} (CPU)",
        )
    if wanted == "all":
        return devices, len(devices)
    if isinstance(wanted, int) or wanted.isdecimal():
        count = int(wanted)
        if count > len(devices):
            raise RocmlabError(
                f"this kernel asks for {count} GPUs", f"this lab has {len(devices)}", "choose another kernel"
            )
        return devices, count
    named = [device for device in devices if device.pci_address == wanted]
    if not named:
        raise RocmlabError(
            f"the GPU {printable(wanted)} is missing",
            "this kernel is for that one, and the lab has: " + ", ".join(map(label, devices)),
            f"choose another kernel: Kernel > Change Kernel… > {title} (one free GPU); `make up` updates the list",
        )
    return named, len(named)


def renumbered(owned: Owned, title: str) -> Owned:
    """Return what a kernel has with the numbers that its GPUs have now.

    A lock is called by the render node, which stays. A mask counts the GPUs that are there, so when one vanishes or
    appears the same number may name a GPU that another kernel has leased.

    Args:
        owned: with a lease.
        title: of the framework, for messages.

    Raises:
        RocmlabError: one of its GPUs is gone, or cannot be used any more.
    """
    devices = numbered(owned.devices, "this kernel", GONE.format(title=title))
    if [device.index for device in devices] == [leased.index for leased in owned.devices]:
        return owned
    return _warned(replace(owned, devices=tuple(devices), warnings=()))  # those name it by its old number


def numbered(gpus: Sequence[Device], who: str, fix: str) -> list[Device]:
    """Return GPUs as they are now, each with the number by which a mask names it.

    Raises:
        RocmlabError: one of them is gone, or cannot be used any more; `who` had it, and `fix` is what to do.
    """
    present = {_identity(device): device for device in discover(system_root(), {})}  # no mask: it would hide by number
    found = []
    for gpu in gpus:
        device = present.get(_identity(gpu))
        if device is None or not device.is_usable:
            raise _gone(gpu, device, who, fix)
        found.append(device)
    return found


def _identity(device: Device) -> tuple[str, str | None]:
    return key(device), device.pci_address


def _gone(leased: Device, present: Device | None, who: str, fix: str) -> RocmlabError:
    name = label(replace(leased, index=None))  # its number may be another's now
    if present is not None:
        return RocmlabError(
            f"{name}, which {who} had, cannot be used any more",
            present.why_not or "its driver does not report the cause",
            fix,
        )
    return RocmlabError(
        f"{name}, which {who} had, is gone",
        f"no GPU is there now with its address and its render node ({leased.render_node or 'unknown'})",
        fix,
    )


def checked(owned: Owned) -> Owned:
    """Return it with a warning for each GPU that processes use without a lease."""
    try:
        return _warned(owned)
    except BaseException:
        owned.release()
        raise


def _warned(owned: Owned) -> Owned:
    found = [*owned.warnings]
    if any(gpu_processes.in_time(owned.devices).values()):
        time.sleep(LINGER_SECONDS)  # this is called in a thread of its own
        found += also_used(gpu_processes.in_time(owned.devices), label)
    for text in found:
        log.warning("%s", printable(text))
    return replace(owned, warnings=tuple(found))


def take(
    leases: Leases,
    options: Sequence[Device],
    count: int,
    holder: Holder,
    seen: Mapping[Device, Sequence[GpuProcess]],
    ticket: Ticket | None = None,
) -> Owned | None:
    """Lease some of these GPUs; None if too few are free, or others wait for them who came earlier.

    Args:
        leases: of the host.
        options: which may be given.
        count: how many are needed.
        holder: for whom.
        seen: processes that use them without a lease; these GPUs are taken last.
        ticket: its place among those who wait; None: behind all of them.

    Raises:
        RocmlabError: no lease can be taken here; a GPU is never given without one.
    """
    lease = leases.pick(_clean_first(options, seen), count, holder, ticket)
    return Owned(tuple(device for device in options if device in lease.devices), lease) if lease else None


def _clean_first(options: Sequence[Device], seen: Mapping[Device, Sequence[GpuProcess]]) -> tuple[Device, ...]:
    return tuple(sorted(options, key=lambda device: bool(seen.get(device))))


def also_used(seen: Mapping[Device, Sequence[GpuProcess]], name: Callable[[Device], str]) -> list[str]:
    """Return a warning for each GPU that processes use without a lease."""
    return [
        f"{name(device)} is also used by {', '.join(map(str, others))}, without a lease"
        for device, others in seen.items()
        if others
    ]


def _described(device: Device, *, is_leased: bool) -> str:
    return f"{label(device)}, {'leased to this kernel' if is_leased else 'NOT leased'}"


def _as_text(wanted: int | str) -> str:
    return {"all": "all GPUs"}.get(str(wanted), f"the GPU {wanted}" if ":" in str(wanted) else f"{wanted} GPUs")


def notebook_of(environment: Mapping[str, Any]) -> str | None:
    """Return the path that jupyter_server gives a kernel, the shorter if it lies below the server's own folder."""
    path = environment.get("JPY_SESSION_NAME")
    if not path:
        return None
    here = os.getcwd()
    text = str(path)
    return os.path.relpath(text, here) if text.startswith(here + os.sep) else text
