"""The root under which `/sys`, `/proc` and `/dev` are read: `/`, or a folder that simulates a host.

Every read of a system file goes through here. Nothing raises: whatever cannot be read is None. Only ordinary files are
opened (never a FIFO or a device), and at most 64 KiB are taken from one.
A simulated host may have faults: `rocmlab-faults.json` in its root names files that fail (`"EIO"`) or `"hang"`.
"""

from __future__ import annotations

import errno
import os
import stat
import time
from collections.abc import Callable, Iterator
from pathlib import Path

TYPE_CHECKING = False  # `typing` itself would cost milliseconds at each start
if TYPE_CHECKING:
    from rocmlab.base.errors import Problem

LIMIT_BYTES = 65536
INTEGER_LIMIT = 2**64  # what a kernel file can mean; anything beyond is damage
FAULTS_FILE = "rocmlab-faults.json"
SIMULATED_DRIVER = "simulated-driver-"  # so begins the name of the library that programs on a simulated host load
HANG_POLL_SECONDS = 0.05

on_read: Callable[[str], None] | None = None  # told of every file before it is read, for a watchdog
_faults_by_root: dict[str, tuple[int, dict[str, str]]] = {}  # root: time of change, faults


def hanging(what: str) -> Problem:
    """Return the problem of a driver that does not answer."""
    from rocmlab.base.errors import Problem

    fix = "see `sudo dmesg | grep -i -e amdgpu -e nvrm | tail`; a hung GPU needs a restart"
    return Problem(what, "the GPU or its driver hangs", fix)


def system_root() -> Path:
    """Return `$ROCMLAB_ROOT` as an absolute path, by default `/`."""
    return Path(os.path.abspath(os.environ.get("ROCMLAB_ROOT") or "/"))


def is_simulated(root: Path) -> bool:
    """Return whether `root` is a simulated host and not this machine."""
    return os.path.realpath(root) != "/"


def has_simulated_driver() -> bool:
    """Return whether this process was started on a simulated host, so that a framework also lists that host's GPUs."""
    return SIMULATED_DRIVER in os.environ.get("LD_PRELOAD", "")


def read_bytes(path: Path | str, limit: int = LIMIT_BYTES) -> bytes | None:
    """Return at most `limit` bytes of an ordinary file, or None if it cannot be read."""
    name = os.fspath(path)
    try:
        announce(name)
        handle = open_file(name)
        try:
            return _drain(handle, min(limit, LIMIT_BYTES))
        finally:
            os.close(handle)
    except (OSError, ValueError):  # ValueError: a NUL byte in the name
        return None


def open_file(name: str) -> int:
    """Open an ordinary file to read; never wait for it, as for a FIFO.

    Raises:
        OSError: it is not an ordinary file, or cannot be opened.
    """
    if not stat.S_ISREG(os.stat(name).st_mode):
        raise OSError(errno.EINVAL, "no ordinary file", name)
    return os.open(name, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY)


def _drain(handle: int, limit: int) -> bytes:
    content = os.read(handle, limit)
    while content and len(content) < limit:
        more = os.read(handle, limit - len(content))
        if not more:
            break
        content += more
    return content


def is_denied(path: Path | str) -> bool:
    """Return whether the kernel refuses to let this process read a file (EPERM), as a container's device rules do."""
    name = os.fspath(path)
    try:
        announce(name)
        handle = open_file(name)
        try:
            os.read(handle, 1)
        finally:
            os.close(handle)
    except (OSError, ValueError) as err:
        return isinstance(err, OSError) and err.errno == errno.EPERM
    return False


def read_text(path: Path | str) -> str | None:
    """Return a small system file without padding (captures pad with NUL bytes), or None if it cannot be read."""
    return to_text(read_bytes(path))


def to_text(content: bytes | None) -> str | None:
    """Return the content of a small system file, or None."""
    return None if content is None else content.split(b"\0", 1)[0].decode("utf-8", "replace").strip()


def read_integer(path: Path | str) -> int | None:
    """Return the decimal number in a system file, or None if there is none of at most 64 bits."""
    return integer(read_text(path))


def integer(text: str | None) -> int | None:
    """Return a decimal number of at most 64 bits, or None."""
    digits = (text or "").removeprefix("-")
    if not (digits.isascii() and digits.isdigit()) or len(digits) > 20:
        return None
    number = int(text or "")
    return number if abs(number) < INTEGER_LIMIT else None


def list_names(path: Path | str) -> list[str]:
    """Return the sorted names in a folder; empty if it cannot be listed."""
    name = os.fspath(path)
    try:
        announce(name)
        return sorted(os.listdir(name))
    except (OSError, ValueError):
        return []


def link_name(path: Path | str) -> str | None:
    """Return the last part of what a symbolic link points to (`0000:03:00.0`), or None if it is not a link."""
    try:
        return os.path.basename(os.readlink(path)) or None
    except (OSError, ValueError):
        return None


def announce(name: str) -> None:
    """Say which file is read next, and let it fail as the simulated host it belongs to demands.

    Raises:
        OSError: the simulated host has this fault for the file.
    """
    announce_only(name)
    for root in _possible_roots(name):
        fault = _fault(root, name)
        while fault == "hang":
            time.sleep(HANG_POLL_SECONDS)
            fault = _fault(root, name)
        if fault:
            number = getattr(errno, fault, errno.EIO)
            raise OSError(number, os.strerror(number), name)


def must_announce(root: str) -> bool:
    """Return whether reads below a root must be announced one by one: a watchdog listens, or that host has faults."""
    return on_read is not None or (os.access(f"{root}/{FAULTS_FILE}", os.F_OK) and bool(_faults(root)))


def announce_only(name: str) -> None:
    """Tell a watchdog what is touched next."""
    if on_read is not None:
        on_read(name)


def _possible_roots(name: str) -> Iterator[str]:
    """Yield what may be a simulated root: all that precedes a `/sys/`, `/proc/` or `/dev/`."""
    for mark in ("/sys/", "/proc/", "/dev/"):
        at = name.find(mark, 1)
        while at > 0:
            yield name[:at]
            at = name.find(mark, at + 1)


def _fault(root: str, name: str) -> str | None:
    faults = _faults(root)
    if not faults:
        return None
    return faults.get(os.path.relpath(os.path.realpath(name), os.path.realpath(root)))


def _faults(root: str) -> dict[str, str]:
    path = f"{root}/{FAULTS_FILE}"
    try:
        changed = os.stat(path).st_mtime_ns
    except (OSError, ValueError):
        return {}
    if _faults_by_root.get(root, (None,))[0] != changed:
        _faults_by_root[root] = (changed, _parse_faults(path))
    return _faults_by_root[root][1]


def _parse_faults(path: str) -> dict[str, str]:
    import json

    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            found = json.loads(file.read(LIMIT_BYTES * 16))
    except (OSError, ValueError, RecursionError):
        return {}
    return {str(name): str(word) for name, word in found.items()} if isinstance(found, dict) else {}
