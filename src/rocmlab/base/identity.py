"""Which process is which: by number and start time, so that no other process with a reused number is meant.

Source: `/proc/<pid>/stat` (field 22), `environ`, `cmdline` and `cwd` on Linux (proc(5)); `ps` and `lsof` on macOS.
"""

from __future__ import annotations

import os
import signal
import stat
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

SERVER = "ROCMLAB_SERVER"  # the variable with the random mark of a native lab's server
NODE = "ROCMLAB_RAY_NODE"  # the same of a native lab's Ray node
HAS_PROC = sys.platform == "linux"
LOOK_SECONDS = 0.05


@dataclass(frozen=True)
class Process:
    """One process, and no later one with the same number."""

    pid: int
    started: str  # clock ticks since boot on Linux, a date on macOS: compared, never read

    @property
    def is_alive(self) -> bool:
        """Return whether it still runs; a zombie does not."""
        return start_of(self.pid) == self.started

    def send(self, number: int) -> None:
        """Send a signal to this very process; nothing happens where it has exited or belongs to another user."""
        try:
            descriptor = os.pidfd_open(self.pid)  # type: ignore[attr-defined,unused-ignore]
        except ProcessLookupError:
            return
        except (AttributeError, OSError):  # macOS, or a kernel before 5.3
            descriptor = None
        try:
            if not self.is_alive:
                return
            if descriptor is None:
                os.kill(self.pid, number)
            else:  # reaches the process that was just checked, even if its number is given away meanwhile
                signal.pidfd_send_signal(descriptor, number)  # type: ignore[attr-defined,unused-ignore]
        except (ProcessLookupError, PermissionError):
            return  # exited, or a program that the user started with sudo in a terminal
        finally:
            if descriptor is not None:
                os.close(descriptor)


def find(pid: int) -> Process | None:
    """Return the process that has this number now, or None."""
    started = start_of(pid)
    return None if started is None else Process(pid, started)


def start_of(pid: int) -> str | None:
    """Return when a process started, None where it has exited."""
    if pid <= 0:
        return None
    if not HAS_PROC:
        return _ps(pid, "lstart=") or None
    found = _stat(pid)
    return found[1] if found else None


def _stat(pid: int | str) -> tuple[int, str] | None:
    """Return the parent and the start time of a living process. Source: fields 3, 4 and 22 of `/proc/<pid>/stat`."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_bytes().rsplit(b")", 1)[1].split()
        return None if fields[0] in (b"Z", b"X") else (int(fields[1]), fields[19].decode("ascii"))
    except (OSError, IndexError, ValueError):
        return None


def uid_of(pid: int) -> int | None:
    """Return whose process it is, None where it has exited."""
    if not HAS_PROC:
        found = _ps(pid, "uid=")
        return int(found) if found.isdecimal() else None
    try:
        return os.stat(f"/proc/{pid}").st_uid
    except OSError:
        return None


def variable(pid: int, name: str) -> str | None:
    """Return a variable that a process was started with; None where it has none, or is not ours to read."""
    if not HAS_PROC:
        words = _ps(pid, "command=", "-E").split()
        return next((word.partition("=")[2] for word in words if word.startswith(f"{name}=")), None)
    try:
        entries = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return None
    start = os.fsencode(f"{name}=")
    return next((os.fsdecode(entry[len(start) :]) for entry in entries if entry.startswith(start)), None)


def arguments_of(pid: int) -> list[str]:
    """Return the command line of a process, empty where it has exited."""
    if not HAS_PROC:
        return _ps(pid, "command=").split()
    try:
        return [os.fsdecode(word) for word in Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")[:-1]]
    except OSError:
        return []


def with_word(word: str) -> dict[int, list[str]]:
    """Return the processes whose command lines have this word, of whatever user, with their command lines."""
    if not HAS_PROC:
        rows = [line.split() for line in _output("ps", "-A", "-o", "pid=,command=").splitlines()]
        return {int(row[0]): row[1:] for row in rows if word in row[1:]}
    return {pid: words for pid in _all() if word in (words := arguments_of(pid))}


def folder_of(pid: int) -> Path | None:
    """Return the current folder of a process; None where it has exited, or is not ours to read."""
    try:
        if HAS_PROC:
            return Path(os.readlink(f"/proc/{pid}/cwd"))
        output = _output("lsof", "-a", "-p", str(pid), "-d", "cwd", "-F", "n")
        return next((Path(line[1:]) for line in output.splitlines() if line.startswith("n")), None)
    except OSError:
        return None


def family(parent: Process) -> list[Process]:
    """Return a process and all below it (kernels, terminals, and what they started), parents first."""
    if not parent.is_alive:
        return []
    children: dict[int, list[Process]] = {}
    for pid, (above, started) in _all().items():
        children.setdefault(above, []).append(Process(pid, started))
    found = [parent]
    for each in found:  # grows while it is walked
        found += [child for child in children.pop(each.pid, ()) if child != each]
    return found


def _all() -> dict[int, tuple[int, str]]:
    """Return the parent and start time of every process by its number."""
    if HAS_PROC:
        numbers = [int(name) for name in os.listdir("/proc") if name.isdecimal()]
        return {pid: found for pid in numbers if (found := _stat(pid))}
    rows = [line.split(None, 2) for line in _output("ps", "-A", "-o", "pid=,ppid=,lstart=").splitlines()]
    return {int(row[0]): (int(row[1]), row[2].strip()) for row in rows if len(row) == 3}


def send(processes: Sequence[Process], number: int) -> None:
    """Send a signal to each of these processes that still runs."""
    for each in processes:
        each.send(number)


def wait_gone(processes: Sequence[Process], seconds: float) -> bool:
    """Wait until none of them runs; return False where some still do after that many seconds."""
    deadline = time.monotonic() + seconds
    while any(each.is_alive for each in processes):
        if time.monotonic() > deadline:
            return False
        time.sleep(LOOK_SECONDS)
    return True


def own_uids() -> frozenset[int]:
    """Return who we are: our user id, and under sudo that of the user who called it."""
    uid = os.getuid()
    caller = os.environ.get("SUDO_UID", "")
    return frozenset({uid, int(caller)} if uid == 0 and caller.isascii() and caller.isdecimal() else {uid})


def give_to_caller(descriptor: int, folder: Path) -> None:
    """Under sudo, make an open file or folder the caller's, where what it is in is theirs; else nothing happens.

    A link instead of `folder` is not followed, and a file system without owners is no error.
    """
    with suppress(OSError):
        owner = folder.lstat()
        if stat.S_ISDIR(owner.st_mode) and owner.st_uid in own_uids() - {os.getuid()}:
            os.fchown(descriptor, owner.st_uid, owner.st_gid)


def make_folder(folder: Path) -> None:
    """Make a folder and those above; under sudo they are the caller's (`give_to_caller`), but not what one links to."""
    if not folder.parent.exists():
        make_folder(folder.parent)
    folder.mkdir(exist_ok=True)
    with suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            give_to_caller(descriptor, folder.parent)
        finally:
            os.close(descriptor)


def _ps(pid: int, columns: str, *options: str) -> str:
    return _output("ps", *options, "-ww", "-o", columns, "-p", str(pid)).strip()


def _output(*command: str) -> str:
    import subprocess

    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=10, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout
