"""The tar files of a backup: written member by member, and read back."""

from __future__ import annotations

import hashlib
import os
import tarfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import BinaryIO

from rocmlab.backup.model import FILE, FOLDER, Entry

BLOCK = tarfile.BLOCKSIZE
END = b"\0" * (2 * BLOCK)
PIECE_BYTES = 1 << 20
TYPES = {FILE: tarfile.REGTYPE, FOLDER: tarfile.DIRTYPE}


class Part:
    """One tar file under construction, of which the last member can be taken back."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.entries: list[Entry] = []  # of this part
        self.size = 0  # its bytes so far
        self._file: int | None = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)

    @property
    def _descriptor(self) -> int:
        assert self._file is not None
        return self._file

    def put(self, data: bytes) -> None:
        """Write at the end."""
        rest = memoryview(data)
        while rest:  # without a buffer: where the disk is full, nothing is left that cannot be taken back
            written = os.write(self._descriptor, rest)
            self.size += written
            rest = rest[written:]

    def begin(self, entry: Entry) -> int:
        """Write a member's header and return its offset."""
        offset = self.size
        self.put(header(entry))
        return offset

    def end(self, offset: int, entry: Entry, *, is_shorter: bool) -> None:
        """Fill the member's last block, and correct its header if it became shorter."""
        self.put(b"\0" * (-entry.size % BLOCK))
        if is_shorter:
            os.pwrite(self._descriptor, header(entry), offset)

    def take_back(self, offset: int) -> None:
        """Remove what was written since `offset`."""
        os.ftruncate(self._descriptor, offset)
        os.lseek(self._descriptor, offset, os.SEEK_SET)
        self.size = offset

    def close(self) -> None:
        """End the tar file and wait until the disk has it."""
        self.put(END)
        os.fsync(self._descriptor)
        if hasattr(os, "posix_fadvise"):  # so that it is then read from the disk and not from memory
            os.posix_fadvise(self._descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        self._shut()

    def _shut(self) -> None:
        descriptor, self._file = self._file, None
        if descriptor is not None:
            os.close(descriptor)

    def discard(self) -> None:
        """Remove it."""
        self._shut()
        self.path.unlink(missing_ok=True)


def header(entry: Entry) -> bytes:
    """Return a member's header, whose length does not depend on the member's size."""
    info = tarfile.TarInfo(entry.path)
    info.type, info.linkname = TYPES.get(entry.type, tarfile.SYMTYPE), entry.target
    info.mode, info.mtime, info.size = entry.mode, entry.mtime_ns // 10**9, entry.size
    return info.tobuf(tarfile.GNU_FORMAT, "utf-8", "surrogateescape")


def pieces(file: BinaryIO, size: int) -> Iterator[bytes]:
    """Yield at most `size` bytes of a file."""
    while size > 0 and (piece := file.read(min(size, PIECE_BYTES))):
        size -= len(piece)
        yield piece


def digest(path: Path) -> str:
    """Return a file's SHA-256."""
    with path.open("rb") as file:
        return digest_of(iter(lambda: file.read(PIECE_BYTES), b""))


def digest_of(content: Iterable[bytes]) -> str:
    """Return the SHA-256 of a content that comes in pieces."""
    found = hashlib.sha256()
    for piece in content:
        found.update(piece)
    return found.hexdigest()


def wrong_members(path: Path, entries: Iterable[Entry]) -> list[str]:
    """Return the files of a part whose content differs from the manifest."""
    expected = {entry.offset: entry for entry in entries if entry.type == FILE}
    right: set[int] = set()
    try:
        with tarfile.open(path, "r:") as archive:
            for member in archive:
                entry = expected.get(member.offset)
                source = archive.extractfile(member) if entry and member.isreg() else None
                if entry and source and (member.name, member.size) == (entry.path, entry.size):
                    is_right = digest_of(pieces(source, member.size)) == entry.sha256  # type: ignore[arg-type]
                    right |= {member.offset} if is_right else set()
    except (tarfile.TarError, OSError, ValueError):
        pass  # what comes behind cannot be read, and is among the wrong ones
    return [entry.path for offset, entry in sorted(expected.items()) if offset not in right]
