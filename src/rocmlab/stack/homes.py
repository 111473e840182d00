"""Where a lab's user is at home: on the share. And the folder that JupyterLab shows, in which nothing is saved."""

from __future__ import annotations

import os
import shutil
import stat
from collections.abc import Iterator
from contextlib import suppress
from datetime import datetime, timezone
from pathlib import Path

from rocmlab.base import identity
from rocmlab.base.errors import RocmlabError
from rocmlab.stack.project_folder import keeps_modes

LINKS = ("work", "share", "data", "common")  # what JupyterLab's top level may show; the last two are a hub's


def stamp() -> str:
    """Return the present time as a part of a name, in UTC."""
    return datetime.now(timezone.utc).strftime("%Y%m%dT%H%M%SZ")


def recover(view: Path, notebooks: Path) -> Iterator[str]:
    """Move what root wrote next to our links to a new folder of the notebooks, and yield a line for each."""
    found = [path for path in sorted(view.iterdir()) if not (path.name in LINKS and path.is_symlink())]
    if not found:
        return
    unlock(view)
    folder = notebooks / f"recovered-{stamp()}"
    folder.mkdir()
    for path in found:
        shutil.move(path, folder / path.name)
        yield f"moved {path} to {folder / path.name}"


def make_private(home: Path) -> None:
    """Make the home on the share; raise RocmlabError if others may write it: programs in it run as this user."""
    home.mkdir(mode=0o700, parents=True, exist_ok=True)
    found = home.lstat()
    is_private = not found.st_mode & 0o022 or not keeps_modes(found.st_dev)
    if stat.S_ISDIR(found.st_mode) and found.st_uid in identity.own_uids() and is_private:
        return
    kind = "a link" if stat.S_ISLNK(found.st_mode) else f"uid {found.st_uid}'s, with mode {found.st_mode & 0o7777:04o}"
    raise RocmlabError(
        f"{home} is not a private folder of this user",
        f"it is {kind}; JupyterLab's settings and programs in it would run as you, no matter who wrote them",
        f"check its contents; if all of it is yours: chmod 700 {home}; else: make up SHARE=/another/folder",
    )


def show(view: Path, targets: dict[str, Path]) -> None:
    """Make the folder that JupyterLab shows: our links, and not writable (0555), for nothing else persists there."""
    view.mkdir(parents=True, exist_ok=True)
    for name, target in targets.items():
        link = view / name
        if link.is_symlink() and Path(os.readlink(link)) == target:
            continue
        view.chmod(0o755)
        if link.is_symlink():
            link.unlink()
        if not link.exists():
            link.symlink_to(target, target_is_directory=True)
    if stat.S_IMODE(view.stat().st_mode) != 0o555:
        view.chmod(0o555)


def unlock(view: Path) -> None:
    """Make the folder writable, so that what someone wrote into it can be moved."""
    with suppress(OSError):
        view.chmod(0o755)


def hide(view: Path) -> bool:
    """Remove our links and the folder; a file that someone wrote into it stays, and then False is returned."""
    if not view.is_dir():
        return True
    unlock(view)
    for name in LINKS:
        if (view / name).is_symlink():
            (view / name).unlink()
    with suppress(OSError):
        view.rmdir()
    return not view.exists()
