"""The folder of the leases: one for the whole host, in which every user and every container makes and takes locks.

It is like `/tmp`: anyone may make files there, and no one can remove or replace those of others. Whoever comes first
makes it, or systemd-tmpfiles at each boot. It is empty after a boot, as no lease outlives one.

A simulated host (`ROCMLAB_ROOT`) has its own below its root: its GPUs are not this machine's, nor another's.
"""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import shlex
import stat
from collections.abc import Mapping
from pathlib import Path

from rocmlab.base.errors import Problem, RocmlabError

SETTING = "LEASES_DIR"
OF_LAB = "ROCMLAB_LAB_LEASES"  # a private folder of one lab that as a whole holds its GPUs: its kernels share them out
USUAL = "/run/lock/rocmlab"
NOTE = re.compile(r"/holder-[0-9a-f]{16}\.json$")  # the path of a note that names a holder
LOCK = re.compile(r"[\w.-]+\.lock")  # a lock's name; a file with another is no one's lock, whoever made it
MODE = 0o1777
ENGINES_MODE = 0o755
RULE = "/etc/tmpfiles.d/rocmlab.conf"


def path(environment: Mapping[str, str], root: Path = Path("/")) -> Path:
    """Return the folder that this environment names, or the usual one; on a simulated host the one below its root.

    In a lab that has leased its GPUs as a whole it is the lab's own, in which its kernels and runs lease them from it.
    """
    if own := environment.get(OF_LAB):
        return Path(own)
    if os.path.realpath(root) != "/":
        return root / USUAL.lstrip("/")
    return Path(environment.get(SETTING) or USUAL)


def ensure(folder: Path) -> None:
    """Make the folder where it is missing; as root also open one that an engine has made for root alone.

    Raises:
        RocmlabError: it cannot be made, or this user cannot make locks in it.
    """
    if not os.path.lexists(folder):
        try:
            _make(folder)
        except FileExistsError:
            pass  # another process was faster
        except OSError as err:
            raise RocmlabError.of(unusable(folder, f"it is missing and cannot be made: {err.strerror}")) from err
    elif os.geteuid() == 0:
        _open(folder)
    if found := problem(folder):
        raise RocmlabError.of(found)


def problem(folder: Path) -> Problem | None:
    """Return why this user cannot lease GPUs there, or None; nothing is changed."""
    try:
        found = os.lstat(folder)
    except FileNotFoundError:
        parent = next(each for each in folder.parents if each.exists())
        can_be_made = os.access(parent, os.W_OK | os.X_OK)
        return None if can_be_made else unusable(folder, f"it is missing, and you may not write in {parent}")
    except OSError as err:
        return unusable(folder, err.strerror or str(err))
    if not stat.S_ISDIR(found.st_mode):
        what = "a link" if stat.S_ISLNK(found.st_mode) else "not a folder"
        why = f"it is {what}, made by uid {found.st_uid}"
        return Problem(_what(folder), why, f"look at it; then, on the host: sudo rm {folder}\n{command(folder)}")
    if found.st_nlink == 0:  # it is mounted here, and what is mounted has no name on the host any more
        again = f"on the host: {command(folder)}\nthen start the lab again: make down && make up"
        return Problem(_what(folder), "it was removed on the host, so no other lab sees the leases in it", again)
    if found.st_mode & (stat.S_IWOTH | stat.S_IWGRP) and not found.st_mode & stat.S_ISVTX:
        why = f"other users can remove locks in it: its mode {found.st_mode & 0o7777:o} has no sticky bit"
        return unusable(folder, why)
    if not os.access(folder, os.R_OK | os.W_OK | os.X_OK):
        mode = f"it belongs to uid {found.st_uid} and gid {found.st_gid}, and its mode is {found.st_mode & 0o7777:o}"
        return unusable(folder, f"uid {os.geteuid()} may not write in it: {mode}")
    return None


def unusable_locks(folder: Path) -> list[Problem]:
    """Return what is in the place of a lock and cannot be opened by every user."""
    problems = []
    for lock in sorted(each for each in folder.glob("*.lock") if LOCK.fullmatch(each.name)):
        with contextlib.suppress(OSError):
            mode = os.lstat(lock).st_mode
            if not stat.S_ISREG(mode) or mode & 0o444 != 0o444:
                problems.append(unusable_lock(lock, f"not a file that every user can open: {stat.filemode(mode)}"))
    return problems


def unusable_lock(lock: Path, why: str) -> Problem:
    """Return the problem of one lock, on which no one can lease its GPU."""
    with contextlib.suppress(OSError):
        why = f"{why}; made by uid {os.lstat(lock).st_uid}"
    what = f"a GPU cannot be leased: {lock}"
    return Problem(what, f"its lock cannot be used: {why}", f"on the host: sudo rm -r {shlex.quote(str(lock))}")


def is_mounted(folder: Path) -> bool:
    """Return whether something is mounted there, also of the same file system. Source: /proc/self/mountinfo."""
    try:
        lines = Path("/proc/self/mountinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return False
    return any(line.split(" ")[4:5] == [str(folder)] for line in lines)


def unusable(folder: Path, why: str) -> Problem:
    """Return the problem of a folder in which no lock can be made."""
    return Problem(_what(folder), why, f"on the host: {command(folder)}")


def command(folder: Path) -> str:
    """Return the command that makes the folder, or one that exists, root's and open to all users; and at each boot."""
    if str(folder) != USUAL:
        return f"sudo install -d -m {MODE:o} -o root -g root {folder}"
    rule = f"d {folder} {MODE:o} root root -"
    return f"echo '{rule}' | sudo tee {RULE} && sudo systemd-tmpfiles --create {RULE}"


def _what(folder: Path) -> str:
    return f"{folder}, this host's folder of leases, cannot be used"


def _open(folder: Path) -> None:
    """Give a folder its mode that looks as an engine makes what it mounts: root's, 0755, and nothing in it yet."""
    with contextlib.suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        try:
            found = os.fstat(descriptor)
            if found.st_uid == 0 and stat.S_IMODE(found.st_mode) == ENGINES_MODE and not os.listdir(descriptor):
                os.fchmod(descriptor, MODE)
        finally:
            os.close(descriptor)


def _make(folder: Path) -> None:
    """Make it under another name first: no one meets it before it has its mode, which the umask would narrow."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    draft = folder.with_name(f".{folder.name}-{secrets.token_hex(8)}")
    draft.mkdir(mode=0o700)
    try:
        draft.chmod(MODE)
        draft.rename(folder)  # one that another user has made meanwhile stays
    except OSError:
        with contextlib.suppress(OSError):
            draft.rmdir()
        if not os.path.lexists(folder):
            raise
