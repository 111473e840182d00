"""Data sets in the share: found, checked, fetched once, and replaced atomically."""

from __future__ import annotations

import errno
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from rocmlab.base import files
from rocmlab.base.errors import RocmlabError
from rocmlab.training.datasets.catalogue import DATASETS
from rocmlab.training.datasets.model import MISSING, DataFile, Dataset, Source, SourceError
from rocmlab.training.datasets.sources import Folder

SCRATCH_MEGABYTES = 200  # a package, and what is made of it
FULL = (errno.ENOSPC, errno.EDQUOT)
Progress = Callable[[str], None]
SCRATCH = ".fetch-"  # prefix of the folders in which files are made


def share_folder(share: Path | None = None) -> Path:
    """Return the share: the argument, else `$ROCMLAB_SHARE`, else `./share`."""
    return (share or Path(os.environ.get("ROCMLAB_SHARE") or "share")).expanduser().absolute()


def is_cached(dataset: Dataset, share: Path | None = None) -> bool:
    """Return whether every file of a data set is in the share, byte for byte."""
    folder = dataset.folder(share_folder(share))
    return all(file.fault(folder / file.name) is None for file in dataset.files)


def fetch(
    name: str,
    *,
    share: Path | None = None,
    data_dir: Path | None = None,
    progress: Progress | None = None,
) -> Path:
    """Return the folder with a data set's raw files, fetching what is not in the share.

    Safe when several processes fetch at the same time: one does, the others wait and find it.

    Args:
        name: one of `DATASETS`.
        share: the share; by default `$ROCMLAB_SHARE`, else `./share`.
        data_dir: a folder with the files, raw or .gz, for sites without a network; else `$ROCMLAB_DATA_DIR`.
        progress: receives a line for each source tried, and one with the source of the files.

    Raises:
        RocmlabError: no such data set, or no source delivered it.
    """
    if name not in DATASETS:
        raise RocmlabError(f"{name!r} is not a data set", "", f"choose one of: {', '.join(DATASETS)}")
    dataset, say, started = DATASETS[name], progress or (lambda _line: None), time.monotonic()
    folder = dataset.folder(share_folder(share))

    def done(how: str) -> Path:
        say(f"{name}: {how}, {folder} ({time.monotonic() - started:.1f} s)")
        return folder

    if not _faults(dataset, folder):
        return done("checked, in the share")
    with _lock(folder, name, say):
        faults = _faults(dataset, folder)
        if not faults:
            return done("fetched by another process, in the share")
        for file, fault in faults.items():
            if fault != MISSING:
                say(f"{name}: {folder / file.name} is corrupted ({fault}); fetching it again")
        return done(f"from {_first_delivery(dataset, tuple(faults), folder, data_dir, say)}, now in the share")


def _faults(dataset: Dataset, folder: Path) -> dict[DataFile, str]:
    """Return the files that are missing or wrong, each with what is wrong."""
    found = {file: file.fault(folder / file.name) for file in dataset.files}
    return {file: fault for file, fault in found.items() if fault is not None}


@contextmanager
def _lock(folder: Path, name: str, say: Progress) -> Iterator[None]:
    """Hold the folder's lock, which ends with the process, however that ends."""
    with ExitStack() as stack:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            lock = stack.enter_context((folder / ".lock").open("a"))
            files.lock(lock.fileno(), lambda: say(f"{name}: another process is fetching it; waiting"))
        except OSError as err:
            raise RocmlabError(
                f"{folder} cannot be written",
                err.strerror or str(err),
                "make the share writable for this user, or set ROCMLAB_SHARE to a folder that is",
            ) from err
        yield


def _first_delivery(
    dataset: Dataset, files: tuple[DataFile, ...], folder: Path, data_dir: Path | None, say: Progress
) -> str:
    """Try one source after the other; return the label of the one that delivered."""
    for stale in folder.glob(f"{SCRATCH}*"):  # of a process that was killed: we hold the lock, so no process uses it
        shutil.rmtree(stale, ignore_errors=True)
    reasons: list[str] = []
    before = ""
    for source in (*_local_sources(dataset, folder, data_dir), *dataset.sources):
        say(f"{dataset.name}: {before}trying {source.label}")
        try:
            _take(source, files, folder)
        except SourceError as err:
            reasons.append(f"{source.label}: {err}")
            before = f"no: {err}; "
        else:
            return source.label
    path = folder / files[0].name
    raise RocmlabError(
        f"{path} is {'corrupted' if path.exists() else 'missing'}, and no source delivered {dataset.name}",
        "\n".join(reasons),
        f"put these files, raw or as .gz, into {folder},\n"
        "or into a folder named by --data-dir or ROCMLAB_DATA_DIR:\n" + "\n".join(_wanted(dataset, files)),
    )


def _wanted(dataset: Dataset, files: tuple[DataFile, ...]) -> list[str]:
    """Return a line for each file that a user may bring, and for the archive that contains them all."""
    also = {file: f" (published as {file.published_as})" if file.published_as else "" for file in files}
    archives = dict.fromkeys(file.packed_in[0] for file in files if file.packed_in)
    return [
        *(file.name + also[file] for file in files),
        *(f"or {archive}, which contains them" for archive in archives),
        *([dataset.advice] if dataset.advice else []),
    ]


def _local_sources(dataset: Dataset, folder: Path, data_dir: Path | None) -> list[Source]:
    """Return where a user may have put the files: in the share itself, and in the data folder."""
    sources: list[Source] = []
    own = {file.name for file in dataset.files}
    if any(path.name not in own and not path.name.startswith(".") for path in folder.iterdir()):
        sources.append(Folder(folder, f"files put into {folder}"))
    named = data_dir or (Path(os.environ["ROCMLAB_DATA_DIR"]) if os.environ.get("ROCMLAB_DATA_DIR") else None)
    if named is None:
        return sources
    if not named.is_dir():
        raise RocmlabError(
            f"the data folder {named} does not exist",
            "--data-dir or ROCMLAB_DATA_DIR names it",
            "correct the path, or omit it to fetch from the network",
        )
    nested = named / dataset.name
    return [*sources, Folder(nested if nested.is_dir() else named, f"the data folder {named}")]


def _take(source: Source, files: tuple[DataFile, ...], folder: Path) -> None:
    """Let a source deliver into a scratch folder; check all of it, then replace what is in the share."""
    try:
        with tempfile.TemporaryDirectory(prefix=SCRATCH, dir=folder) as scratch_name:
            scratch = Path(scratch_name)
            source.deliver(files, scratch)
            for file in files:
                fault = file.fault(scratch / file.name)
                if fault is not None:
                    raise SourceError(f"its {file.name} is wrong: {fault}")
            for file in files:
                os.replace(scratch / file.name, folder / file.name)
    except (SourceError, OSError) as err:
        system = err if isinstance(err, OSError) else err.__cause__
        if not isinstance(system, OSError) or (system is not err and system.errno not in FULL):
            raise
        raise RocmlabError(
            f"{folder} cannot be written",
            system.strerror or str(system),
            f"free {SCRATCH_MEGABYTES} MB there, or set ROCMLAB_SHARE to a folder elsewhere",
        ) from err
