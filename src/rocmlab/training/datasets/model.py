"""What a data set is, and what a source of it must do."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

MISSING = "not there"  # the fault of a file that does not exist


@dataclass(frozen=True)
class DataFile:
    """One file of a data set, as it is in the share: raw, not compressed."""

    name: str
    size_bytes: int
    sha256: str
    shape: tuple[int, ...] = ()  # of the array of unsigned bytes inside an idx file
    published_as: str = ""  # its name at its publisher, if that is another one
    packed_in: tuple[str, str] | None = None  # a zip file or wheel that holds it, and its path inside

    def fault(self, path: Path) -> str | None:
        """Return what is wrong with the copy at `path`; None if it is this file, byte for byte."""
        try:
            size = path.stat().st_size
            if size != self.size_bytes:
                return f"{size} bytes instead of {self.size_bytes}"
            digest = hashlib.sha256(path.read_bytes()).hexdigest()
        except FileNotFoundError:
            return MISSING
        except OSError as err:
            return err.strerror or str(err)
        return None if digest == self.sha256 else f"sha256 {digest[:12]}… instead of {self.sha256[:12]}…"


class SourceError(Exception):
    """Why a source did not deliver; a phrase that fits into a sentence."""


class Source(Protocol):
    """One place a data set can come from."""

    @property
    def label(self) -> str:
        """Its name in the lines of progress."""

    def deliver(self, files: tuple[DataFile, ...], folder: Path) -> None:
        """Put the files, raw and under their names, into `folder`.

        The caller checks the content. The folder is scratch space: whatever else is left there is removed.

        Raises:
            SourceError: it cannot.
        """


@dataclass(frozen=True)
class Dataset:
    """A data set: its files, and where they can come from, best source first."""

    name: str
    title: str
    licence: str
    files: tuple[DataFile, ...]
    sources: tuple[Source, ...]
    parent: str = "data"  # the folder of the share that contains it; `models` for weights of a network
    advice: str = ""  # how to bring its files manually, if that needs an explanation

    def folder(self, share: Path) -> Path:
        """Return where its files are in a share."""
        return share / self.parent / self.name

    @property
    def size_bytes(self) -> int:
        """The size of all files together."""
        return sum(file.size_bytes for file in self.files)
