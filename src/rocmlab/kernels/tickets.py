"""Tickets: who waits for GPUs of this host, in which order, and what is kept free for them.

A waiter has two files in the folder of the leases. The ticket is empty, and locked for writing as long as its waiter
waits: as a note of a holder, it counts only while its own user's process has it open, so a waiter that dies leaves the
queue by itself, in whichever container it was. Its place is the time at which it got its name, as the file system
says it (`ctime`): its owner can make that later, and not earlier. A request next to it shows who waits for how many of
which locks; it is written again when that changes, and touched at each look.

A waiter that has not looked for `STOPPED_SECONDS` is skipped (a paused container, a stopped process), and so is one
whose user may have no more GPUs. Both keep their place.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import secrets
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rocmlab.kernels import holders
from rocmlab.kernels.holders import Holder

NAME = re.compile(r"ticket-[0-9a-f]{16}")
LOCK = re.compile(r"[\w.-]+")  # a lock's name: another user's request leads to no other file
STOPPED_SECONDS = 60.0


@dataclass(frozen=True)
class Waiter:
    """Who waits for GPUs."""

    holder: Holder  # that it will be
    locks: tuple[str, ...]  # of the GPUs among which it chooses
    count: int  # of them that it needs
    since_seconds: float  # Unix time
    is_stopped: bool  # it has not looked for a while, so that others do not wait for it
    is_at_limit: bool  # its user may have no more GPUs now, so that others do not wait for it
    place: tuple[int, str]  # what orders the queue

    @property
    def is_in_turn(self) -> bool:
        """Whether those after it wait for it."""
        return not (self.is_stopped or self.is_at_limit)

    def __str__(self) -> str:
        """Return it as one short line."""
        return str(self.holder)


class Ticket:
    """A place in the queue, until it is closed or this process ends; one thread may close it while another renews."""

    def __init__(self, folder: Path, holder: Holder, locks: Sequence[str], count: int) -> None:
        """Take the last place.

        Raises:
            OSError: no file can be made.
        """
        remove_stale(folder)
        self._using = threading.Lock()  # the number of a closed descriptor may be another file's at once
        name = f"ticket-{secrets.token_hex(8)}"
        self._path, self._request_path = folder / name, folder / f"{name}.json"
        self._content: dict[str, Any] | None = None
        self._holder = holder
        self._request: int | None = _made(self._request_path)
        self._descriptor: int | None = None
        try:
            self.renew(locks, count)
            draft = folder / f".{name}"
            self._descriptor = _made(draft)
            try:
                if not holders.lock(self._descriptor):
                    raise OSError(f"another process has locked {draft}")
                draft.rename(self._path)  # from here on it is the last of the queue
            except BaseException:
                draft.unlink(missing_ok=True)
                raise
            self.name = name
        except BaseException:
            self.close()
            raise

    def renew(self, locks: Sequence[str], count: int, *, is_at_limit: bool = False) -> None:
        """Show that its waiter still looks, and for what; its place stays."""
        content = {**asdict(self._holder), "locks": list(locks), "count": count, "is_at_limit": is_at_limit}
        with self._using:
            if self._request is None:
                return
            if content != self._content:
                holders.replace_content(self._request, content)
                self._content = content
            else:
                os.utime(self._request)

    def close(self) -> None:
        """Leave the queue."""
        with self._using:
            for path, descriptor in ((self._path, self._descriptor), (self._request_path, self._request)):
                if descriptor is not None:
                    with contextlib.suppress(OSError):
                        path.unlink()
                    os.close(descriptor)
            self._descriptor = self._request = None


def waiting(folder: Path) -> list[Waiter]:
    """Return who waits, in the order in which they are served."""
    found = (_read(path) for path in holders.paths_named(folder, NAME))
    return sorted((waiter for waiter in found if waiter), key=lambda waiter: waiter.place)


def kept_for(
    waiters: Sequence[Waiter], is_free: Callable[[str], bool], ticket: Ticket | None = None
) -> dict[str, Waiter]:
    """Return by its lock which free GPU is kept for whom.

    Each waiter gets as many as it needs, or as there are: what is free is kept until a request for several can be met.

    Args:
        waiters: in the order of the queue.
        is_free: returns whether a lock is free.
        ticket: only what is kept for those before it is returned; None: for all.
    """
    kept: dict[str, Waiter] = {}
    looked: defaultdict[int | None, dict[str, bool]] = defaultdict(dict)  # by user: whether a lock is free
    others = Counter(
        name for waiter in waiters for name in waiter.locks
    )  # of those after a waiter, how many can use it
    for waiter in waiters:
        others.subtract(waiter.locks)
        if ticket and waiter.place[1] == ticket.name:
            break
        if not waiter.is_in_turn:
            continue
        seen = looked[waiter.holder.uid]
        for name in waiter.locks:
            if name not in seen and len(seen) < holders.MAX_LOCKS:  # more are only to slow others down
                seen[name] = is_free(name)
        free = [name for name in waiter.locks if name not in kept and seen.get(name)]
        for name in sorted(free, key=others.__getitem__)[: waiter.count]:  # those first that few others can use
            kept[name] = waiter
    return kept


def remove_stale(folder: Path) -> None:
    """Remove what waiters of this user that died have left."""
    for path in holders.remove_stale(holders.paths_named(folder, NAME)):
        with contextlib.suppress(OSError):
            path.with_name(f"{path.name}.json").unlink()


def _read(path: Path) -> Waiter | None:
    """Return who has this ticket; None if no one any more."""
    try:
        descriptor = holders.opened(path)
    except OSError:
        return None
    try:
        status = os.fstat(descriptor)
        if not holders.is_locked(descriptor):
            return None
    except OSError:
        return None
    finally:
        os.close(descriptor)
    for pause in (0, *holders.REREAD_SECONDS):
        if pause:
            time.sleep(pause)
        with contextlib.suppress(OSError, ValueError, RecursionError):
            return _waiter(path, status)
    return None


def _waiter(path: Path, status: os.stat_result) -> Waiter | None:
    descriptor = holders.opened(path.with_name(f"{path.name}.json"))
    try:
        of_request = os.fstat(descriptor)
        content = json.loads(os.pread(descriptor, holders.MAX_BYTES, 0))
    finally:
        os.close(descriptor)
    if of_request.st_uid != status.st_uid or not isinstance(content, dict):
        return None
    locks, count = content.get("locks"), content.get("count")
    if not isinstance(locks, list) or not isinstance(count, int) or count > holders.MAX_LOCKS:
        return None
    return Waiter(
        holder=Holder.of(content, status.st_uid),
        locks=tuple(dict.fromkeys(name for name in map(str, locks[: holders.MAX_LOCKS]) if LOCK.fullmatch(name))),
        count=max(0, count),
        since_seconds=status.st_ctime,
        is_stopped=abs(time.time() - of_request.st_mtime) > STOPPED_SECONDS,  # later: the clock was set, or its time
        is_at_limit=content.get("is_at_limit") is True,
        place=(status.st_ctime_ns, path.name),
    )


def _made(path: Path) -> int:
    """Make a file that other users can read, whatever the umask."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644)
    try:
        os.fchmod(descriptor, 0o644)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor
