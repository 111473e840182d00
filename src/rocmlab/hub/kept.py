"""Small files of the hub that are made once, or that nothing else tells: each is whole, also after a power cut."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from rocmlab.base import files
from rocmlab.base.errors import RocmlabError
from rocmlab.stack import envfile


def write(path: Path, text: str) -> None:
    """Replace a private file, and wait until the disk has it.

    Raises:
        RocmlabError: the disk does not take it; the file is what it was.
    """
    try:
        with files.replacing(path, 0o600, is_durable=True) as file:
            file.write(text.encode())
    except OSError as err:
        fix = f"free some space, and check the disk: df -h {path.parent}"
        raise RocmlabError(f"{path} cannot be written", err.strerror or str(err), fix) from err


def secret(path: Path, make: Callable[[], str]) -> str:
    """Return the secret in a file, made once; of two processes that make it the first one's counts.

    A file that is empty, or has what no one can type, has none: a full disk or a power cut has left it.

    Raises:
        RocmlabError: it cannot be read or made.
    """
    if found := _typed(path):
        return found
    draft = files.draft_path(path)
    try:
        write(draft, make())
        try:
            os.link(draft, path)
        except FileExistsError:
            if not _typed(path):
                os.replace(draft, path)
    except OSError as err:
        fix = f"free some space: df -h {path.parent}; or move the project to a disk with hard links"
        raise RocmlabError(f"{path} cannot be made", err.strerror or str(err), fix) from err
    finally:
        draft.unlink(missing_ok=True)
    return _typed(path)


def _typed(path: Path) -> str:
    found = envfile.read(path).strip()
    return found if found.isprintable() else ""
