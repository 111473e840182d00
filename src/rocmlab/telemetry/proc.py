"""Single processes in `/proc`; each part is read only when it is needed.

Where a process is looked up: on this machine, in `/proc`. On a simulated host, in that host's own `proc` first, and if
it is not there in the `/proc` of this machine, so that real processes can appear on a simulated GPU. A process and
all of its parents come from the same of the two.

Environment, folder, descriptors and files of a process can be read by its own user and by root. Its command and its
parents can be read by everybody.
"""

from __future__ import annotations

import errno
import functools
import itertools
import os
import re
import stat
from pathlib import Path

from rocmlab.devices import processes, roots

TYPE_CHECKING = False  # `typing` itself would cost milliseconds at each start
if TYPE_CHECKING:
    from collections.abc import Iterator

MAX_COMMAND = 400  # characters
MAX_PARENTS = 64
LIMIT_BYTES = 1 << 20
PART_BYTES = 1 << 16
MAX_ENTRIES = 100_000  # of a folder that another user may have filled
CONTAINER = re.compile(r"[0-9a-f]{64}")


class Process:
    """One process; each of its files is read once."""

    def __init__(self, folder: str, pid: int) -> None:
        self.folder = folder
        self.pid = pid

    @functools.cached_property
    def status(self) -> dict[str, str]:
        """The lines of `status`; empty if it is gone."""
        lines = (roots.read_text(f"{self.folder}/status") or "").splitlines()
        return {name: rest.strip() for name, _, rest in (line.partition(":") for line in lines)}

    @property
    def parent_pid(self) -> int:
        """Process id of its parent; 0 if there is none that can be seen."""
        return roots.integer(self.status.get("PPid")) or 0

    @property
    def session(self) -> int | None:
        """The process that leads its session."""
        return roots.integer(next(iter(self.status.get("NSsid", "").split()), None))

    @property
    def name(self) -> str | None:
        """Name of its program."""
        return self.status.get("Name") or None

    @property
    def user(self) -> str | None:
        """Name of its user, or the number of one without a name."""
        fields = self.status.get("Uid", "").split()
        return _user(fields[1]) if len(fields) > 1 else None

    @functools.cached_property
    def started_ticks(self) -> int | None:
        """When it was started, in clock ticks since the machine was; with its number it identifies a process."""
        return started_ticks(self.folder)

    @property
    def started_seconds(self) -> float | None:
        """When it was started, Unix time."""
        booted = _booted_seconds()
        if self.started_ticks is None or booted is None:
            return None
        return booted + self.started_ticks / os.sysconf("SC_CLK_TCK")

    @functools.cached_property
    def command(self) -> tuple[str, ...]:
        """Its program with arguments; empty if that cannot be read."""
        text = (_read(f"{self.folder}/cmdline")).rstrip(b"\0")
        return tuple(text.decode("utf-8", "replace").split("\0")) if text else ()

    @property
    def shown_command(self) -> str | None:
        """The same on one line, cut."""
        text = " ".join(self.command)
        return text[: MAX_COMMAND - 1] + "…" if len(text) > MAX_COMMAND else text or None

    @functools.cached_property
    def environment(self) -> dict[str, str]:
        """The environment that it was started with; empty if it is another user's."""
        pairs = (line.partition("=") for line in _read(f"{self.folder}/environ").decode("utf-8", "replace").split("\0"))
        return {name: text for name, equals, text in pairs if equals}

    @property
    def working_folder(self) -> str | None:
        """Where it works; None if it is another user's."""
        return _link(f"{self.folder}/cwd")

    @functools.cached_property
    def files(self) -> dict[str, str]:
        """Descriptors and what they are; empty if it is another user's."""
        found = {name: _link(f"{self.folder}/fd/{name}") for name in _names(f"{self.folder}/fd")}
        return {name: target for name, target in found.items() if target}

    def path(self, name: str) -> str:
        """Return how a file that this process calls by an absolute path is reached from here, container or not.

        What is there is chosen by the process's user: list it with `names`, and read it with `read_file`.
        """
        return f"{self.folder}/root{name}"

    @functools.cached_property
    def container(self) -> str | None:
        """The first digits of the container it is in; None if it is in none, or that is not visible from here."""
        found = CONTAINER.findall(roots.read_text(f"{self.folder}/cgroup") or "")
        return found[-1][:12] if found else None


class Table:
    """The processes of a host."""

    def __init__(self, root: Path) -> None:
        own, real = os.fspath(root / "proc"), "/proc"
        self._folders = (own, real) if roots.is_simulated(root) else (real,)
        self._parents: dict[str, Process] = {}  # by folder; many processes have the same
        self.is_isolated = processes.is_isolated(root)  # numbers that a driver gives stand for nothing in the last

    def by_driver(self, pid: int) -> Process | None:
        """Return the process that a driver means with a number of the host; None if it is not visible from here."""
        return self._find(pid, self._folders[:-1] if self.is_isolated else self._folders)

    def here(self, pid: int) -> Process | None:
        """Return the process that this namespace calls by a number."""
        return self._find(pid, self._folders)

    def is_real(self, process: Process) -> bool:
        """Return whether it is a process of this machine, and not one of a simulated host."""
        return process.folder.startswith(f"{self._folders[-1]}/")

    def all(self) -> Iterator[Process]:
        """Yield every process that can be seen; for when no number is known."""
        seen = set()
        for folder in self._folders:
            for name in _names(folder):
                if name.isdigit() and name not in seen:
                    seen.add(name)
                    yield Process(f"{folder}/{name}", int(name))

    def forget(self) -> None:
        """Read the parents of processes again from now on."""
        self._parents = {}

    def lineage(self, process: Process) -> Iterator[Process]:
        """Yield a process and its parents, the nearest first."""
        folder = os.path.dirname(process.folder)
        for _ in range(MAX_PARENTS):
            yield process
            parent = process.parent_pid
            if parent < 1:
                return
            name = f"{folder}/{parent}"
            process = self._parents.get(name) or self._parents.setdefault(name, Process(name, parent))
            if not process.status:
                return

    @staticmethod
    def _find(pid: int, folders: tuple[str, ...]) -> Process | None:
        found = (Process(f"{folder}/{pid}", pid) for folder in folders)
        return next((process for process in found if process.status), None)


def started_ticks(folder: str) -> int | None:
    """Return field 22 of `/proc/<pid>/stat`; a program's name may hold anything, spaces and brackets too."""
    fields = _read(f"{folder}/stat").rpartition(b")")[2].split()
    return int(fields[19]) if len(fields) > 19 and fields[19].isdigit() else None


@functools.cache
def own_container() -> str | None:
    """Return the container that this process is in, as far as it can see that."""
    return Process("/proc/self", os.getpid()).container


@functools.cache
def _booted_seconds() -> float | None:
    for line in (roots.read_text("/proc/stat") or "").splitlines():
        if line.startswith("btime "):
            return float(line.split()[1])
    return None


@functools.lru_cache(maxsize=256)
def _user(uid: str) -> str:
    import pwd

    try:
        return pwd.getpwuid(int(uid)).pw_name
    except (KeyError, ValueError, OverflowError):
        return uid


def _read(name: str) -> bytes:
    """Return a file of a process that may be longer than what other system files are."""
    try:
        roots.announce(name)
        return read_file(name, LIMIT_BYTES)
    except (OSError, ValueError):
        return b""


def read_file(name: str, limit: int) -> bytes:
    """Return at most `limit` bytes of a file that another user may have put there.

    It is not waited for, as for a FIFO, and nothing but an ordinary file is opened: to open a device may do something,
    and a link may lead out of a container.

    Raises:
        OSError: it cannot be read, or is a link, or no ordinary file.
        ValueError: the name has a NUL in it.
    """
    if not stat.S_ISREG(os.lstat(name).st_mode):
        raise OSError(errno.EINVAL, "no ordinary file", name)
    handle = os.open(name, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NOCTTY)
    with os.fdopen(handle, "rb", buffering=0) as file:
        if not stat.S_ISREG(os.fstat(handle).st_mode):  # it was replaced just now
            raise OSError(errno.EINVAL, "no ordinary file", name)
        parts = []
        while limit > 0 and (part := file.read(min(limit, PART_BYTES))):
            parts.append(part)
            limit -= len(part)
    return b"".join(parts)


def names(name: str, prefix: str) -> list[str]:
    """Return what in a folder of another user has a name that begins so; a folder with very many is not read whole."""
    try:
        with os.scandir(name) as entries:
            return [entry.name for entry in itertools.islice(entries, MAX_ENTRIES) if entry.name.startswith(prefix)]
    except (OSError, ValueError):
        return []


def _link(name: str) -> str | None:
    try:
        return os.readlink(name)
    except OSError:
        return None


def _names(name: str) -> list[str]:
    try:
        return os.listdir(name)
    except OSError:
        return []
