"""The device nodes of AMD GPUs: which exist, who owns them, and whether this process may open them."""

from __future__ import annotations

import errno
import os
import re
import stat
from dataclasses import dataclass
from pathlib import Path

from rocmlab.devices import roots

RENDER_NAME = re.compile(r"renderD[0-9]{1,6}")
CARD_NAME = re.compile(r"card[0-9]{1,6}")

SKIPPED = ("ENOENT", "EPERM")  # with these ROCm leaves one GPU out; any other error stops it for all


@dataclass(frozen=True)
class Node:
    """One device node, as `stat` shows it."""

    path: str  # as the process sees it, without the simulated root: /dev/dri/renderD128
    gid: int  # numeric, because names differ between host and container
    mode: int  # permission bits
    error: str | None  # why this process cannot open it for reading and writing: EACCES, EPERM, …; None if it can

    @property
    def is_accessible(self) -> bool:
        """Whether this process may read and write it."""
        return self.error is None

    @property
    def is_denied(self) -> bool:
        """Whether a container's device rules (cgroup) deny it, which only costs this one GPU."""
        return self.error == "EPERM"

    @property
    def is_forbidden(self) -> bool:
        """Whether it refuses in a way that stops ROCm for every GPU."""
        return self.error is not None and self.error not in SKIPPED


def inspect(path: Path, root: Path) -> Node | None:
    """Return the `stat` of a node below `root`, or None if it is absent."""
    try:
        found = path.stat()
    except (OSError, ValueError):
        return None
    return Node(
        path="/" + str(path.relative_to(root)),
        gid=found.st_gid,
        mode=stat.S_IMODE(found.st_mode),
        error=_error(path, found, root),
    )


def kfd(root: Path) -> Node | None:
    """Return the compute node `/dev/kfd`, one for all AMD GPUs, or None without the amdgpu driver."""
    return inspect(root / "dev/kfd", root)


def render_nodes(root: Path) -> list[Node]:
    """Return `/dev/dri/renderD*` by number; these belong to GPUs of any vendor."""
    return _listed(root, RENDER_NAME)


def card_nodes(root: Path) -> list[Node]:
    """Return `/dev/dri/card*` by number."""
    return _listed(root, CARD_NAME)


def _error(path: Path, found: os.stat_result, root: Path) -> str | None:
    """Return the name of the error with which this process would fail to open a node; None if it may open it.

    A node that may be opened is not opened, because that wakes a sleeping GPU. One that may not is, to learn whether
    its mode refuses (EACCES) or a container's device rules do (EPERM): that fails before the driver hears of it.

    On a simulated host nothing is opened, because a simulated node may have the number of a real one. There mode and
    group decide, and neither root's rights nor the owner's do, so that every user sees a fault.
    """
    if roots.is_simulated(root):
        try:
            roots.announce(str(path))
        except OSError as err:  # a fault of that host
            return errno.errorcode.get(err.errno or errno.EIO, "EIO")
        is_member = os.geteuid() == 0 or found.st_gid in {os.getegid(), *os.getgroups()}
        may_open = found.st_mode & 0o006 == 0o006 or (is_member and found.st_mode & 0o060 == 0o060)
        return None if may_open else "EACCES"
    is_other_user = os.geteuid() != os.getuid() and os.access in os.supports_effective_ids
    if os.access(path, os.R_OK | os.W_OK, effective_ids=is_other_user):
        return None
    roots.announce_only(str(path))
    try:
        os.close(os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY))
    except OSError as err:
        return errno.errorcode.get(err.errno or errno.EIO, "EIO")
    return None


def _listed(root: Path, name: re.Pattern[str]) -> list[Node]:
    names = [entry for entry in roots.list_names(root / "dev/dri") if name.fullmatch(entry)]
    names.sort(key=lambda entry: int(re.sub(r"[^0-9]", "", entry)))
    found = (inspect(root / "dev/dri" / entry, root) for entry in names)
    return [node for node in found if node is not None]
