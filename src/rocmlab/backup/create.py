"""Making a backup: part by part, so that an interrupted one continues; each part is read back after writing."""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import hashlib
import json
import os
import re
import time
from collections.abc import Sequence
from pathlib import Path
from shlex import quote
from typing import Any

from rocmlab import __version__
from rocmlab.backup import choice, databases, model, parts, reading
from rocmlab.backup.model import FILE, FORMAT, LINK, MANIFEST, PARTIAL, PREFIX, SUMS, Entry, Task, named
from rocmlab.backup.parts import Part
from rocmlab.backup.reading import Unreadable
from rocmlab.backup.selection import Found, Selection, backups, select
from rocmlab.backup.working import Progress, locked, say_some
from rocmlab.base import files, signals
from rocmlab.base.errors import RocmlabError
from rocmlab.base.formatting import amount
from rocmlab.stack import envfile, homes
from rocmlab.stack.lab import Say

PART_BYTES = 1 << 30  # of a part, after which the next one begins
ATTEMPTS = 4  # to read a file that changes meanwhile
LARGE_BYTES = 1 << 28  # such a file is read twice at most
RACY_SECONDS = 0.1  # two changes within a file system's clock tick have one time
MAX_LISTED = 20  # lines about single files
FULL = (errno.ENOSPC, errno.EDQUOT)


def status_of(source: str) -> os.stat_result | None:
    """Return a file's status; None if there is none."""
    try:
        return os.lstat(source)
    except OSError:
        return None


def create(task: Task, say: Say) -> int:
    """Back up; return 0, or 1 where something could not be read. After an error what is complete is continued."""
    while True:
        folder = _folder(Path(task.backup), task)
        with locked(folder, f"{task.shown}/{folder.name}") as is_there:
            if is_there:
                return _create(task, folder, say)


def _create(task: Task, folder: Path, say: Say) -> int:
    shown = f"{task.shown}/{folder.name}"
    if folder.stat().st_mode & 0o077:
        say(f"WARNING: the disk of {task.shown} keeps no permissions: whoever can read it can read your keys and token")
    maker = _Maker(task, folder, shown, say)
    try:
        with signals.interruptible():
            selection = select(task)
            maker.write(selection)
            final = maker.finish(selection)
    except KeyboardInterrupt:
        raise RocmlabError("the backup was interrupted", f"{shown} is kept", _again(task), exit_code=1) from None
    except OSError as err:
        full = err.errno in FULL
        raise RocmlabError(
            f"{task.shown} is full" if full else f"{shown} could not be written",
            f"{err.strerror or err}; earlier backups are unchanged, and what is complete of this one is kept",
            ("free space there, then " if full else "") + _again(task),
            exit_code=1,
        ) from err
    finally:
        maker.own()
    maker.tell(selection)
    where = f"{task.shown}/{final}"
    held = f"{len(maker.entries)} entries, {amount(maker.total)}, verified"
    if selection.unreadable:
        say(f"backup {where} has what could be read: {held}")
    else:
        say(f"backup {where} is complete: {held}")
    say(f"  restore it with: make restore FROM={quote(where)}")
    _list(say, [f"  NOT in the backup, could not be read: {line}" for line in selection.unreadable])
    return 1 if selection.unreadable else 0


def _list(say: Say, lines: Sequence[str]) -> None:
    say_some(say, lines, MAX_LISTED, f"; {MANIFEST} has them all")


def _again(task: Task) -> str:
    return f"run it again, and it continues: {_command(task)}"


def _command(task: Task) -> str:
    return f"make backup TO={quote(task.shown)}" + " ALL=1" * task.is_all


def _folder(backups_folder: Path, task: Task) -> Path:
    """Return the incomplete backup of this lab to continue, or a new one."""
    for path in backups(backups_folder):
        if path.name.endswith(PARTIAL) and _is_of(path, task):
            return path
    stamp = homes.stamp()
    path = backups_folder / (_unused(backups_folder, stamp, "", PARTIAL) + PARTIAL)
    header = {"format": FORMAT, "rocmlab": __version__, "created": stamp, "project": task.project, "all": task.is_all}
    try:
        path.mkdir(mode=0o700)
        files.write_text(path / MANIFEST, json.dumps(header) + "\n", 0o600)
    except OSError as err:
        raise RocmlabError(
            f"no backup can be made in {task.shown}", err.strerror or str(err), "make backup TO=/another/folder"
        ) from err
    return path


def _unused(folder: Path, stamp: str, *ends: str) -> str:
    """Return a name for a backup of this time that no other one has, with any of these ends."""
    name, number = f"{PREFIX}{stamp}", 1
    while any(os.path.lexists(folder / f"{name}{end}") for end in ends):
        number += 1
        name = f"{PREFIX}{stamp}-{number}"
    return name


def _is_of(path: Path, task: Task) -> bool:
    """Return whether an incomplete backup is one of this lab, and of this user: another one could plant a folder."""
    if choice.doubt(path, {os.geteuid(), *(task.owner or ())[:1]}):
        return False
    try:
        header = model.read(path).header
    except RocmlabError:
        return False
    return (header.get("project"), header.get("all")) == (task.project, task.is_all)


class _Maker:
    def __init__(self, task: Task, folder: Path, shown: str, say: Say) -> None:
        self.task, self.folder, self.shown, self.say = task, folder, shown, say
        manifest = model.read(folder)
        self.entries, self.parts = manifest.entries, manifest.parts
        self.earlier = dict(manifest.parts)  # of an attempt before this one
        os.truncate(folder / MANIFEST, manifest.length)
        self.part: Part | None = None
        self.covered: set[str] = set()  # logs of databases that were copied with them
        self.total = 0
        for path in folder.glob("files-*.tar"):
            if path.name not in self.parts:  # of an attempt that was killed
                path.unlink()
        databases.remove(self.scratch)

    @property
    def scratch(self) -> Path:
        """Where copies of databases are made."""
        return self.folder / "database.draft"

    def write(self, selection: Selection) -> None:
        """Write what is not in a complete part yet."""
        self.total = sum(found.size for found in selection.found)
        kept = sum(found.size for found in selection.found if self._has(found))
        how = f"continuing {self.shown}, which has {amount(kept)} of" if self.parts else f"backing up to {self.shown}:"
        self.say(f"{how} {len(selection.found)} entries, {amount(self.total)}")
        progress = Progress(self.say, self.total, len(selection.found))
        try:
            for found in selection.found:
                if not self._has(found):
                    self._add(found, selection)
                progress.add(found.size)
        except BaseException:
            with contextlib.suppress(OSError):  # the disk has no room even for that; the part is removed
                self._close()  # so that the next attempt need not repeat it
            raise
        self._close()

    def _has(self, found: Found) -> bool:
        entry = self.entries.get(found.path)
        return entry is not None and entry.type == found.type and entry.is_still(found.status)

    def _add(self, found: Found, selection: Selection) -> None:
        if found.path in self.covered or self._is_available_elsewhere(found, selection):
            return
        if self.part is None:
            used = [int(match[1]) for name in self.parts if (match := re.fullmatch(r"files-(\d+)\.tar", name))]
            self.part = Part(self.folder / f"files-{max(used, default=0) + 1:04}.tar")
        offset = self.part.size
        try:
            entry = self._member(found, self.part)
        except Unreadable as err:
            self.part.take_back(offset)
            cause = err.__cause__
            if isinstance(cause, OSError) and not isinstance(cause, FileNotFoundError):
                selection.fail(found.path, cause)
            return  # or it was removed since the folder was listed
        except BaseException:
            self.part.take_back(offset)
            raise
        self.part.entries.append(entry)
        if self.part.size >= PART_BYTES:
            self._close()

    def _is_available_elsewhere(self, found: Found, selection: Selection) -> bool:
        """Return whether a file is one of a data set, byte for byte, which can be fetched again."""
        size, digest = self.task.data_sets.get(found.path, (-1, ""))
        if self.task.is_all or found.type != FILE or found.size != size:
            return False
        try:
            if parts.digest(Path(found.source)) != digest:
                return False
        except OSError:
            return False
        selection.omit(found.path, "`rocmlab datasets fetch` fetches it again", 1, size)
        return True

    def _member(self, found: Found, part: Part) -> Entry:
        """Write one member; raise Unreadable if the source cannot be read: what was written must be taken back."""
        status = found.status
        bits = 0o7777 & ~0o4000 & ~(0 if found.type == model.FOLDER else 0o2000)  # no setuid, no setgid programs
        entry = Entry(
            found.path,
            found.type,
            mode=status.st_mode & bits,
            mtime_ns=status.st_mtime_ns,
            part=part.path.name,
            offset=part.size,
            ctime_ns=status.st_ctime_ns,
            inode=status.st_ino,
        )
        if found.type == FILE:
            return self._file(found, entry, part)
        if found.type == LINK:
            try:
                entry = dataclasses.replace(entry, target=os.readlink(found.source))
            except OSError as err:
                raise Unreadable from err
        part.begin(entry)
        return entry

    def _file(self, found: Found, entry: Entry, part: Part) -> Entry:
        is_locked = False
        if databases.is_in_use(found.source):
            try:
                is_copied, is_locked = databases.copy(found.source, self.scratch)
                if is_copied:
                    self.covered |= {found.path + end for end in databases.SIBLINGS}
                    made, _ = self._read(str(self.scratch), entry, part)
                    return dataclasses.replace(
                        made,
                        mtime_ns=entry.mtime_ns,
                        ctime_ns=entry.ctime_ns,
                        inode=entry.inode,
                        was_changing=is_locked,
                    )
            finally:
                databases.remove(self.scratch)
        attempts = ATTEMPTS if found.size < LARGE_BYTES else 2
        for attempt in range(attempts):
            time.sleep(RACY_SECONDS * attempt)
            part.take_back(entry.offset)
            made, is_whole = self._read(found.source, entry, part)
            if is_whole:
                return dataclasses.replace(made, was_changing=is_locked)
        return dataclasses.replace(made, was_changing=True)

    def _read(self, source: str, entry: Entry, part: Part) -> tuple[Entry, bool]:
        """Write a file's content; return its entry, and whether the file stayed the same meanwhile."""
        with reading.opened(source) as file:
            before = os.fstat(file.fileno())
            if 0 <= time.time() - before.st_mtime < RACY_SECONDS:
                time.sleep(RACY_SECONDS)
                before = os.fstat(file.fileno())
            entry = dataclasses.replace(
                entry,
                size=before.st_size,
                mtime_ns=before.st_mtime_ns,
                ctime_ns=before.st_ctime_ns,
                inode=before.st_ino,
            )
            offset = part.begin(entry)
            found = hashlib.sha256()
            count = 0
            for piece in reading.pieces(file, before.st_size):
                part.put(piece)
                found.update(piece)
                count += len(piece)
            part.end(offset, dataclasses.replace(entry, size=count), is_shorter=count < before.st_size)
            after = status_of(source)  # which shows whether it changed meanwhile
        is_same = after is not None and entry.is_still(after) and count == before.st_size
        return dataclasses.replace(entry, size=count, sha256=found.hexdigest()), is_same

    def _close(self) -> None:
        """End the part under way, read it back, and note in the manifest what it holds."""
        part, self.part = self.part, None
        if part is None or not part.entries:
            if part is not None:
                part.discard()
            return
        try:
            part.close()
            wrong = parts.wrong_members(part.path, part.entries)
            if wrong:
                raise OSError(errno.EIO, f"{part.path.name} differs from what was written ({wrong[0]})")
            digest = parts.digest(part.path)
            lines: list[dict[str, Any]] = [{"entry": dataclasses.asdict(entry)} for entry in part.entries]
            self._note(*lines, {"part": part.path.name, "sha256": digest})
        except BaseException:
            part.discard()
            raise
        self.entries.update({entry.path: entry for entry in part.entries})
        self.parts[part.path.name] = digest

    def _note(self, *lines: dict[str, Any]) -> None:
        """Add lines to the manifest, all of them or none."""
        path = self.folder / MANIFEST
        length = path.stat().st_size
        try:
            with path.open("a", encoding="utf-8") as file:
                file.write("".join(json.dumps(line) + "\n" for line in lines))
                file.flush()
                os.fsync(file.fileno())
        except BaseException:
            os.truncate(path, length)
            raise

    def finish(self, selection: Selection) -> str:
        """Note what is omitted and what has been removed since, write the checksums, and give the backup its name.

        That is the present time, by which the newest one is found: an interrupted backup may be completed days later.
        """
        there = {found.path for found in selection.found} - self.covered
        removed = [path for path in self.entries if path not in there]
        self._note(*({"removed": path} for path in removed), *({"omitted": each} for each in selection.omitted))
        for path in removed:
            del self.entries[path]
        self.total = sum(entry.size for entry in self.entries.values())
        sums = {MANIFEST: parts.digest(self.folder / MANIFEST), **self.parts}
        for name, digest in self.earlier.items():
            if not (self.folder / name).is_file():
                raise self._cannot_be_completed(f"{name}, which was complete, is missing")
            if parts.digest(self.folder / name) != digest:
                raise self._cannot_be_completed(f"{name} has changed since it was written")
        with files.replacing(self.folder / SUMS, 0o600) as file:
            file.write("".join(f"{digest}  {name}\n" for name, digest in sums.items()).encode())
            file.flush()
            os.fsync(file.fileno())
        final = self.folder.with_name(_unused(self.folder.parent, homes.stamp(), ""))
        os.rename(self.folder, final)
        self.folder = final
        return final.name

    def _cannot_be_completed(self, why: str) -> RocmlabError:
        return RocmlabError(
            f"{self.shown} cannot be completed",
            f"{why}; earlier backups are unchanged",
            f"rm -r {quote(self.shown)} && {_command(self.task)}",
            exit_code=1,
        )

    def tell(self, selection: Selection) -> None:
        """Print what is omitted, and what was changing."""
        omitted = [(named(each["path"]), each["why"], amount(each["bytes"])) for each in selection.omitted]
        _list(self.say, [f"  omitted {path} ({why}; {size})" for path, why, size in omitted])
        changing = [named(entry.path) for entry in self.entries.values() if entry.was_changing]
        _list(self.say, [f"  changed during backup: {path} (its content of one instant is saved)" for path in changing])

    def own(self) -> None:
        """Hand the backup to the user for whom a container made it."""
        if self.task.owner is None or os.geteuid() != 0 or not self.folder.exists():
            return
        ids = envfile.read(Path("/proc/self/uid_map")).split()[:2]
        if ids and ids != ["0", "0"]:  # a rootless container, whose root is the user who started it
            return
        with contextlib.suppress(OSError):  # a file system without owners
            for path in (self.folder, *self.folder.iterdir()):
                os.chown(path, *self.task.owner, follow_symlinks=False)
