"""Leases: the exclusive right of one kernel to some devices, as file locks in a folder of the host.

A lease is one `flock` for each device. Such a lock belongs to an open file description, which every process that
inherits the descriptor shares, and the operating system drops it when the last of them has closed it or has died.
Whoever wants the devices for a kernel takes the locks, hands the descriptors to the kernel's process and closes its
own copies: from then on the lease ends when the kernel ends, however it ends, and not before, whatever happens to the
runner or the worker that started it.

Processes that the kernel starts: what it executes (a shell command, a server in the background) does not get the
descriptor, and neither does the child of a child, so that nothing that outlives the kernel keeps its GPUs. What the
kernel forks itself and what continues running its code (the workers of a data loader) keeps the lease with it: they
belong to its process group and end with it. `rocmlab.kernels.forkserver.inheritance` sees to both.

All users and labs of a host use the same folder (`rocmlab.base.lease_folder`), in which no one can remove or change the
files of another. A lock is an empty file that everyone may open; a note names the holder (`rocmlab.kernels.holders`),
and is held together with the locks. A note also keeps its GPUs from others where the file of the lock was removed.

Who finds no free GPU may wait with a ticket (`rocmlab.kernels.tickets`); `pick` gives no one what is kept for a waiter
that came earlier.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import functools
import hashlib
import logging
import os
import re
import secrets
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import Any

from rocmlab.base import host_limits, lease_folder
from rocmlab.base.errors import Problem, RocmlabError
from rocmlab.base.host_limits import HostLimits
from rocmlab.devices import Device, system_root
from rocmlab.kernels import holders, tickets
from rocmlab.kernels.holders import Holder as Holder
from rocmlab.kernels.holders import flock as flock
from rocmlab.kernels.tickets import Ticket as Ticket
from rocmlab.kernels.tickets import Waiter as Waiter

log = logging.getLogger("rocmlab")

ATTEMPTS = 3  # at a set of devices; another process may take one between the look and the lock
NO_LOCKS = (errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS, errno.EBADF)


class UnusableLock(RocmlabError):
    """The lock of one GPU cannot be used; those of others can."""


@dataclass
class Lease:
    """Locks that this process holds, until it has released its copies of their descriptors."""

    devices: tuple[Device, ...]
    holder: Holder
    descriptors: tuple[int, ...]  # of the locks, and of the note
    names: tuple[str, ...]  # of the locks, in the same order
    _using: threading.RLock = field(default_factory=threading.RLock, repr=False, compare=False)

    def describe(self, holder: Holder) -> None:
        """Write who holds the locks. A note that cannot be written does not weaken them."""
        self.holder = holder
        try:
            with self._using:  # the number of a descriptor that another thread closes may be another file's at once
                if self.descriptors:
                    holders.write(self.descriptors[-1], holder, self.names)
        except OSError as err:
            log.warning("the lease is held, but its holder could not be written: %s", err.strerror or err)

    def release(self) -> None:
        """Close this process's copies; the lease ends unless another process has one."""
        with self._using:
            descriptors, self.descriptors = self.descriptors, ()
            for descriptor in descriptors:
                os.close(descriptor)

    def as_dict(self) -> dict[str, Any]:
        """Return what the process that inherits the descriptors needs, ready for JSON."""
        return {"holder": asdict(self.holder), "descriptors": list(self.descriptors), "names": list(self.names)}

    @classmethod
    def inherited(cls, described: dict[str, Any]) -> Lease:
        """Return the lease that another process described; what this process starts does not inherit it by itself."""
        for descriptor in described["descriptors"]:
            os.set_inheritable(descriptor, False)
        return cls((), Holder(**described["holder"]), tuple(described["descriptors"]), tuple(described["names"]))

    def passed_to(self, pid: int) -> None:
        """Name the kernel that has inherited the locks as their holder, and let go of them."""
        self.describe(replace(self.holder, pid=pid))
        self.release()


class Leases:
    """The leases of one host. The same folder may be used by many processes, users and containers at once."""

    def __init__(
        self,
        folder: Path,
        try_lock: Callable[[int, int], bool] | None = None,
        limits: Callable[[], HostLimits] = HostLimits,
    ) -> None:
        """Use a folder, which is made when the first lease is taken.

        Args:
            folder: of the locks.
            try_lock: takes a lock on a descriptor (`LOCK_EX` or `LOCK_SH`), or returns False where another has it.
            limits: returns what the host allows its users; without, everything.
        """
        self.folder = folder
        self._try_lock = try_lock or flock
        self.limits = limits

    @classmethod
    def of_host(cls, environment: Mapping[str, str] | None = None, root: Path | None = None) -> Leases:
        """Return the leases of this host, or of the simulated one that the environment names."""
        given = os.environ if environment is None else environment
        where = root or system_root()
        read = functools.partial(host_limits.read, where)
        is_of_lab = bool(given.get(lease_folder.OF_LAB))  # whose GPUs are leased already, so a drained host gives none
        return cls(
            lease_folder.path(given, where), limits=(lambda: replace(read(), drained=None)) if is_of_lab else read
        )

    def check(self, devices: Sequence[Device] = ()) -> None:
        """Make the folder; raise RocmlabError unless this user can lease one of these devices, or for wrong limits."""
        lease_folder.ensure(self.folder)
        self.limits()
        unusable = self.unusable(devices)
        if devices and len(unusable) == len(devices):
            raise unusable[devices[0]]

    def take(self, devices: Sequence[Device], holder: Holder) -> Lease | None:
        """Lease all of these devices, or none: None if one of them is leased.

        The locks are taken in one order, whatever that of the devices, and never waited for: two that want the same
        devices cannot block each other.

        Raises:
            RocmlabError: a lock or the note cannot be made or opened; the error names the fix.
        """
        found = self._take(devices, holder)
        return found if isinstance(found, Lease) else None

    def _take(self, devices: Sequence[Device], holder: Holder) -> Lease | str:
        """Return a lease, or the name of the lock that another has."""
        self.check()
        descriptors: list[int] = []
        names = sorted({key(device) for device in devices})
        try:
            for name in names:
                with self._explained(self._path(name)):
                    descriptor = self._lock(self._path(name))
                if descriptor is None:
                    _close(descriptors)
                    return name
                descriptors.append(descriptor)
            with self._explained(self.folder):
                descriptors.append(holders.note(self.folder))
        except BaseException:
            _close(descriptors)
            raise
        lease = Lease(tuple(devices), holder, tuple(descriptors), tuple(names))
        try:
            if self.limits().gpus_per_user is None:
                lease.describe(holder)
            else:
                with self._explained(self.folder):  # a lease without a note would not be counted
                    holders.write(descriptors[-1], holder, names)
            lost = self._claimed(lease) or self._beyond_limit(lease)
        except BaseException:
            lease.release()
            raise
        if lost:
            lease.release()
            return lost
        return lease

    def _beyond_limit(self, lease: Lease) -> str | None:
        """Return a lock of a new lease with which its user would have more GPUs than the host allows, else None.

        As each writes its note before it counts, two of one user's processes cannot both miss the other's.
        """
        allowed = self.limits().gpus_per_user
        is_beyond = allowed is not None and lease.names and self._count_of_user() > allowed
        return lease.names[0] if is_beyond else None

    def _count_of_user(self) -> int:
        claims = holders.read(self.folder)
        return sum(any(holder.uid == os.getuid() for holder in each) for each in claims.values())

    def left(self) -> int | None:
        """Return how many more GPUs this user may lease now, on a drained host 0; None: any number.

        Raises:
            RocmlabError: the file of the host's limits is wrong.
        """
        limits = self.limits()
        return 0 if limits.drained is not None else self._left(limits)

    def _left(self, limits: HostLimits) -> int | None:
        allowed = limits.gpus_per_user
        return None if allowed is None else max(0, allowed - self._count_of_user())

    def _claimed(self, lease: Lease) -> str | None:
        """Return a lock of a new lease that another note claims: the file that its holder locked was removed.

        Each writes its note before it reads those of the others, so two never both miss the other's.
        """
        for pause in (0, holders.PAUSE_SECONDS):  # a lease that is just ending closes its note last
            time.sleep(pause)
            claims = holders.read(self.folder, besides=lease.descriptors[-1])
            claimed = next((name for name in lease.names if name in claims), None)
            if claimed is None:
                return None
        return claimed

    def pick(self, devices: Sequence[Device], count: int, holder: Holder, ticket: Ticket | None = None) -> Lease | None:
        """Lease `count` of these devices, the first that are free; None if too few are. An unusable lock is not free.

        Nor is what is kept for those who wait, or wait longer than the one with this ticket; nor has a user more GPUs
        than the host allows.

        Raises:
            RocmlabError: as of `take`; or that number is never allowed, or the file of the host's limits is wrong.
        """
        self.check_allowed(count)
        left = self.left()
        if left is not None and left < count:
            return None
        unusable = self.unusable(devices)
        kept = self.kept(ticket)
        devices = [device for device in devices if key(device) not in kept]
        failures: Counter[str] = Counter()  # one may look free and not be: others only look, or keep a shared lock
        is_second_look = False  # for a moment others may lock what is free, to see whether it is
        for _ in range(ATTEMPTS + len(devices)):
            possible = [each for each in devices if each not in unusable and failures[key(each)] < ATTEMPTS]
            likely = (device for device in possible if self.is_free(device))
            chosen = list(islice(likely, count))
            if len(chosen) < count and is_second_look:
                return None
            if len(chosen) < count:
                is_second_look = True
                continue
            found = self._take(chosen, holder)
            if isinstance(found, Lease):
                return found
            failures[found] += 1
        return None

    def join(self, devices: Sequence[Device], count: int, holder: Holder) -> Ticket:
        """Return a ticket for `count` of these devices: the last place of the queue, until it is closed.

        Raises:
            RocmlabError: it cannot be made; the error names the fix.
        """
        self.check()
        with self._explained(self.folder):
            return Ticket(self.folder, holder, [key(device) for device in devices], count)

    def check_allowed(self, count: int) -> None:
        """Raise RocmlabError if this host allows no user that number of GPUs."""
        limits = self.limits()
        if limits.gpus_per_user is not None and count > limits.gpus_per_user:
            raise RocmlabError(
                f"{count} GPUs are more than one user of this host may have",
                limits.where(f"{host_limits.MAX_GPUS}={limits.gpus_per_user}"),
                f"request {limits.gpus_per_user} or fewer; or ask the administrator of this host",
            )

    def why_not_more(self, count: int) -> str | None:
        """Return why this user may not lease that number of GPUs now, which the host allows; None if it may."""
        limits = self.limits()
        if count and (drained := limits.why_drained()):
            return drained
        left = self._left(limits)
        if left is None or left >= count:
            return None
        setting = limits.where(f"{host_limits.MAX_GPUS}={limits.gpus_per_user}")
        return f"this user may lease {left} more GPUs now: {setting}"

    def renew(self, ticket: Ticket, devices: Sequence[Device], count: int) -> None:
        """Show that who has a ticket still waits, and for what.

        Raises:
            RocmlabError: it cannot be written.
        """
        left = self._left(self.limits())
        with self._explained(self.folder):
            ticket.renew(list(map(key, devices)), count, is_at_limit=left is not None and left < count)

    def waiting(self) -> list[Waiter]:
        """Return who waits for GPUs of this host, in the order in which they are served."""
        return tickets.waiting(self.folder)

    def kept(self, ticket: Ticket | None = None) -> dict[str, Waiter]:
        """Return by its lock (see `key`) which free GPU is kept for whom: those before a ticket, or all who wait."""
        return tickets.kept_for(self.waiting(), self._is_name_free, ticket)

    def unusable(self, devices: Sequence[Device]) -> dict[Device, UnusableLock]:
        """Return which of these devices no one knows to be free, because something else is in the place of their lock.

        Raises:
            RocmlabError: no lock of this folder can be looked at.
        """
        return self._look(devices)[0]

    def _look(self, devices: Sequence[Device]) -> tuple[dict[Device, UnusableLock], list[Device]]:
        """Return which of these devices have an unusable lock, and which are leased."""
        unusable, leased = dict[Device, UnusableLock](), list[Device]()
        for device in devices:
            try:
                if not self.is_free(device):
                    leased.append(device)
            except UnusableLock as err:
                unusable[device] = err
        return unusable, leased

    def is_free(self, device: Device) -> bool:
        """Return whether a device is not leased.

        Raises:
            RocmlabError: the lock cannot be looked at.
        """
        return self._can_lock(self._path(key(device)), fcntl.LOCK_SH)  # two that look do not disturb each other

    def _is_name_free(self, name: str) -> bool:
        try:
            return self._can_lock(self._path(name), fcntl.LOCK_SH)
        except UnusableLock:
            return False

    def holder(self, device: Device) -> Holder | None:
        """Return who leases a device, or keeps a shared lock so that no one can; None if it is free.

        Raises:
            RocmlabError: no lock of this folder can be looked at.
        """
        return self.held([device]).get(device)

    def held(self, devices: Sequence[Device]) -> dict[Device, Holder]:
        """Return who has each of these devices; free ones are omitted. See `holder`."""
        unusable, leased = self._look(devices)
        claims = holders.read(self.folder)
        shared = holders.sharers([self._path(key(device)) for device in devices if device not in leased])
        found: dict[Device, Holder] = {}
        for device in devices:
            path = self._path(key(device))
            if device in unusable:
                problem = unusable[device].problem
                found[device] = Holder(notebook=f"an unknown notebook: {problem.why}; {problem.fix}")
            elif device in leased or key(device) in claims:
                found[device] = holders.one_of(claims.get(key(device), ()), path)
            elif kept := shared[path]:
                found[device] = kept[0]
            elif self._is_kept(path):
                found[device] = Holder()
        return found

    def _is_kept(self, path: Path) -> bool:
        """Return whether a process that cannot be seen here, such as one of another container, keeps a shared lock."""
        if self._can_lock(path, fcntl.LOCK_EX):
            return False
        time.sleep(holders.LOOK_AGAIN_SECONDS)
        return not self._can_lock(path, fcntl.LOCK_EX)

    def _can_lock(self, path: Path, kind: int) -> bool:
        with self._explained(path):
            try:
                descriptor = holders.opened(path)
            except FileNotFoundError:
                return True
            try:
                return self._try_lock(descriptor, kind)
            finally:
                os.close(descriptor)

    @contextlib.contextmanager
    def _explained(self, path: Path) -> Iterator[None]:
        """Turn what the operating system says about a file of the folder into an error that names the fix."""
        try:
            yield
        except OSError as err:
            if found := lease_folder.problem(self.folder):
                raise RocmlabError.of(found) from err
            why = err.strerror or str(err)
            if err.errno in NO_LOCKS:
                fix = f"{lease_folder.SETTING} must be on a local file system with locks, such as {lease_folder.USUAL}"
            elif err.errno in (errno.ENOSPC, errno.EDQUOT, errno.EMFILE, errno.ENFILE):
                fix = f"free what is used up, then retry; see: df -h {self.folder}; ulimit -n"
            elif path != self.folder:
                raise UnusableLock.of(lease_folder.unusable_lock(path, why)) from err
            else:
                fix = f"see what is wrong there: ls -ld {path}"
            raise RocmlabError.of(Problem(f"a GPU cannot be leased: {path}", why, fix)) from err

    def _lock(self, path: Path) -> int | None:
        """Return a descriptor that holds the lock; None if another holds it."""
        while True:
            descriptor = _opened(path)
            try:
                if not self._try_lock(descriptor, fcntl.LOCK_EX):
                    os.close(descriptor)
                    return None
                if holders.is_current(descriptor, path):
                    return descriptor
            except BaseException:
                os.close(descriptor)
                raise
            os.close(descriptor)  # the file was removed meanwhile, and its lock excludes no one

    def _path(self, name: str) -> Path:
        return self.folder / f"{name}.lock"


def key(device: Device) -> str:
    """Return the name of a device's lock: machine, backend, and which device of them it is.

    That is the render node, which every container calls as the host does. One that was given a single partition of a
    card cannot know its number, nor with older drivers the card's PCI address. Devices without a render node have their
    PCI address (else unique id, else name) and partition.

    The machine stands first, because several may share a folder over the network and have the same devices.
    """
    render = Path(device.render_node).name if device.render_node else None
    where = render or device.pci_address or device.unique_id or f"{device.name}-{device.index}"
    partition = "" if render or device.partition is None else f"partition{device.partition}"
    kind = f"simulated-{device.backend}" if device.simulated else device.backend
    text = "-".join(filter(None, (_machine(), kind, where, partition)))
    return re.sub(r"[^\w.-]", "-", text)


@functools.cache
def _machine() -> str:
    """Return an identifier of this machine that is the same in all its containers. Source: the kernel's boot id."""
    try:
        text = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii")
    except (OSError, ValueError):
        text = socket.gethostname()  # not Linux: it has no containers
    return hashlib.sha256(text.strip().encode()).hexdigest()[:8]


def _opened(path: Path) -> int:
    """Open a lock, and make it where it is missing; it appears with its mode, so that no other user is shut out.

    It is opened before it is made: in such a folder Linux may refuse to "create" what another user has created.
    """
    with contextlib.suppress(FileNotFoundError):
        return holders.opened(path)
    draft = path.with_name(f".{path.name}-{secrets.token_hex(8)}")
    descriptor = os.open(draft, os.O_RDONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644)
    try:
        os.fchmod(descriptor, 0o644)  # whatever the umask
        with contextlib.suppress(FileExistsError):
            os.link(draft, path)
    finally:
        os.close(descriptor)
        draft.unlink(missing_ok=True)
    return holders.opened(path)


def _close(descriptors: Sequence[int]) -> None:
    for descriptor in descriptors:
        with contextlib.suppress(OSError):
            os.close(descriptor)
