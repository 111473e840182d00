"""How what a job leaves on its node comes into the run folder.

The node has that folder itself, or a temporary one whose files are copied: through Ray, in pieces, or a place that both
machines reach.
"""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO

from rocmlab.base import files, private, safe
from rocmlab.base.errors import RocmlabError
from rocmlab.runs.folder import KINDS, RunFolder

PIECE_BYTES = 4_000_000
APPENDED = ("log", "samples")  # kinds of files that only grow
NONCE = ".nonce"  # a file of the run folder; a node that reads the right nonce there has the same folder
SEEN_SECONDS = 20.0  # until a shared folder shows what another machine has written there


class NodeFolder(RunFolder):
    """Where a job's files go on its node. Only the runner writes the journal."""

    def __init__(self, path: Path, share: Path, tell: Callable[[dict[str, Any]], None]) -> None:
        super().__init__(path)
        self._share = share
        self._tell = tell

    @property
    def share(self) -> Path:
        """The node's share, whichever folder the files go to."""
        return self._share

    def log(self, event: str, **facts: object) -> None:
        """Have the runner write a line into its journal."""
        self._tell({"event": "journal", "line": event, "facts": facts})


def is_shared(folder: str, nonce: str) -> bool:
    """Return whether this machine has the run's folder itself, and not just one of the same name."""
    try:
        return Path(folder, NONCE).read_text(encoding="ascii") == nonce
    except (OSError, ValueError):
        return False


def sizes(folder: RunFolder, job: str) -> dict[str, int]:
    """Return how long the files are that a job has left, by kind."""
    return {kind: folder.file(job, kind).stat().st_size for kind in folder.files(job)}


def pieces(folder: RunFolder, job: str) -> Iterator[dict[str, Any]]:
    """Yield what a job has left, each file in pieces, as events; the last piece of each is marked."""
    for kind in folder.files(job):
        with folder.file(job, kind).open("rb") as file:
            data = file.read(PIECE_BYTES)
            while True:
                following = file.read(PIECE_BYTES)
                yield {"event": "file", "kind": kind, "data": data, "is_last": not following}
                if not following:
                    break
                data = following


def leave(folder: RunFolder, job: str, exchange: str) -> Iterator[dict[str, Any]]:
    """Write what a job has left to a folder that the runner's machine also reaches, and yield where it is."""
    fsspec = _fsspec()
    for kind in folder.files(job):
        address = f"{exchange.rstrip('/')}/{folder.path.name}/{secrets.token_hex(4)}-{job}{KINDS[kind]}"
        with folder.file(job, kind).open("rb") as file, fsspec.open(address, "wb", auto_mkdir=True) as there:
            _copy(file, there)
        yield {"event": "left", "kind": kind, "address": address}


def fetch(address: str, target: Path, exchange: str) -> None:
    """Copy what `leave` has left back to the file of a job, and remove it there; nothing outside of the exchange.

    Raises:
        OSError: the address is another place, or cannot be read.
    """
    expected = f"{exchange.rstrip('/')}/{target.parent.name}/"
    rest = address.removeprefix(expected) if isinstance(address, str) else ""
    if rest == address or not safe.is_file_name(rest) or not rest.endswith(f"-{target.name}"):
        raise OSError(errno.EPERM, "a node reported a file outside of the run's exchange", safe.shown(address))
    fsspec = _fsspec()
    with fsspec.open(address, "rb") as there, files.replacing(target) as file:
        _copy(there, file)
    system, path = fsspec.core.url_to_fs(address)
    with contextlib.suppress(OSError):  # it is in no one's way
        system.rm(path)


def check(exchange: str) -> None:
    """Refuse an exchange that this machine cannot reach, before anything runs.

    Raises:
        RocmlabError: it cannot be written or read.
    """
    address = f"{exchange.rstrip('/')}/.rocmlab-{secrets.token_hex(8)}"
    fsspec = _fsspec()
    try:
        with fsspec.open(address, "wb", auto_mkdir=True) as there:
            there.write(b"rocmlab")
        system, path = fsspec.core.url_to_fs(address)
        system.rm(path)
    except Exception as err:
        raise RocmlabError(
            f"--exchange {exchange} cannot be used",
            f"{type(err).__name__}: {err}",
            "an address that every node reaches, such as s3://bucket/folder or file:///shared, with its credentials",
        ) from err


def _fsspec() -> Any:  # noqa: ANN401  a module without types
    try:
        import fsspec  # type: ignore[import-not-found,import-untyped,unused-ignore]
    except ModuleNotFoundError as err:
        raise RocmlabError(
            "--exchange needs fsspec", "it is not installed", 'pip install "rocmlab[cluster]" on every machine'
        ) from err
    return fsspec


def _copy(source: BinaryIO, target: BinaryIO) -> None:
    while data := source.read(PIECE_BYTES):
        target.write(data)


def kind_of(event: Mapping[str, Any]) -> str:
    """Return the kind of file that a node reports.

    Raises:
        OSError: a job has no such file.
    """
    kind = event.get("kind")
    if isinstance(kind, str) and kind in KINDS:
        return kind
    raise OSError(errno.EPERM, "a node reported a file that no job has", safe.shown(kind))


class Receiver:
    """Puts the pieces of one job's files together; a file is there when it is whole."""

    def __init__(self, folder: RunFolder, job: str) -> None:
        self._folder = folder
        self._job = job
        self._drafts: dict[str, tuple[Path, BinaryIO]] = {}

    def take(self, event: Mapping[str, Any]) -> None:
        """Take a piece.

        Raises:
            OSError: the run folder cannot be written.
        """
        kind = kind_of(event)
        target = self._folder.file(self._job, kind)
        if kind not in self._drafts:
            draft = files.draft_path(target)
            self._drafts[kind] = draft, open(draft, "xb", opener=private.create)  # noqa: SIM115  closed with the last piece
        draft, file = self._drafts[kind]
        file.write(event["data"])
        if event["is_last"]:
            del self._drafts[kind]
            file.close()
            os.replace(draft, target)

    def close(self) -> None:
        """Drop what is not whole."""
        for draft, file in self._drafts.values():
            file.close()
            draft.unlink(missing_ok=True)
        self._drafts.clear()


def wait_until_seen(folder: RunFolder, job: str, expected: Mapping[str, int]) -> list[str]:
    """Wait until this machine sees what another has written; a network folder may show it seconds later.

    `expected` is how many bytes each file has, by kind; one that is only ever appended to may have become longer.

    Returns:
        The names of the files that are not seen as they were written, after all the time there is for it.
    """
    end = time.monotonic() + SEEN_SECONDS
    while True:
        with contextlib.suppress(OSError):
            os.listdir(folder.path)  # the folder itself is asked again
        unseen = [kind for kind, size in expected.items() if not _is_seen(folder, job, kind, size)]
        if not unseen or time.monotonic() > end:
            return [folder.file(job, kind).name for kind in unseen]
        time.sleep(0.1)


def _is_seen(folder: RunFolder, job: str, kind: str, size: int) -> bool:
    try:
        found = folder.file(job, kind).stat().st_size
    except OSError:
        return False
    return found >= size if kind in APPENDED else found == size
