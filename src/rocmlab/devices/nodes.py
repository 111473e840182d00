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

OPENING = {  # what opening a GPU's node tells: (how ROCm takes it, what it means)
    0: ("usable", "it opens"),
    errno.ENOENT: ("skipped", "it is not here: the GPU was not passed to this container"),
    errno.EPERM: ("skipped", "the container's device rules (cgroup) deny it"),
    errno.EACCES: ("fatal", "this user's groups do not allow it, which stops ROCm for all GPUs"),
}


@dataclass(frozen=True)
class Node:
    """One device node, as `stat` shows it."""

    path: str  # as the process sees it, without the simulated root: /dev/dri/renderD128
    gid: int  # numeric, because names differ between host and container
    mode: int  # permission bits
    is_accessible: bool  # readable and writable by this process


@dataclass(frozen=True)
class Opening:
    """What really opening a node showed."""

    path: str
    verdict: str  # usable, skipped (ROCm leaves this GPU out) or fatal (ROCm fails for all GPUs)
    error: str | None  # ENOENT, EPERM, EACCES, …; None if it opened
    meaning: str


def inspect(path: Path, root: Path) -> Node | None:
    """Return what `stat` says of a node below `root`, or None if it is absent."""
    try:
        found = path.stat()
    except (OSError, ValueError):
        return None
    return Node(
        path="/" + str(path.relative_to(root)),
        gid=found.st_gid,
        mode=stat.S_IMODE(found.st_mode),
        is_accessible=_is_accessible(path),
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


def open_node(path: str, root: Path) -> Opening:
    """Open a node read-write as ROCm does, close it again, and say what that showed.

    A container's device rules show only here: `stat` and `access` know nothing of them. But opening wakes a sleeping
    GPU and makes this process a user of it, so only a person's question (`rocmlab doctor`) justifies it. On a simulated
    host nothing is opened, because a stand-in node may have the number of a real one.

    Args:
        path: the node as a process sees it, such as `/dev/dri/renderD128`.
        root: the host.
    """
    where = root / path.lstrip("/")
    number = _open_error_simulated(where) if roots.is_simulated(root) else _open_error(where)
    verdict, meaning = OPENING.get(number, ("fatal", f"{os.strerror(number)}, which stops ROCm for all GPUs"))
    return Opening(path, verdict, errno.errorcode.get(number) if number else None, meaning)


def _open_error(path: Path) -> int:
    roots.announce_only(str(path))
    try:
        os.close(os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY))
    except OSError as err:
        return err.errno or errno.EIO
    return 0


def _open_error_simulated(path: Path) -> int:
    try:
        path.stat()
    except OSError as err:
        return err.errno or errno.EIO
    return 0 if _is_accessible(path) else errno.EACCES


def _is_accessible(path: Path) -> bool:
    return os.access(path, os.R_OK | os.W_OK, effective_ids=os.access in os.supports_effective_ids)


def _listed(root: Path, name: re.Pattern[str]) -> list[Node]:
    names = [entry for entry in roots.list_names(root / "dev/dri") if name.fullmatch(entry)]
    names.sort(key=lambda entry: int(re.sub(r"[^0-9]", "", entry)))
    found = (inspect(root / "dev/dri" / entry, root) for entry in names)
    return [node for node in found if node is not None]
