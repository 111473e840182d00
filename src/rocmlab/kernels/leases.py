"""Leases: the exclusive right of one kernel to some devices, as file locks in `<share>/leases/`.

A lease is one `flock` for each device. Such a lock belongs to an open file description, which every process that
inherits the descriptor shares, and the operating system drops it when the last of them has closed it or has died.
Whoever wants the devices for a kernel takes the locks, hands the descriptors to the kernel's process and closes its
own copies: from then on the lease ends when the kernel ends, however it ends, and not before, whatever happens to the
runner or the worker that started it.

Processes that the kernel starts: what it executes (a shell command, a server in the background) does not get the
descriptor, and neither does the child of a child, so that nothing that outlives the kernel keeps its GPUs. What the
kernel forks itself and what continues running its code (the workers of a data loader) keeps the lease with it: they
belong to its process group and end with it. `rocmlab.kernels.forkserver.inheritance` sees to both.

Next to each lock is a file that names its holder. It is written after the lock was taken and is not removed with it:
only the lock counts, and the file of a free lock means nothing.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import functools
import getpass
import hashlib
import json
import logging
import os
import re
import socket
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, fields, replace
from datetime import datetime, timezone
from itertools import islice
from pathlib import Path
from typing import Any

from rocmlab.base import files
from rocmlab.base.safe import printable
from rocmlab.devices import Device
from rocmlab.devices.processes import namespace as pid_namespace

log = logging.getLogger("rocmlab")

ATTEMPTS = 3  # at a set of devices; another process may take one between the look and the lock
BUSY = (errno.EWOULDBLOCK, errno.EAGAIN, errno.EACCES)
MAX_BYTES = 65536  # of a holder's file


@dataclass(frozen=True)
class Holder:
    """Who holds a lease. Unknown is None: the file may be missing or truncated, and the lease is held all the same."""

    owner: str | None = None  # the user
    notebook: str | None = None  # its path
    pid: int | None = None  # of the kernel; of the runner or worker until it runs
    host: str | None = None  # host name, which in a container is the container's
    namespace: int | None = None  # of the process ids, as /proc/self/ns/pid numbers it; None outside Linux
    started: str | None = None  # UTC, ISO 8601

    @classmethod
    def here(cls, notebook: str) -> Holder:
        """Return a holder for a notebook of this process and this moment."""
        return cls(
            owner=_user(),
            notebook=notebook,
            pid=os.getpid(),
            host=socket.gethostname(),
            namespace=pid_namespace(),
            started=datetime.now(timezone.utc).isoformat(timespec="seconds").replace("+00:00", "Z"),
        )

    @classmethod
    def read(cls, path: Path) -> Holder:
        """Return what a file contains, whoever wrote it."""
        try:
            with path.open("rb") as file:
                found = json.loads(file.read(MAX_BYTES))
        except (OSError, ValueError, RecursionError):
            found = None
        if not isinstance(found, dict):
            return cls()
        known: dict[str, Any] = {}
        for field in fields(cls):
            value = found.get(field.name)
            kind = int if field.name in ("pid", "namespace") else str
            known[field.name] = value if isinstance(value, kind) and not isinstance(value, bool) else None
        return cls(**known)

    def __str__(self) -> str:
        """Return it as one short line, without control characters."""
        who = f"{self.owner or 'an unknown user'}" + (f" on {self.host}" if self.host else "")
        parts = (
            self.notebook or "an unknown notebook",
            f"(process {self.pid} of {who}" if self.pid else f"({who}",
            f"since {self.started})" if self.started else "since an unknown time)",
        )
        return printable(" ".join(parts))


@dataclass
class Lease:
    """Locks that this process holds, until it has released its copies of their descriptors."""

    devices: tuple[Device, ...]
    holder: Holder
    descriptors: tuple[int, ...]
    texts: tuple[Path, ...]  # of the locks, in the same order

    def describe(self, holder: Holder) -> None:
        """Write next to the locks who holds them. A file that cannot be written does not weaken the lock."""
        self.holder = holder
        for path in self.texts:
            try:
                files.write_text(path, files.to_json(asdict(holder)) + "\n")
            except OSError as err:
                log.warning("the lease is held, but its holder could not be written: %s: %s", path, err.strerror or err)

    def release(self) -> None:
        """Close this process's copies; the lease ends unless another process has one."""
        descriptors, self.descriptors = self.descriptors, ()
        for descriptor in descriptors:
            os.close(descriptor)

    def as_dict(self) -> dict[str, Any]:
        """Return what the process that inherits the descriptors needs, ready for JSON."""
        texts = [str(path) for path in self.texts]
        return {"holder": asdict(self.holder), "descriptors": list(self.descriptors), "texts": texts}

    @classmethod
    def inherited(cls, described: dict[str, Any]) -> Lease:
        """Return the lease that another process described; what this process starts does not inherit it by itself."""
        for descriptor in described["descriptors"]:
            os.set_inheritable(descriptor, False)
        texts = tuple(map(Path, described["texts"]))
        return cls((), Holder(**described["holder"]), tuple(described["descriptors"]), texts)

    def passed_to(self, pid: int) -> None:
        """Name the kernel that has inherited the locks as their holder, and let go of them."""
        self.describe(replace(self.holder, pid=pid))
        self.release()


class Leases:
    """The leases of one share. The same folder may be used by many processes and containers at once."""

    def __init__(self, folder: Path, try_lock: Callable[[int, int], bool] | None = None) -> None:
        """Use a folder, which is made when the first lease is taken.

        Args:
            folder: of the locks.
            try_lock: takes a lock on a descriptor (`LOCK_EX` or `LOCK_SH`), or returns False where another has it.
        """
        self.folder = folder
        self._try_lock = try_lock or flock

    @classmethod
    def of_share(cls, share: Path) -> Leases:
        """Return the leases of a share."""
        return cls(share / "leases")

    def take(self, devices: Sequence[Device], holder: Holder) -> Lease | None:
        """Lease all of these devices, or none: None if one of them is leased.

        The locks are taken in one order, whatever that of the devices, and never waited for: two that want the same
        devices cannot block each other.

        Raises:
            OSError: the folder cannot be written, or its file system has no locks.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        descriptors: list[int] = []
        names = sorted({key(device) for device in devices})
        try:
            for name in names:
                if (descriptor := self._lock(self._path(name))) is None:
                    break
                descriptors.append(descriptor)
        except BaseException:
            _close(descriptors)
            raise
        if len(descriptors) < len(names):
            _close(descriptors)
            return None
        texts = tuple(self._text(name) for name in names)
        lease = Lease(tuple(devices), holder, tuple(descriptors), texts)
        lease.describe(holder)
        return lease

    def pick(self, devices: Sequence[Device], count: int, holder: Holder) -> Lease | None:
        """Lease `count` of these devices, the first that are free; None if too few are.

        Raises:
            OSError: the folder cannot be written, or its file system has no locks.
        """
        for _ in range(ATTEMPTS):
            chosen = list(islice((device for device in devices if self.is_free(device)), count))
            if len(chosen) < count:
                return None
            if lease := self.take(chosen, holder):
                return lease
        return None

    def is_free(self, device: Device) -> bool:
        """Return whether a device is not leased.

        Raises:
            OSError: the lock cannot be looked at.
        """
        try:
            descriptor = _open(self._path(key(device)), create=False)
        except FileNotFoundError:
            return True
        try:
            return self._try_lock(descriptor, fcntl.LOCK_SH)  # two that look do not disturb each other
        finally:
            os.close(descriptor)

    def holder(self, device: Device) -> Holder | None:
        """Return who leases a device; None if it is free."""
        return None if self.is_free(device) else Holder.read(self._text(key(device)))

    def _lock(self, path: Path) -> int | None:
        """Return a descriptor that holds the lock; None if another holds it."""
        while True:
            descriptor = _open(path, create=True)
            try:
                if not self._try_lock(descriptor, fcntl.LOCK_EX):
                    os.close(descriptor)
                    return None
                if _is_current(descriptor, path):
                    return descriptor
            except BaseException:
                os.close(descriptor)
                raise
            os.close(descriptor)  # the file was removed meanwhile, and its lock excludes no one

    def _path(self, name: str) -> Path:
        return self.folder / f"{name}.lock"

    def _text(self, name: str) -> Path:
        return self.folder / f"{name}.json"


def key(device: Device) -> str:
    """Return the name of a device's lock: machine, backend, PCI address (else unique id, else name) and partition.

    The machine stands first, because several may share a folder over the network and have the same PCI addresses.
    """
    where = device.pci_address or device.unique_id or f"{device.name}-{device.index}"
    partition = "" if device.partition is None else f"partition{device.partition}"
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


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a uid without a name, as a container may have
        return f"uid {os.getuid()}"


def _open(path: Path, *, create: bool) -> int:
    flags = os.O_CLOEXEC | os.O_NOFOLLOW
    try:
        return os.open(path, flags | os.O_RDWR | (os.O_CREAT if create else 0), 0o666)
    except PermissionError:  # another user's file: it can be locked as long as it can be read
        return os.open(path, flags | os.O_RDONLY)


def flock(descriptor: int, kind: int) -> bool:
    """Take a lock without waiting; return False if another has it."""
    try:
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
    except OSError as err:
        if err.errno in BUSY:
            return False
        raise
    return True


def _is_current(descriptor: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), os.stat(path))
    except FileNotFoundError:
        return False


def _close(descriptors: Sequence[int]) -> None:
    for descriptor in descriptors:
        with contextlib.suppress(OSError):
            os.close(descriptor)
