"""How what a job leaves on its node comes into the run folder.

The node has that folder itself, or a temporary one whose files are copied: through Ray, in pieces, or a place that both
machines reach.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import secrets
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from io import FileIO
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

from rocmlab.base import files, formatting, private, safe
from rocmlab.base.errors import RocmlabError
from rocmlab.runs.folder import KINDS, RunFolder

log = logging.getLogger("rocmlab")
T = TypeVar("T")

PIECE_BYTES = 4_000_000
PAUSES_SECONDS = (1.0, 2.0, 4.0)  # before another try to deliver: a token is renewed, or a disk emptied
APPENDED = ("log", "samples")  # kinds of files that only grow
NONCE = ".nonce"  # a file of the run folder; a node that reads the right nonce there has the same folder
SEEN_SECONDS = 20.0  # until a shared folder shows what another machine has written there


class ForeignFileError(OSError):
    """A node reported a file that is none of its job's."""


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


def hand_over(folder: RunFolder, job: str, exchange: str | None, warnings: list[str]) -> Iterator[dict[str, Any]]:
    """Yield what a job has left, as events: where it is in the exchange; without one, and where that fails, in pieces.

    Args:
        folder: of the job, on its node.
        job: its name.
        exchange: an address that the runner's machine also reaches; None: there is none.
        warnings: to which is added what went wrong.
    """
    for kind in folder.files(job):
        if exchange:
            try:
                yield {"event": "left", "kind": kind, "address": _again(leave, folder, job, kind, exchange)}
                continue
            except Exception as err:  # of the store behind it, whose errors are its own
                warnings.append(f"its files came through Ray, for its node cannot write to --exchange: {_said(err)}")
                exchange = None
        try:
            yield from pieces(folder, job, kind)
        except OSError as err:
            warnings.append(f"its {kind} cannot be read on its node: {_said(err)}")


def pieces(folder: RunFolder, job: str, kind: str) -> Iterator[dict[str, Any]]:
    """Yield a file that a job has left in pieces, as events; the last is marked."""
    with folder.file(job, kind).open("rb") as file:
        data = file.read(PIECE_BYTES)
        while True:
            following = file.read(PIECE_BYTES)
            yield {"event": "file", "kind": kind, "data": data, "is_last": not following}
            if not following:
                break
            data = following


def leave(folder: RunFolder, job: str, kind: str, exchange: str) -> str:
    """Write a file that a job has left to a folder that the runner's machine also reaches, and return where it is."""
    address = f"{exchange.rstrip('/')}/{folder.path.name}/{secrets.token_hex(4)}-{job}{KINDS[kind]}"
    with folder.file(job, kind).open("rb") as file, _fsspec().open(address, "wb", auto_mkdir=True) as there:
        _copy(file, there)
    return address


def _again(what: Callable[..., T], *arguments: object) -> T:
    """Return what a call returns; where it fails it is made again, a few times."""
    for pause in PAUSES_SECONDS:
        try:
            return what(*arguments)
        except Exception as err:
            log.debug("again in %g s: %s", pause, err)
            time.sleep(pause)
    return what(*arguments)


def _said(err: Exception) -> str:
    return formatting.short(f"{type(err).__name__}: {err}", 300)


def fetch(address: str, target: Path, exchange: str) -> None:
    """Copy what `leave` has left back to the file of a job, and remove it there; nothing outside of the exchange.

    Raises:
        ForeignFileError: the address is another place.
        OSError: it cannot be read.
    """
    expected = f"{exchange.rstrip('/')}/{target.parent.name}/"
    rest = address.removeprefix(expected) if isinstance(address, str) else ""
    if rest == address or not safe.is_file_name(rest) or not rest.endswith(f"-{target.name}"):
        raise ForeignFileError(errno.EPERM, "a node reported a file outside of the run's exchange", safe.shown(address))
    fsspec = _fsspec()
    _again(_copy_here, fsspec, address, target)
    system, path = fsspec.core.url_to_fs(address)
    with contextlib.suppress(OSError):  # it is in no one's way
        system.rm(path)


def _copy_here(fsspec: Any, address: str, target: Path) -> None:  # noqa: ANN401  a module without types
    with fsspec.open(address, "rb") as there, files.replacing(target) as file:
        _copy(there, file)


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
            _said(err),
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
        ForeignFileError: a job has no such file.
    """
    kind = event.get("kind")
    if isinstance(kind, str) and kind in KINDS:
        return kind
    raise ForeignFileError(errno.EPERM, "a node reported a file that no job has", safe.shown(kind))


class Receiver:
    """Puts one job's files into the run folder; each is there when it is whole, and what cannot be is in `failed`."""

    def __init__(self, folder: RunFolder, job: str, exchange: str | None = None) -> None:
        self.failed: dict[str, str] = {}  # by kind, why it could not be taken
        self._folder = folder
        self._job = job
        self._exchange = exchange
        self._drafts: dict[str, tuple[Path, FileIO]] = {}
        self._taken: set[str] = set()

    def take(self, event: Mapping[str, Any]) -> None:
        """Take a piece of a file, or the whole of one that was left in the exchange.

        Raises:
            ForeignFileError: a node reported a file that is none of the job's.
        """
        kind = kind_of(event)
        if kind in self.failed:
            return
        target = self._folder.file(self._job, kind)
        try:
            if event.get("event") == "left":
                fetch(event["address"], target, self._exchange or "")
                self._taken.add(kind)
            else:
                self._piece(kind, target, event)
        except ForeignFileError:
            raise
        except Exception as err:  # a disk that is full, or of the store behind the exchange, whose errors are its own
            self._drop(kind)
            self.failed[kind] = _said(err)

    def _piece(self, kind: str, target: Path, event: Mapping[str, Any]) -> None:
        if kind not in self._drafts:
            draft = files.draft_path(target)
            self._drafts[kind] = draft, open(draft, "xb", buffering=0, opener=private.create)  # noqa: SIM115  see _drop
        draft, file = self._drafts[kind]
        _again(_write_at, file, file.tell(), event["data"])
        if event["is_last"]:
            file.close()
            _again(os.replace, draft, target)
            del self._drafts[kind]
            self._taken.add(kind)

    def missing(self, kinds: Iterable[object]) -> list[str]:
        """Return which of the files that a node has handed over are not in the run folder, by kind."""
        return [kind for kind in (kind_of({"kind": each}) for each in kinds) if kind not in self._taken]

    def close(self) -> None:
        """Drop what is not whole."""
        for kind in [*self._drafts]:
            self._drop(kind)

    def _drop(self, kind: str) -> None:
        if kind in self._drafts:
            draft, file = self._drafts.pop(kind)
            file.close()
            draft.unlink(missing_ok=True)


def _write_at(file: FileIO, begin: int, data: bytes) -> None:
    """Write all of it there; what an earlier try has left behind that place is overwritten."""
    file.seek(begin)
    rest = memoryview(data)
    while rest:
        rest = rest[file.write(rest) :]


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
