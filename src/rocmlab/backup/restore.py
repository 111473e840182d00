"""Restoring a backup: nothing is overwritten, and nothing is written outside the folders that are restored."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import os
import secrets
import shutil
import stat
import tarfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from shlex import quote
from typing import IO

from rocmlab.backup import databases, model, parts, verify
from rocmlab.backup.model import FILE, FOLDER, LINK, Entry, Manifest, Task, named
from rocmlab.backup.working import Progress, say_some
from rocmlab.base import signals
from rocmlab.base.errors import RocmlabError
from rocmlab.base.formatting import amount
from rocmlab.stack import homes
from rocmlab.stack.lab import Say

MAX_LISTED = 50  # lines about single files
MAX_NAME_BYTES = 255
MAX_TIME_NS = (2**63 - 1) * 10**9  # since 1970, or before: what `os.utime` takes
UNFINISHED = 0o1700  # mode of a folder that a restore has made, until it has its own; users have no such folders
AT_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


@dataclass
class Outcome:
    """What a restore has done."""

    files: int = 0
    size: int = 0  # bytes
    unchanged: int = 0
    aside: list[str] = field(default_factory=list)  # what was there and differed, and its present name
    links: list[Entry] = field(default_factory=list)  # not restored: they lead out of the share


def restore(task: Task, say: Say) -> int:
    """Restore share and notebooks; raise RocmlabError, and touch nothing, if the backup is damaged or not safe."""
    try:
        with signals.interruptible():
            return _restore(task, say)
    except KeyboardInterrupt:
        raise RocmlabError(
            "the restore was interrupted",
            "what was restored so far is complete, and nothing was overwritten",
            f"run it again, which skips what is there: make restore FROM={quote(task.shown)}",
            exit_code=1,
        ) from None


def _restore(task: Task, say: Say) -> int:
    folder = Path(task.backup)
    say(f"verifying {task.shown}")
    manifest = verify.verify(folder, task.shown)
    verify.check(folder, manifest, task.shown)
    restorer = _Restorer(task, manifest, say)
    restorer.check_disk()
    try:
        outcome = restorer.run(folder)
    except OSError as err:
        raise RocmlabError(
            f"{named(str(err.filename or 'a folder'))} could not be restored",
            f"{err.strerror or err}; what was restored so far is complete, and nothing was overwritten",
            f"fix this, then run it again, which skips what is there: make restore FROM={quote(task.shown)}",
            exit_code=1,
        ) from err
    _tell(outcome, say)
    return 0


def _tell(outcome: Outcome, say: Say) -> None:
    say_some(say, [f"  kept {line}" for line in outcome.aside], MAX_LISTED)
    for entry in outcome.links[:MAX_LISTED]:
        say(f"  not restored, because it points outside the lab: {named(entry.path)} -> {named(entry.target)}")
    say(
        f"restored {outcome.files} files ({amount(outcome.size)}); {outcome.unchanged} were there already; "
        f"{len(outcome.aside)} different ones were kept under a new name"
    )


class _Restorer:
    def __init__(self, task: Task, manifest: Manifest, say: Say) -> None:
        self.task, self.manifest, self.say = task, manifest, say
        self.roots = {name: os.path.realpath(path) for name, path in task.roots.items()}
        self.stamp = homes.stamp()
        self.outcome = Outcome()
        self.cleaned: set[str] = set()  # folders without drafts of an earlier restore
        self.made: dict[str, Entry] = {}  # folders made by a restore, which get their mode and time at the end
        self.owners = {os.geteuid(), *(task.owner or ())[:1]}  # of what restores make
        self.entries = [entry for entry in manifest.entries.values() if entry.path.partition("/")[0] in self.roots]

    def check_disk(self) -> None:
        """Raise RocmlabError unless what is missing fits."""
        for name, root in self.roots.items():
            needed = 0
            for entry in self.entries:
                if entry.type == FILE and entry.path.startswith(f"{name}/"):
                    try:
                        same = os.lstat(os.path.join(root, entry.path.partition("/")[2])).st_size == entry.size
                    except OSError:
                        same = False
                    needed += 0 if same else entry.size
            free = shutil.disk_usage(root).free
            if needed > free:
                raise RocmlabError(
                    f"the disk of {name} has {amount(free)} free",
                    f"the backup needs {amount(needed)} there; nothing was restored",
                    "free space there, then run it again",
                    exit_code=1,
                )

    def run(self, folder: Path) -> Outcome:
        """Restore everything, in the order of the parts."""
        progress = Progress(self.say, sum(entry.size for entry in self.entries), len(self.entries))
        by_part: dict[str, list[Entry]] = {}
        for entry in self.entries:
            by_part.setdefault(entry.part, []).append(entry)
        if os.geteuid() == 0 and "share" in self.roots and not os.listdir(self.roots["share"]):
            owner = self.task.owner or (0, 0)  # in a container of rootless Podman root is the lab's user
            os.chown(self.roots["share"], *owner)  # of a volume that was just made
        for name, entries in sorted(by_part.items()):
            with (folder / name).open("rb") as archive:
                for entry in sorted(entries, key=lambda entry: entry.offset):
                    self._one(entry, archive)
                    progress.add(entry.size)
        for path, entry in sorted(self.made.items(), reverse=True):  # from the inside out
            self._finish_folder(path, entry)
        return self.outcome

    def _one(self, entry: Entry, archive: IO[bytes]) -> None:
        root, _, rest = entry.path.partition("/")
        if not rest:
            return  # the root itself is there
        *folders, name = rest.split("/")
        if entry.type == LINK and verify.escapes(entry, self.roots):
            self.outcome.links.append(entry)
            return
        with self._opened(root, folders) as parent:
            if entry.type == FOLDER:
                self._folder(parent, name, f"{root}/" + "/".join([*folders, name]), entry)
            elif entry.type == LINK:
                self._link(parent, name, entry)
            else:
                self._file(parent, name, entry, archive)

    @contextmanager
    def _opened(self, root: str, folders: list[str]) -> Iterator[int]:
        """Open a folder step by step, each of them a real one: a symbolic link on the way is never followed."""
        descriptor = os.open(self.roots[root], os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        path = root
        try:
            for name in folders:
                path = f"{path}/{name}"
                self._folder(descriptor, name, path, self.manifest.entries.get(path))
                below = os.open(name, AT_FOLDER, dir_fd=descriptor)
                os.close(descriptor)
                descriptor = below
            yield descriptor
        finally:
            os.close(descriptor)

    def _folder(self, parent: int, name: str, path: str, entry: Entry | None) -> None:
        """Make a folder, unless it is there; one that an interrupted restore has made is finished by this one."""
        known = entry if entry is not None and entry.type == FOLDER else None
        found = _status(parent, name)
        if found is not None and stat.S_ISDIR(found.st_mode):
            mode = stat.S_IMODE(found.st_mode) & ~stat.S_ISGID  # which comes from the folder that it is in
            if path in self.made or mode != UNFINISHED or found.st_uid not in self.owners:
                return
        else:
            if found is not None:
                self._put_aside(parent, name, path)
            os.mkdir(name, UNFINISHED if known else 0o700, dir_fd=parent)
        self._own(parent, name)
        if known:
            self.made[path] = known

    def _finish_folder(self, path: str, entry: Entry) -> None:
        root, _, rest = path.partition("/")
        *folders, name = rest.split("/")
        with self._opened(root, folders) as parent:
            descriptor = os.open(name, AT_FOLDER, dir_fd=parent)
            try:
                os.fchmod(descriptor, entry.mode)
                os.utime(descriptor, ns=times_ns(entry))
            finally:
                os.close(descriptor)

    def _link(self, parent: int, name: str, entry: Entry) -> None:
        found = _status(parent, name)
        if found is not None and stat.S_ISLNK(found.st_mode) and os.readlink(name, dir_fd=parent) == entry.target:
            self.outcome.unchanged += 1
            return
        if found is not None:
            self._put_aside(parent, name, entry.path)
        os.symlink(entry.target, name, dir_fd=parent)
        self._own(parent, name)
        self.outcome.files += 1

    def _file(self, parent: int, name: str, entry: Entry, archive: IO[bytes]) -> None:
        found = _status(parent, name)
        if found is not None and _is_same(parent, name, found, entry):
            self.outcome.unchanged += 1
            return
        self._remove_drafts(parent, entry.path.rpartition("/")[0])
        draft = f"{model.DRAFT}{secrets.token_hex(8)}"
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        descriptor = os.open(draft, flags, 0o600, dir_fd=parent)
        try:
            with os.fdopen(descriptor, "wb") as file:
                _hold(file.fileno())
                _copy(archive, entry, file)
                if self.task.owner is not None:
                    os.fchown(file.fileno(), *self.task.owner)
                os.fchmod(file.fileno(), entry.mode)
                file.flush()
                os.utime(file.fileno(), ns=times_ns(entry))
            if found is not None:
                self._put_aside(parent, name, entry.path)
                for end in databases.SIBLINGS:  # a log of the other database would be applied to this one
                    if _status(parent, name + end) is not None and entry.path + end not in self.manifest.entries:
                        self._put_aside(parent, name + end, entry.path + end)
            os.rename(draft, name, src_dir_fd=parent, dst_dir_fd=parent)
        except BaseException:
            with contextlib.suppress(FileNotFoundError):  # it has its name already
                os.unlink(draft, dir_fd=parent)
            raise
        self.outcome.files += 1
        self.outcome.size += entry.size

    def _remove_drafts(self, parent: int, path: str) -> None:
        """Remove what restores that were killed have left in a folder; one that is being written stays."""
        if path in self.cleaned:
            return
        self.cleaned.add(path)
        for name in filter(model.is_draft, os.listdir(parent)):
            found = _status(parent, name)
            if found is None or not stat.S_ISREG(found.st_mode) or found.st_uid not in self.owners:
                continue
            with contextlib.suppress(OSError):  # it only takes room
                descriptor = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=parent)
                try:
                    if _hold(descriptor):
                        os.unlink(name, dir_fd=parent)
                finally:
                    os.close(descriptor)

    def _put_aside(self, parent: int, name: str, path: str) -> None:
        """Rename what is there and differs; it is never overwritten."""
        number = 1
        while _status(parent, kept := _with_end(name, f".before-restore-{self.stamp}", number)) is not None:
            number += 1
        os.rename(name, kept, src_dir_fd=parent, dst_dir_fd=parent)
        self.outcome.aside.append(f"{named(path)} as {named(kept)}")

    def _own(self, parent: int, name: str) -> None:
        if self.task.owner is not None:
            os.chown(name, *self.task.owner, dir_fd=parent, follow_symlinks=False)


def times_ns(entry: Entry) -> tuple[int, int]:
    """Return an entry's time for `os.utime`, as that of access and of change; a file system stores what it can."""
    time_ns = max(-MAX_TIME_NS, min(entry.mtime_ns, MAX_TIME_NS))
    return time_ns, time_ns


def _hold(descriptor: int) -> bool:
    """Lock a draft; return False where another restore writes it, or where that is unknown."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def _with_end(name: str, end: str, number: int) -> str:
    """Return a name with this end, shortened by whole characters to what a file system takes."""
    end += f"-{number}" if number > 1 else ""
    while len(os.fsencode(name + end)) > MAX_NAME_BYTES:
        name = name[:-1]
    return name + end


def _status(parent: int, name: str) -> os.stat_result | None:
    try:
        return os.stat(name, dir_fd=parent, follow_symlinks=False)
    except OSError as err:
        if err.errno in (errno.ENOENT, errno.ENAMETOOLONG):  # as the log of a database with a long name
            return None
        raise


def _is_same(parent: int, name: str, found: os.stat_result, entry: Entry) -> bool:
    """Return whether a file has this content already."""
    if not stat.S_ISREG(found.st_mode) or found.st_size != entry.size:
        return False
    descriptor = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=parent)
    with os.fdopen(descriptor, "rb") as file:
        return parts.digest_of(parts.pieces(file, entry.size)) == entry.sha256


def _copy(archive: IO[bytes], entry: Entry, file: IO[bytes]) -> None:
    """Write a file's content from its part; it is compared with the manifest while it is written."""
    source = content(archive, entry)
    digest = hashlib.sha256()
    for piece in source:
        file.write(piece)
        digest.update(piece)
    if digest.hexdigest() != entry.sha256:
        raise model.damaged(entry.part, "it changed while it was restored", entry.path)


def content(archive: IO[bytes], entry: Entry) -> Iterator[bytes]:
    """Yield a file's content from its part; raise RocmlabError if the member there is another one."""
    archive.seek(entry.offset)
    try:
        with tarfile.open(fileobj=archive, mode="r:") as opened:
            member = opened.next()
    except tarfile.TarError as err:
        raise model.damaged(entry.part, str(err), entry.path) from err
    if member is None or (member.name, member.size) != (entry.path, entry.size):
        raise model.damaged(entry.part, "it changed while it was restored", entry.path)
    archive.seek(member.offset_data)
    yield from parts.pieces(archive, entry.size)  # type: ignore[arg-type]


def settings_of(folder: Path, shown: str) -> Mapping[str, str]:
    """Return the text of each settings file in a verified backup; raise RocmlabError if one is not text."""
    manifest = model.read(folder, shown=shown)
    found = {}
    for path in model.SETTINGS:
        entry = manifest.entries.get(path)
        if entry is None:
            continue
        with (folder / entry.part).open("rb") as archive:
            data = b"".join(content(archive, entry))
        try:
            found[path] = data.decode()
        except UnicodeDecodeError as err:
            raise model.damaged(f"{shown}/{entry.part}", str(err), path) from err
    return found
