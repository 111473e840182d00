"""The project folder, and whether it may be trusted: what runs is decided by files in it.

The rule is that of git's `safe.directory`: folder and files belong to this user, to root, or under sudo to the user who
called it, and not everybody can write them. ROCMLAB_SAFE_DIRECTORY names exceptions. It counts in the environment
alone, never in a `.env`, which is one of the files in question.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

from rocmlab.base import identity
from rocmlab.base.errors import RocmlabError

VARIABLE = "ROCMLAB_SAFE_DIRECTORY"
CHECKED = (".", "Makefile", "compose.yaml", "pyproject.toml", ".env", ".rocmlab", ".venv", ".venv/bin", "src")
# Everything in them runs, or decides what is installed.
TREES = ("benchmarks", "docker", "requirements", "scripts", "src/rocmlab")
ROOT = 0
# They show every file with one owner and mode, usually writable for all: also shared folders of virtual machines.
NO_MODES = {
    *("9p", "drvfs", "vfat", "msdos", "exfat", "ntfs", "ntfs3", "fuseblk", "cifs", "smb3", "vboxsf"),
    *("fuse.vmhgfs-fuse", "prl_fs"),
}


class Untrusted(RocmlabError):
    """A project folder that another user may have made or changed."""


def nearest() -> Path | None:
    """Return the project folder: the nearest one upwards, else that of this source tree; None where there is none."""
    here = Path.cwd()
    for folder in (here, *here.parents, Path(__file__).resolve().parents[3]):
        if is_project(folder):
            check(folder)
            return folder
    return None


def is_project(folder: Path) -> bool:
    """Return whether a folder has what a project has."""
    return (folder / "compose.yaml").is_file() and (folder / "docker/Dockerfile").is_file()


def is_another(recorded: str, folder: Path) -> bool:
    """Return whether a recorded folder is another clone that is still there, and not where this one was before."""
    return Path(recorded).resolve() != folder.resolve() and Path(recorded, "compose.yaml").exists()


def check(folder: Path) -> None:
    """Raise Untrusted if another user can have changed the project folder, or what in it decides about programs."""
    if is_exempt(folder):
        return
    for path in (*(folder / name for name in CHECKED), *_inside(folder)):
        try:
            link, found = path.lstat(), path.stat()
        except FileNotFoundError:
            if path.is_symlink():
                _check_owner(folder, path, path.lstat().st_uid)
            continue
        for uid in (link.st_uid, found.st_uid):
            _check_owner(folder, path, uid)
        if found.st_mode & stat.S_IWOTH and keeps_modes(found.st_dev):
            raise Untrusted(
                f"{path} is writable for every user of this machine",
                f"its mode is {found.st_mode & 0o7777:04o}, and rocmlab runs files of this project ({folder})",
                f"chmod -R o-w {folder}      # or, if it is meant so: export {VARIABLE}={folder}",
            )


def _inside(folder: Path) -> Iterator[Path]:
    """Yield the trees whose files run, and all that is in them; some 500 files, 3 ms."""
    for tree in TREES:
        yield folder / tree
        for where, folders, files in os.walk(folder / tree):
            yield from (Path(where, name) for name in (*folders, *files))


def is_exempt(folder: Path) -> bool:
    """Return whether ROCMLAB_SAFE_DIRECTORY names this folder, or `*` for every one."""
    names = [name for name in os.environ.get(VARIABLE, "").split(os.pathsep) if name]
    return "*" in names or folder.resolve() in [Path(name).expanduser().resolve() for name in names]


def _check_owner(folder: Path, path: Path, uid: int) -> None:
    ours = identity.own_uids()
    if uid == ROOT or uid in ours:
        return
    from rocmlab.stack import sockets

    who = " or ".join(sockets.user(each) for each in sorted(ours))
    reason = f"this command runs as {who}, and would run what another user has put into the project {folder}"
    if ROOT in ours:
        reason += "\nas root in a container, this is usual for a folder of the host that is mounted there"
    raise Untrusted(
        f"{path} belongs to {sockets.user(uid)}",
        reason,
        f"use a clone of your own; or, if you trust that user: export {VARIABLE}={folder}",
    )


def keeps_modes(device: int) -> bool:
    """Return whether a file system keeps modes; where it does not, they mean nothing. Source: /proc/self/mountinfo."""
    number = f"{os.major(device)}:{os.minor(device)}"
    try:
        lines = Path("/proc/self/mountinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return True
    kinds = [line.partition(" - ")[2].split(" ")[0] for line in lines if line.split(" ")[2:3] == [number]]
    return not any(kind in NO_MODES for kind in kinds)
