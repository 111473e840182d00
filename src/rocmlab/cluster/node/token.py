"""The cluster's token: made once by the head, needed by every node and program, and in no command line.

It authenticates and does not encrypt: docs/cluster.md explains what that means.
"""

from __future__ import annotations

import os
import re
import secrets
import stat
from collections.abc import Mapping
from pathlib import Path

from rocmlab.base import files
from rocmlab.base.errors import RocmlabError

VALID = re.compile(r"[!-~]{32,512}")  # printable ASCII without spaces, as an HTTP header needs it


def new() -> str:
    """Return 256 random bits, in hexadecimal digits."""
    return secrets.token_hex(32)


def check(text: str) -> str:
    """Return a token that can be one.

    Raises:
        RocmlabError: it is empty, or too short to protect anything.
    """
    if VALID.fullmatch(text):
        return text
    if not text:
        what, why = "CLUSTER_TOKEN is missing", "without it, anyone who reaches this machine could run programs on it"
    else:
        what, why = "CLUSTER_TOKEN is not a valid token", "a token has at least 32 letters and digits, and no spaces"
    raise RocmlabError(
        what, why, "use the line that `make cluster-up` printed on the head; `make cluster-status` there repeats it"
    )


def write(path: Path, text: str) -> Path:
    """Write a token to a file that its owner alone can read, and return the file.

    Raises:
        RocmlabError: the text is not a token.
        OSError: the file cannot be written.
    """
    check(text)
    files.write_text(path, text, mode=0o600)
    return path


def read(path: Path) -> str:
    """Return the token of a file.

    Raises:
        RocmlabError: the file cannot be read, others can read it, or it contains no token.
    """
    try:
        found = path.stat()
        text = path.read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError) as err:
        reason = getattr(err, "strerror", None) or str(err)
        raise RocmlabError(f"the cluster's token in {path} cannot be read", reason, "make cluster-up") from err
    if found.st_uid == os.getuid() and stat.S_IMODE(found.st_mode) & 0o077:  # an engine's secret is not ours
        raise RocmlabError(
            f"the cluster's token in {path} can be read by others", "it is for its owner alone", f"chmod 600 {path}"
        )
    return check(text)


def of(environment: Mapping[str, str]) -> str:
    """Return the token that an environment gives: the file of RAY_AUTH_TOKEN_PATH, else CLUSTER_TOKEN.

    Raises:
        RocmlabError: it gives none.
    """
    if path := environment.get("RAY_AUTH_TOKEN_PATH"):
        return read(Path(path))
    return check(environment.get("CLUSTER_TOKEN", ""))
