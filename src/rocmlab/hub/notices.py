"""What an administrator tells all users of the hub, and whether the machine is drained; kept in a file of the hub's.

A drained machine starts no lab. Where the hub runs as root, it also gives no new GPU to kernels and runs, of the hub or
not (`rocmlab.base.host_limits`); what they have they keep.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from datetime import datetime, timezone
from pathlib import Path

from rocmlab.base import formatting, host_limits
from rocmlab.base.errors import RocmlabError
from rocmlab.hub import kept
from rocmlab.stack import envfile

FILE = "notices.json"
MAX_TEXT, MAX_REASON = 120, 80  # characters; JupyterLab's notifications show 140, with what is put in front
DRAIN = "No new labs and GPUs, what runs continues"


@dataclass(frozen=True)
class Notice:
    """One message, as plain text."""

    text: str
    since: str  # UTC, ISO 8601
    by: str  # who sent it

    @property
    def key(self) -> str:
        """What a page remembers it by."""
        return f"{self.since} {self.text}"


class Notices:
    """The messages of one hub."""

    def __init__(self, state: Path, root: Path) -> None:
        """Use the hub's folder, and the host below `root`."""
        self._path = state / FILE
        self._drained = host_limits.path(root).with_name(host_limits.DRAINED)

    def message(self) -> Notice | None:
        """Return the message to all users; None: nothing."""
        return self._read("message")

    def drain(self) -> Notice | None:
        """Return since when the machine is drained, and why; None: it is not."""
        own = self._read("drain")
        if own is None and (drained := host_limits.read_drained(self._drained)) is not None:  # not by this hub
            return Notice(drained, "", "root")
        return own

    def shown(self) -> list[Notice]:
        """Return all that users see: that the machine is drained, and the message."""
        drain, message = self.drain(), self.message()
        reason = f": {drain.text}" if drain and drain.text else ""
        found = [Notice(f"{DRAIN}{reason}", drain.since, drain.by)] if drain else []
        return [*found, message] if message else found

    def send(self, text: str, by: str) -> None:
        """Tell all users this in place of what they were told before; an empty text withdraws it.

        Raises:
            RocmlabError: it is too long.
        """
        self._write("message", _notice(text, by, MAX_TEXT) if text.strip() else None)

    def begin_drain(self, reason: str, by: str) -> str | None:
        """Start no lab and give no new GPU from now on; return why GPUs are given all the same, None: they are not.

        Raises:
            RocmlabError: the reason is too long.
        """
        self._write("drain", _notice(reason, by, MAX_REASON))
        try:
            host_limits.make_folder(self._drained.parent)
            envfile.write(self._drained, f"{_line(reason)}\n", mode=0o644)
        except (OSError, RocmlabError):
            return f"only root may write {self._drained}"
        return None

    def end_drain(self) -> None:
        """Start labs and give GPUs again.

        Raises:
            RocmlabError: the host's file cannot be removed.
        """
        try:
            self._drained.unlink(missing_ok=True)
        except OSError as err:
            if self._drained.exists():
                fix = f"on the host: sudo rm {self._drained}"
                raise RocmlabError("this machine stays drained", err.strerror or str(err), fix) from err
        self._write("drain", None)

    def check(self) -> None:
        """Raise RocmlabError if no lab may be started now."""
        if drain := self.drain():
            why = f"an administrator drains it{': ' if drain.text else ''}{drain.text}"
            raise RocmlabError("this machine starts no lab now", why, "start it later; labs that run are not ended")

    def _read(self, name: str) -> Notice | None:
        found = envfile.read_json(self._path).get(name)
        return Notice(**found) if found else None

    def _write(self, name: str, notice: Notice | None) -> None:
        found = {**envfile.read_json(self._path), name: asdict(notice) if notice else None}
        kept.write(self._path, json.dumps(found, indent=1) + "\n")


def _notice(text: str, by: str, limit: int) -> Notice:
    found = _line(text)
    if len(found) > limit:
        why = f"it has {len(found)} characters, and JupyterLab's notifications have space for {limit}"
        raise RocmlabError("this message is too long", why, "shorten it, and name a page with the rest")
    return Notice(found, formatting.utc(datetime.now(timezone.utc)), by)


def _line(text: str) -> str:
    """Return a text in one line, without control characters."""
    return " ".join("".join(sign if sign.isprintable() else " " for sign in text).split())
