"""The device nodes of AMD GPUs: which exist, who owns them, and whether this process may open them."""

from __future__ import annotations

import os
import re
import stat
from dataclasses import dataclass
from pathlib import Path

RENDER_NAME = re.compile(r"renderD\d+")
CARD_NAME = re.compile(r"card\d+")


@dataclass(frozen=True)
class Node:
    """One device node, as `stat` shows it."""

    path: str  # as the process sees it, without the simulated root: /dev/dri/renderD128
    gid: int  # numeric, because names differ between host and container
    mode: int  # permission bits
    is_accessible: bool  # readable and writable by this process


def inspect(path: Path, root: Path) -> Node | None:
    """Return what `stat` says of a node below `root`, or None if it is absent."""
    try:
        found = path.stat()
    except OSError:
        return None
    return Node(
        path="/" + str(path.relative_to(root)),
        gid=found.st_gid,
        mode=stat.S_IMODE(found.st_mode),
        is_accessible=os.access(path, os.R_OK | os.W_OK, effective_ids=os.access in os.supports_effective_ids),
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


def _listed(root: Path, name: re.Pattern[str]) -> list[Node]:
    try:
        names = [entry for entry in os.listdir(root / "dev/dri") if name.fullmatch(entry)]
    except OSError:
        return []
    names.sort(key=lambda entry: int(re.sub(r"\D", "", entry)))
    found = (inspect(root / "dev/dri" / entry, root) for entry in names)
    return [node for node in found if node is not None]
