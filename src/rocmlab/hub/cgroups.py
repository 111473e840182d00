"""Memory and CPUs of native labs: a cgroup (v2) for each, from which nothing that the lab starts can leave.

The hub's are below one of their own at the top, where only root writes, as Docker's are where it uses no systemd.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from rocmlab.base.errors import RocmlabError

ROOT = Path("/sys/fs/cgroup")
CONTROLLERS = ("memory", "cpu")
PERIOD_MICROSECONDS = 100_000


class Cgroups:
    """The cgroups of one hub's labs."""

    def __init__(self, name: str, root: Path = ROOT) -> None:
        """Use this name; nothing is made yet.

        Args:
            name: of the hub's own cgroup.
            root: where the hierarchy is mounted.
        """
        self._root, self._top = root, root / name

    def prepare(self) -> None:
        """Make the hub's own cgroup, in which labs can be limited.

        Raises:
            RocmlabError: this host has no cgroups that limit these, or they cannot be made.
        """
        try:
            found = (self._root / "cgroup.controllers").read_text(encoding="ascii").split()
        except FileNotFoundError:
            why = f"no cgroup v2 is mounted at {self._root}"
            raise _unusable(why, "systemd.unified_cgroup_hierarchy=1 on the kernel's command line") from None
        if missing := [each for each in CONTROLLERS if each not in found]:
            raise _unusable(f"cgroup v2 has no controller {' and '.join(missing)} here", "see /proc/cgroups")
        try:
            self._top.mkdir(exist_ok=True)
            for folder in (self._root, self._top):
                _write(folder / "cgroup.subtree_control", " ".join(f"+{each}" for each in CONTROLLERS))
        except OSError as err:
            why = f"{err.filename or self._top}: {err.strerror or err}"
            raise _unusable(why, "start the hub as root of the host itself, not in a container") from err

    def make(self, uid: int, memory_bytes: int | None, cpus: float | None) -> Path:
        """Return a cgroup with a user's limits, made where it is missing; None is no limit.

        Raises:
            RocmlabError: it cannot be made, or cannot have these limits.
        """
        self.prepare()
        folder = self._top / f"uid-{uid}"
        quota = "max" if cpus is None else str(round(cpus * PERIOD_MICROSECONDS))
        values = {"memory.max": "max" if memory_bytes is None else str(memory_bytes)}
        values["cpu.max"] = f"{quota} {PERIOD_MICROSECONDS}"
        try:
            folder.mkdir(exist_ok=True)
            if (folder / "memory.swap.max").exists():  # not where the kernel has no swap
                values["memory.swap.max"] = "max" if memory_bytes is None else "0"
            for name, value in values.items():
                _write(folder / name, value)
        except OSError as err:
            raise _unusable(f"{err.filename or folder}: {err.strerror or err}", "ls -l /sys/fs/cgroup") from err
        return folder

    def remove(self, uid: int) -> None:
        """Remove a user's cgroup, unless something still runs in it."""
        with suppress(OSError):
            (self._top / f"uid-{uid}").rmdir()


def enter(folder: Path) -> None:
    """Move this process into a cgroup, and so all that it starts; before it gives up root's ids."""
    _write(folder / "cgroup.procs", str(os.getpid()))


def _write(path: Path, value: str) -> None:
    descriptor = os.open(path, os.O_WRONLY)  # it exists, or this is no cgroup
    try:
        os.write(descriptor, value.encode())
    finally:
        os.close(descriptor)


def _unusable(why: str, fix: str) -> RocmlabError:
    what = "this host cannot limit memory and CPUs of native labs"
    return RocmlabError(
        what,
        why,
        f"{fix}; or labs in Docker: make hub-up RUNTIME=docker; or without HUB_MEMORY_LIMIT and HUB_CPU_LIMIT",
    )
