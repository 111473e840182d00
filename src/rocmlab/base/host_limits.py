"""What the administrator of a host allows each of its users: one file for all labs, `/etc/rocmlab/limits`.

Its lines are `NAME=value`; a line that begins with `#`, and an empty one, mean nothing. No environment variable names
another file. A simulated host (`ROCMLAB_ROOT`) has its own below its root. Containers see the folder read-only.

A host with the file `drained` next to it gives no new lease of a GPU; those that are held stay (`rocmlab hub drain`).
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from rocmlab.base.errors import RocmlabError

FOLDER = "/etc/rocmlab"
FILE = "limits"
DRAINED = "drained"  # its content is shown as the reason
MAX_GPUS, MAX_HOLD, NOTICE, GRACE = (
    "MAX_GPUS_PER_USER",
    "MAX_HOLD_SECONDS_WHILE_OTHERS_WAIT",
    "HOLD_NOTICE_SECONDS",
    "HOLD_GRACE_SECONDS",
)
MEANINGS = {  # by name: what it is, and its smallest value
    MAX_GPUS: ("number of GPUs", 1),
    MAX_HOLD: ("number of seconds", 60),
    NOTICE: ("number of seconds", 60),
    GRACE: ("number of seconds", 0),
}
MAX_BYTES = 65536
MAX_REASON = 200  # characters


@dataclass(frozen=True)
class HostLimits:
    """The limits of one host."""

    gpus_per_user: int | None = None  # that a user's leases may have at a time; None: all
    hold_seconds: int | None = None  # after which a kernel's lease ends if another user waits for it; None: never
    notice_seconds: int = 600  # between the warning and the end of an idle kernel
    grace_seconds: int = 3600  # for which a cell may continue to run after that
    path: Path = Path(FOLDER, FILE)
    drained: str | None = None  # why no GPU gets a new lease, which may be empty; None: they do

    def as_dict(self) -> dict[str, int | None]:
        """Return the limits by their names in the file; None is no limit."""
        values = (self.gpus_per_user, self.hold_seconds, self.notice_seconds, self.grace_seconds)
        return dict(zip(MEANINGS, values, strict=True))

    def where(self, name: str) -> str:
        """Return which line sets a limit, for messages."""
        return f"{name} in {self.path}"

    def why_drained(self) -> str | None:
        """Return why no GPU gets a new lease, for messages; None: they do."""
        if self.drained is None:
            return None
        reason = f": {self.drained}" if self.drained else ""
        return f"an administrator drains this machine{reason} ({self.path.with_name(DRAINED)})"


def path(root: Path = Path("/")) -> Path:
    """Return the file of this host, or of a simulated one.

    `/proc/PID/root` is this host as well, though another process may have mounted something else in it.
    """
    where = Path("/") if os.path.realpath(root) == "/" else root
    return where / FOLDER.lstrip("/") / FILE


def make_folder(folder: Path) -> None:
    """Make the folder, which every user may read, where it is missing; raise OSError if that is not possible."""
    if not folder.is_dir():
        folder.mkdir(parents=True)
        folder.chmod(0o755)


def read(root: Path = Path("/")) -> HostLimits:
    """Return the limits of a host; none where it has no such file.

    Raises:
        RocmlabError: it cannot be read, or a line is wrong; the error names it.
    """
    file = path(root)
    try:
        with file.open(encoding="utf-8") as opened:
            lines = opened.read(MAX_BYTES).splitlines()
    except (FileNotFoundError, NotADirectoryError):
        return HostLimits(path=file, drained=read_drained(file.with_name(DRAINED)))
    except (OSError, UnicodeDecodeError) as err:
        why = (err.strerror or str(err)) if isinstance(err, OSError) else "it is not UTF-8 text"
        raise RocmlabError(
            f"{file}, this host's limits for its users, cannot be read", why, f"on the host: sudo chmod a+r {file}"
        ) from err
    values: dict[str, int] = {}
    for number, line in enumerate(lines, 1):
        text = line.strip()
        if text and not text.startswith("#"):
            name, value = _parsed(text, f"{file}, line {number}")
            if name in values:
                raise _wrong(f"{file}, line {number}", text, f"{name} is set twice")
            values[name] = value
    return HostLimits(
        values.get(MAX_GPUS),
        values.get(MAX_HOLD),
        values.get(NOTICE, HostLimits.notice_seconds),
        values.get(GRACE, HostLimits.grace_seconds),
        file,
        read_drained(file.with_name(DRAINED)),
    )


def read_drained(file: Path) -> str | None:
    """Return the reason that the file has, in one line; None where there is no such file."""
    try:
        with file.open(encoding="utf-8", errors="replace") as opened:
            text = opened.read(MAX_REASON)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as err:
        return err.strerror or str(err)
    return "".join(sign if sign.isprintable() else " " for sign in text).strip()


def _parsed(text: str, where: str) -> tuple[str, int]:
    name, _, value = (part.strip() for part in text.partition("="))
    if name not in MEANINGS:
        raise _wrong(where, text, f"it is not one of {', '.join(MEANINGS)}")
    what, smallest = MEANINGS[name]
    if not (value.isascii() and value.isdecimal() and smallest <= int(value[:18]) and len(value) < 10):
        raise _wrong(where, text, f"{name} is a {what}, {smallest} or more")
    return name, int(value)


def _wrong(where: str, text: str, why: str) -> RocmlabError:
    return RocmlabError(f"{where}: {text[:200]!r} is not a limit", why, "on the host: correct or remove that line")
