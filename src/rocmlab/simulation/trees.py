"""A folder tree in memory: files, links and device nodes by their path below the root."""

from __future__ import annotations

import os
import shutil
import stat
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from rocmlab.base import files
from rocmlab.base.errors import RocmlabError


@dataclass(frozen=True)
class Node:
    """A device node: a plain file with these rights, or a character device where that was requested."""

    major: int
    minor: int
    mode: int
    gid: int | None  # None: that of the writing user


@dataclass
class Tree:
    """What a simulated host consists of."""

    files: dict[str, bytes] = field(default_factory=dict)
    links: dict[str, str] = field(default_factory=dict)  # to paths below the root
    nodes: dict[str, Node] = field(default_factory=dict)
    folders: set[str] = field(default_factory=set)  # only those that would otherwise be missing because empty

    def put(self, folder: str, **contents: object) -> None:
        """Add files to a folder; numbers and text get a line end."""
        for name, content in contents.items():
            self.files[f"{folder}/{name}"] = content if isinstance(content, bytes) else f"{content}\n".encode()

    def put_lines(self, path: str, lines: Iterable[str]) -> None:
        """Add one file of several lines."""
        self.files[path] = "".join(f"{line}\n" for line in lines).encode()

    def remove(self, prefix: str) -> None:
        """Take away a folder or a file, and every link into it."""
        for kind in (self.files, self.nodes):
            for path in [path for path in kind if _is_below(path, prefix)]:
                del kind[path]
        self.folders = {path for path in self.folders if not _is_below(path, prefix)}
        self.links = {
            path: target
            for path, target in self.links.items()
            if not _is_below(path, prefix) and not _is_below(target, prefix)
        }

    def write(self, root: Path, *, character_nodes: bool = False) -> None:
        """Write everything below `root`, where nothing of it may exist yet."""
        top = f"{root}/"  # text: objects for a thousand paths cost as much as the files
        folders = {os.path.dirname(path) for path in (*self.files, *self.links, *self.nodes)} | self.folders
        made: set[str] = set()
        for folder in sorted(folders):
            _make_folder((top + folder).rstrip("/"), made)
        for path, content in self.files.items():
            with open(top + path, "wb") as file:
                file.write(content)
        for path, target in self.links.items():
            os.symlink(os.path.relpath(target, os.path.dirname(path)), top + path)
        for path, node in self.nodes.items():
            write_node(root / path, node, is_character=character_nodes)


def write_node(path: Path, node: Node, *, is_character: bool) -> None:
    """Make one device node.

    Raises:
        RocmlabError: a character device was requested, which only root can make.
    """
    if is_character:
        try:
            os.mknod(path, 0o600 | stat.S_IFCHR, os.makedev(node.major, node.minor))
        except PermissionError:
            raise RocmlabError(
                f"{path} cannot be made", "only root makes character devices", "omit --nodes, or run it as root"
            ) from None
    else:
        path.touch()
    if node.gid is not None and os.geteuid() == 0:
        os.chown(path, 0, node.gid)
    path.chmod(node.mode)


def rewrite(path: Path, content: bytes) -> None:
    """Change a file in place, so that readers who keep it open see the change and none sees it empty.

    A longer text first makes room, a shorter one is padded with line ends before the file is cut. A reader that meets
    the very write may see a text half old and half new, where the file system does not keep the two apart.
    """
    handle = os.open(path, os.O_WRONLY)
    try:
        before = os.fstat(handle).st_size
        if len(content) > before:
            os.pwrite(handle, b"\n" * (len(content) - before), before)
        os.pwrite(handle, content.ljust(before, b"\n"), 0)
        if len(content) < before:
            os.ftruncate(handle, len(content))
    finally:
        os.close(handle)


def apply_change(root: Path, before: Tree, after: Tree) -> None:
    """Turn the tree on disk from `before` into `after`, touching only what differs."""
    gone = [*(before.links.keys() - after.links.keys()), *(before.nodes.keys() - after.nodes.keys())]
    gone += before.files.keys() - after.files.keys()
    for path in gone:
        (root / path).unlink(missing_ok=True)
    for folder in sorted({os.path.dirname(path) for path in gone} | (before.folders - after.folders), reverse=True):
        _prune(root, folder, after)
    made: set[str] = set()
    for path, content in after.files.items():
        if path not in before.files:
            _make_folder(os.path.dirname(f"{root}/{path}"), made)
            place(root / path, content)
        elif content != before.files[path]:
            rewrite(root / path, content)


def place(path: Path, content: bytes) -> None:
    """Add a file that appears with its content, or replace it as a whole."""
    with files.replacing(path) as file:
        file.write(content)


def clear(root: Path, names: Iterable[str]) -> None:
    """Remove what an earlier writing left at the top of `root`."""
    for name in names:
        path = root / name
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)


def _prune(root: Path, folder: str, after: Tree) -> None:
    """Remove a folder and its parents as far as they are empty now."""
    while folder and folder not in after.folders:
        try:
            (root / folder).rmdir()
        except OSError:
            return
        folder = os.path.dirname(folder)


def _make_folder(path: str, made: set[str]) -> None:
    """Make a folder and its parents, but those that were made before."""
    if path not in made:
        made.add(path)
        try:
            os.mkdir(path)
        except FileExistsError:
            pass
        except FileNotFoundError:
            _make_folder(os.path.dirname(path), made)
            os.mkdir(path)


def _is_below(path: str, prefix: str) -> bool:
    return path == prefix or path.startswith(prefix + "/")
