"""Who holds a lease: a note in the folder of the leases, which its holder keeps locked as long as it has the lease.

A note belongs to the user who wrote it, and no other can change it; one that is not locked is out of date. Its lock is
one for writing (`F_OFD_SETLK`), which only who may write the file can take: no other user can make an old note count
again. Like a `flock` it belongs to the open file, which the kernel inherits. What a note says is its writer's own
account, so the uid, which the file system knows, is shown with it. A lock without a note is looked up in `/proc/locks`,
which names the process that took it.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import getpass
import json
import math
import os
import re
import secrets
import socket
import stat
import struct
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from rocmlab.base import formatting
from rocmlab.base.safe import printable
from rocmlab.devices.processes import namespace as pid_namespace

USER = "ROCMLAB_USER"  # who started the lab, for its container, whose own user has another name
LAB = "ROCMLAB_LAB"  # the lab's name
NAME = re.compile(r"holder-[0-9a-f]{16}\.json")
MAX_BYTES = 65536  # of a note
MAX_NOTES = 128  # of one user; more are not read: only someone who wants to slow others down makes so many
MAX_LOCKS = 256  # of a note or a request; a host has fewer GPUs
MAX_NAME, MAX_PATH = 64, 4096  # characters of a text in it
MAX_SHOWN = 200  # of a path in a line
NUMBERS = ("pid", "namespace", "uid", "expected_seconds")
MAX_NUMBER = 2**53  # with a larger one another user's note could stop who computes with it
TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", re.ASCII)
ATTEMPTS = 20
PAUSE_SECONDS = 0.005
REREAD_SECONDS = (0.001, 0.001)  # a note that is being written
LOOK_AGAIN_SECONDS = 0.05  # who only looks at a lock has released it by then
LOCK = struct.Struct("hhqqi4x")  # Linux's `struct flock`: type, whence, start, length, process
PROC_LOCK = re.compile(r"\d+: FLOCK +ADVISORY +(?:READ|WRITE) +(\d+) ([0-9a-f]+):([0-9a-f]+):(\d+) ")


@dataclass(frozen=True)
class Holder:
    """Who holds a lease. Unknown is None: the note may be missing or damaged, and the lease is held all the same."""

    owner: str | None = None  # the user, as on the host
    notebook: str | None = None  # its path
    pid: int | None = None  # of the kernel; of the runner or worker until it runs
    host: str | None = None  # host name, which in a container is the container's
    namespace: int | None = None  # of the process ids, as /proc/self/ns/pid numbers it; None outside Linux
    started: str | None = None  # UTC, ISO 8601
    lab: str | None = None  # its name; None outside a lab
    uid: int | None = None  # of the note's file, so as the file system says it; in a container 65534 may be any other
    ends: str | None = None  # UTC: others wait, and it is to end then, if it is idle; None for most
    expected_seconds: int | None = None  # how long it holds the lease, by its earlier runs; None for most

    @classmethod
    def here(cls, notebook: str, expected_seconds: float | None = None) -> Holder:
        """Return a holder for a notebook of this process and this moment."""
        return cls(
            owner=os.environ.get(USER) or _user(),
            notebook=notebook,
            pid=os.getpid(),
            host=socket.gethostname(),
            namespace=pid_namespace(),
            started=formatting.utc(datetime.now(timezone.utc)),
            lab=os.environ.get(LAB) or None,
            uid=os.getuid(),
            expected_seconds=None if expected_seconds is None else math.ceil(expected_seconds),
        )

    @classmethod
    def of(cls, found: Mapping[str, Any], uid: int | None) -> Holder:
        """Return what a note says, whoever wrote it; `uid` is whose file it is."""
        known: dict[str, Any] = {}
        for field in fields(cls):
            value = found.get(field.name)
            kind = int if field.name in NUMBERS else str
            known[field.name] = value if isinstance(value, kind) and not isinstance(value, bool) else None
            if kind is int and known[field.name] is not None and not 0 <= known[field.name] <= MAX_NUMBER:
                known[field.name] = None
            if isinstance(known[field.name], str):
                longest = MAX_PATH if field.name == "notebook" else MAX_NAME
                known[field.name] = printable(known[field.name][:longest])
        if known["ends"] and not TIME.fullmatch(known["ends"]):  # the panel shows it without its author
            known["ends"] = None
        return cls(**{**known, "uid": uid})

    def who(self) -> str:
        """Return the user, after the uid unless it is this process's own: a name is only what a note claims."""
        name = self.owner or "an unknown user"
        return f"uid {self.uid} ({name})" if self._is_of_another() else name

    def _is_of_another(self) -> bool:
        return self.uid not in (None, os.getuid()) and self.owner != f"uid {self.uid}"

    def __str__(self) -> str:
        """Return it as one short line, without control characters. It begins with the uid, if that is another's."""
        who = (
            (self.owner or "an unknown user")
            + (f" on {self.host}" if self.host else "")
            + (f", lab {self.lab}" if self.lab else "")
        )
        path = self.notebook or "an unknown notebook"
        parts = (
            f"uid {self.uid}:" if self._is_of_another() else "",
            path if len(path) <= MAX_SHOWN else f"…{path[-MAX_SHOWN:]}",
            f"(process {self.pid} of {who}" if self.pid else f"({who}",
            f"since {self.started})" if self.started else "since an unknown time)",
            f"which others wait for: it ends at {self.ends} if it is idle then" if self.ends else "",
        )
        return printable(" ".join(filter(None, parts)))


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a uid without a name, as a container may have
        return f"uid {os.getuid()}"


# -- writing ----------------------------------------------------------------------------------------------------------


def note(folder: Path) -> int:
    """Make a note, empty and locked, and return its descriptor. What this user's ended leases have left is removed.

    Raises:
        OSError: it cannot be made.
    """
    remove_stale(paths_named(folder, NAME))
    for _ in range(ATTEMPTS):
        path = folder / f"holder-{secrets.token_hex(8)}.json"
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644)
        try:
            os.fchmod(descriptor, 0o644)  # whatever the umask: other users are to see who has the GPU
            if lock(descriptor) and is_current(descriptor, path):
                return descriptor
        except BaseException:
            os.close(descriptor)
            raise
        with contextlib.suppress(OSError):  # someone looked at it just then
            path.unlink()
        os.close(descriptor)
        time.sleep(PAUSE_SECONDS)
    raise OSError(errno.EAGAIN, "other processes keep locking what this one has just made", str(folder))


def write(descriptor: int, holder: Holder, names: Sequence[str]) -> None:
    """Write into a note who has the locks of these names; in place, as the file is what is locked.

    Raises:
        OSError: the disk is full, for example.
    """
    replace_content(descriptor, {**asdict(holder), "locks": list(names)})


def replace_content(descriptor: int, content: Mapping[str, Any]) -> None:
    """Write JSON in place; raise OSError if the disk is full, for example."""
    text = (json.dumps(content) + "\n").encode()
    text = text.ljust(os.fstat(descriptor).st_size)  # one write, which no reader finds half done
    if os.pwrite(descriptor, text, 0) < len(text):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def remove_stale(paths: Sequence[Path]) -> list[Path]:
    """Remove this user's files that no process keeps locked, and return them."""
    removed = []
    for path in paths:
        with contextlib.suppress(OSError):
            descriptor = opened(path, os.O_RDWR)  # those of other users cannot be written
            try:
                if os.fstat(descriptor).st_uid == os.getuid() and lock(descriptor):
                    path.unlink()
                    removed.append(path)
            finally:
                os.close(descriptor)
    return removed


# -- reading ----------------------------------------------------------------------------------------------------------


def read(folder: Path, besides: int | None = None) -> dict[str, list[Holder]]:
    """Return by the name of the lock who claims to hold it: one, unless someone claims what another has.

    Args:
        folder: of the leases.
        besides: descriptor of a note that is not read.
    """
    own = None if besides is None else os.fstat(besides)
    found: dict[str, list[Holder]] = {}
    paths = paths_named(folder, NAME)
    for pause in (0, *REREAD_SECONDS):
        time.sleep(pause if paths else 0)
        paths = [path for path in paths if not _add(path, own, found)]
    return found


def _add(path: Path, own: os.stat_result | None, found: dict[str, list[Holder]]) -> bool:
    """Add what a note claims, if its holder lives; return False if it must be read again as it is being written."""
    try:
        descriptor = opened(path)
    except OSError:
        return True
    try:
        status = os.fstat(descriptor)
        if (own and os.path.samestat(own, status)) or not is_locked(descriptor):
            return True
        content = json.loads(os.pread(descriptor, MAX_BYTES, 0))
    except (ValueError, RecursionError):
        return False
    except OSError:
        return True
    finally:
        os.close(descriptor)
    names = content.get("locks") if isinstance(content, dict) else None
    if isinstance(names, list):
        holder = Holder.of(content, status.st_uid)
        for name in dict.fromkeys(map(str, names[:MAX_LOCKS])):
            found.setdefault(name, []).append(holder)
    return True


def one_of(claims: Sequence[Holder], lock: Path) -> Holder:
    """Return the holder of a lock that is held, from all who claim it; several are named together."""
    if len(claims) > 1:
        return Holder(owner="one of " + "; ".join(sorted({claim.who() for claim in claims})))
    return claims[0] if claims else next(iter(processes([lock])[lock]), Holder())


def lock(descriptor: int) -> bool:
    """Lock a whole file for writing; return False if another process has locked it."""
    try:
        fcntl.fcntl(descriptor, fcntl.F_OFD_SETLK, LOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0))
    except (BlockingIOError, PermissionError):
        return False
    return True


def is_locked(descriptor: int) -> bool:
    """Return whether a file is locked for writing; looking takes no lock, so it disturbs no one."""
    found = fcntl.fcntl(descriptor, fcntl.F_OFD_GETLK, LOCK.pack(fcntl.F_RDLCK, os.SEEK_SET, 0, 0, 0))
    kind: int = LOCK.unpack(found)[0]
    return kind == fcntl.F_WRLCK


def paths_named(folder: Path, name: re.Pattern[str]) -> list[Path]:
    """Return the files of such a name, each under one of its names, and at most `MAX_NOTES` of each user."""
    found: dict[int, Path] = {}
    counts: Counter[int] = Counter()
    with contextlib.suppress(OSError), os.scandir(folder) as entries:
        for entry in (each for each in entries if name.fullmatch(each.name) and each.inode() not in found):
            with contextlib.suppress(FileNotFoundError):
                uid = entry.stat(follow_symlinks=False).st_uid
                counts[uid] += 1
                if counts[uid] <= MAX_NOTES:
                    found[entry.inode()] = Path(entry.path)
    return list(found.values())


def processes(locks: Sequence[Path]) -> dict[Path, list[Holder]]:
    """Return for each lock the processes, other than this one, that have taken it, as far as they are visible here.

    Source: `/proc/locks`. The uid is that of the process, and its name stands for the notebook's.
    """
    taken: dict[tuple[int, int, int], dict[int, None]] = {}
    with contextlib.suppress(OSError, ValueError):
        for match in map(PROC_LOCK.match, Path("/proc/locks").read_text(encoding="ascii").splitlines()):
            if match:
                inode = int(match[2], 16), int(match[3], 16), int(match[4])
                taken.setdefault(inode, {})[int(match[1])] = None
    return {
        lock: [holder for pid in taken.get(_inode(lock), ()) if pid != os.getpid() for holder in _process(pid)]
        for lock in locks
    }


def _inode(path: Path) -> tuple[int, int, int]:
    """Return a file's device and number as `/proc/locks` has them; zeros where it cannot be looked at."""
    try:
        found = os.stat(path)
    except OSError:
        return 0, 0, 0
    return os.major(found.st_dev), os.minor(found.st_dev), found.st_ino


def _process(pid: int) -> Iterator[Holder]:
    with contextlib.suppress(OSError):
        uid = os.stat(f"/proc/{pid}").st_uid
        name = Path(f"/proc/{pid}/comm").read_text(encoding="utf-8", errors="replace").strip()
        yield Holder(owner=f"uid {uid}", notebook=f"the program {name}", pid=pid, namespace=pid_namespace(), uid=uid)


def sharers(locks: Sequence[Path]) -> dict[Path, list[Holder]]:
    """Return for each lock who keeps it shared, so that no one else can lease the GPU; not who only looks at it."""
    before = processes(locks)
    if any(before.values()):
        time.sleep(LOOK_AGAIN_SECONDS)
        again = processes(locks)
        return {lock: [holder for holder in again[lock] if holder in before[lock]] for lock in locks}
    return before


# -- files ------------------------------------------------------------------------------------------------------------


def opened(path: Path, flags: int = os.O_RDONLY) -> int:
    """Open a file of the folder to lock and read it; a link, FIFO or device that someone put there is rejected.

    Raises:
        OSError: it cannot be opened, or is not a regular file.
    """
    descriptor = os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "it is not a regular file", str(path))
    return descriptor


def flock(descriptor: int, kind: int) -> bool:
    """Take a lock without waiting; return False if another has it."""
    try:
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except PermissionError:  # as some file systems say it
        return False
    return True


def is_current(descriptor: int, path: Path) -> bool:
    """Return whether a path still leads to the file that is open."""
    try:
        return os.path.samestat(os.fstat(descriptor), os.stat(path, follow_symlinks=False))
    except FileNotFoundError:
        return False
