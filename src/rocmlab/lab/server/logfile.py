"""The native lab's log, kept to a size as an engine keeps a container's: each request of a stranger adds a line to it.

The server writes to a descriptor that it got at its start, so the file is copied and emptied, not renamed. A line that
is written in between is lost.
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

log = logging.getLogger("rocmlab")

VARIABLE = "ROCMLAB_LOG"  # the file, in a native lab
SETTING, DEFAULT = "LOG_MAX_SIZE", "10m"
SIZE = re.compile(r"(\d+)([bkmg]?)", re.IGNORECASE)
UNITS = {"": 1, "b": 1, "k": 2**10, "m": 2**20, "g": 2**30}  # as Docker has them


def parse(text: str) -> int | None:
    """Return a size of Docker's, such as `10m`, in bytes; None where it is none."""
    found = SIZE.fullmatch(text.strip())
    return int(found[1]) * UNITS[found[2].lower()] or None if found else None


class LogFile:
    """The log of one native lab."""

    def __init__(self, path: Path, max_bytes: int) -> None:
        self.path, self.max_bytes = path, max_bytes
        self.before = path.with_name(f"{path.name}.1")

    @classmethod
    def of(cls, environment: Mapping[str, str] = os.environ) -> LogFile | None:
        """Return the one of this server; None in a container, whose engine does it."""
        path, text = environment.get(VARIABLE), environment.get(SETTING) or DEFAULT
        if not path:
            return None
        size = parse(text)
        if size is None:
            log.warning("%s=%r is not a size such as %s, which is used instead", SETTING, text, DEFAULT)
        return cls(Path(path), size or parse(DEFAULT) or 0)

    def follow(self) -> None:
        """Empty the log if it is too large; what it had is in `jupyter.log.1`, unless the disk has no room."""
        try:
            if self.path.stat().st_size < self.max_bytes:
                return
            self.before.unlink(missing_ok=True)
            try:
                self._copy()
            finally:
                os.truncate(self.path, 0)
        except OSError as err:
            with suppress(OSError):
                self.before.unlink(missing_ok=True)  # a part of it only
            log.warning("the log before this one is not kept: %s", err)
            return
        log.warning("a new log begins, because the one before had %d bytes: %s", self.max_bytes, self.before.name)

    def _copy(self) -> None:
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
        with open(self.path, "rb") as source, open(os.open(self.before, flags, 0o600), "wb") as copy:
            while part := source.read(2**20):
                copy.write(part)
