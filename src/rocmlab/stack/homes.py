"""Where a lab's user is at home: on the share. And how files get there from the places of earlier versions.

Before, JupyterLab's settings and what was saved at the top level were in the container's writable layer, or below
`.rocmlab`. They are moved once, nothing is overwritten, and each move is reported. Standard library only: this also
runs inside the container, as `python -m rocmlab.stack.homes`.
"""

from __future__ import annotations

import errno
import filecmp
import os
import re
import shutil
import stat
import sys
import tarfile
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import suppress
from datetime import datetime, timezone
from pathlib import Path
from typing import IO

from rocmlab.base import identity
from rocmlab.base.errors import RocmlabError
from rocmlab.stack.project_folder import keeps_modes

LINKS = ("work", "share")  # what JupyterLab's top level shows
OLD = "old-home"  # below `.rocmlab`: what containers of an earlier version had in their own layer, a folder for each
Pending = tuple[Path, str]  # a file or folder, and its name below the home


def stamp() -> str:
    """Return the present time as a part of a name, in UTC."""
    return datetime.now(timezone.utc).strftime("%Y%m%dT%H%M%SZ")


def pending(state: Path) -> list[Pending]:
    """Return what an earlier version left below a project's `.rocmlab`, and what was written into the view folder."""
    found = [(state / "config", ".jupyter"), (state / "data", ".local/share/jupyter")]
    found += [(path, path.name) for each in _entries(state / OLD) for path in _entries(each)]
    found += strays(state / "home")
    return [each for each in found if _has_files(each[0])]


def strays(view: Path) -> list[Pending]:
    """Return what is in the view folder besides our own links."""
    return [(path, path.name) for path in _entries(view) if not (path.name in LINKS and path.is_symlink())]


def _entries(folder: Path) -> list[Path]:
    return sorted(folder.iterdir()) if folder.is_dir() else []


def _has_files(path: Path) -> bool:
    if not path.is_dir() or path.is_symlink():
        return os.path.lexists(path)
    return any(names or any((Path(at) / name).is_symlink() for name in folders) for at, folders, names in os.walk(path))


def adopt(found: Iterable[Pending], home: Path, notebooks: Path) -> Iterator[str]:
    """Move files to the home; what is not hidden goes to a new folder of the notebooks, where it is seen.

    Nothing is overwritten: a file whose place is taken by another one goes to `recovered-<time>` in the home. Yields
    a line for each file or folder; one that cannot be moved stays, with an OSError.
    """
    recovered = f"recovered-{stamp()}"
    for source, name in found:
        target = home / name if name.startswith(".") else notebooks / recovered / name
        if _is_same_place(source, target):
            continue
        aside = home / recovered / name
        target.parent.mkdir(parents=True, exist_ok=True)
        is_whole = _merge(source, target, aside)
        yield f"moved {source} to {target}" + (
            "" if is_whole else f"; what was there already stays, the rest is in {aside}"
        )


def _merge(source: Path, target: Path, aside: Path) -> bool:
    """Move a tree into another one, and return whether each file found its own place free or taken by itself."""
    if _is_same_place(source, target):
        return True
    if not os.path.lexists(target):
        _move(source, target)
        return True
    if _is_folder(source) and _is_folder(target):
        whole = [_merge(path, target / path.name, aside / path.name) for path in _entries(source)]
        source.rmdir()
        return all(whole)
    if _is_same(source, target):
        source.unlink()
        return True
    aside.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    while os.path.lexists(aside):
        aside = aside.with_name(aside.name + "~")
    _move(source, aside)
    return False


def _is_same_place(source: Path, target: Path) -> bool:
    """Return whether removing one path would remove the other, as it would not with a second name, a hard link."""
    if not os.path.lexists(target) or not os.path.samestat(source.lstat(), target.lstat()):
        return False
    return _is_folder(source) or os.path.samestat(source.parent.stat(), target.parent.stat())


def _is_folder(path: Path) -> bool:
    return path.is_dir() and not path.is_symlink()


def _is_same(source: Path, target: Path) -> bool:
    if source.is_symlink() or target.is_symlink():
        return source.is_symlink() and target.is_symlink() and os.readlink(source) == os.readlink(target)
    return source.is_file() and target.is_file() and filecmp.cmp(source, target, shallow=False)


def _move(source: Path, target: Path) -> None:
    """Rename, or copy to another file system; a copy that is interrupted leaves the source and no half target."""
    try:
        source.rename(target)
        return
    except OSError as err:
        if err.errno != errno.EXDEV:
            raise
    draft = target.with_name(f".{target.name}.{os.getpid()}")
    if _is_folder(source):
        shutil.copytree(source, draft, symlinks=True)
    else:
        shutil.copy2(source, draft, follow_symlinks=False)
    draft.rename(target)
    remove(source)


def remove(path: Path) -> None:
    """Remove a file, a link or one of our trees."""
    if _is_folder(path):
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def pack(found: Iterable[Pending], into: IO[bytes]) -> None:
    """Write files as a tar stream, each below a number of its own, for `unpack`; sockets and the like are skipped."""

    def kept(member: tarfile.TarInfo) -> tarfile.TarInfo | None:
        member.uid = member.gid = 0
        return member if member.isreg() or member.isdir() or member.issym() or member.islnk() else None

    with tarfile.open(fileobj=into, mode="w|", format=tarfile.PAX_FORMAT) as archive:
        for number, (path, name) in enumerate(found):
            archive.add(path, f"{number}/{name}", filter=kept)


def unpack(stream: IO[bytes], home: Path, notebooks: Path) -> Iterator[str]:
    """Move what `pack` wrote to the home; see `adopt`."""
    with tempfile.TemporaryDirectory(prefix=".moving-", dir=home) as name:
        folder = Path(name)
        with tarfile.open(fileobj=stream, mode="r|") as archive:
            safe = {"filter": "tar"} if hasattr(tarfile, "tar_filter") else {}
            archive.extractall(folder, **safe)  # type: ignore[arg-type]
        parts = sorted(_entries(folder), key=lambda path: int(path.name))
        for line in adopt([(path, path.name) for part in parts for path in _entries(part)], home, notebooks):
            yield re.sub(rf"{re.escape(name)}/\d+/", "", line, count=1)


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


def main() -> int:
    """Unpack what the host sends on standard input, inside the container and as the lab's user."""
    home = Path(os.environ["HOME"])
    for line in unpack(sys.stdin.buffer, home, Path(os.environ["ROCMLAB_NOTEBOOKS"])):
        sys.stdout.write(f"{line}\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
