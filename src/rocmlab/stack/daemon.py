"""One of our processes in the background, distinguished from all others by process id, start time and a random mark.

The mark is in its environment, which only this user and root can read, and in a file in `.rocmlab`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from rocmlab.base import identity
from rocmlab.base.identity import Process
from rocmlab.stack import envfile

TYPE_CHECKING = False  # `typing` itself would cost `smi` milliseconds
if TYPE_CHECKING:
    import subprocess
    from typing import Any

TAIL_LINES = 15


class Daemon:
    """One such process, running or not."""

    variable = ""  # of its environment, with the mark

    def __init__(self, record: Path, mark: str = "") -> None:
        self.record = record  # pid, start time, mark and configuration of the running process
        self.mark = mark  # of the process that this one would start
        self.child: subprocess.Popen[bytes] | None = None  # the process, if this very process started it

    def recorded(self) -> dict[str, Any]:
        """Return the record, empty where there is none."""
        return envfile.read_json(self.record)

    def remember(self, pid: int, configuration: Mapping[str, object], **facts: str) -> None:
        """Record the process that was just started with our mark."""
        found = {"pid": pid, "started": identity.start_of(pid), "mark": self.mark, "configuration": dict(configuration)}
        envfile.write(self.record, json.dumps({**found, **facts}) + "\n")

    def launch(
        self,
        command: Sequence[str],
        environment: Mapping[str, str],
        configuration: Mapping[str, object],
        *,
        log: Path,
        cwd: Path,
        **facts: str,
    ) -> subprocess.Popen[bytes]:
        """Start it with its output in a private log, and record it."""
        import subprocess

        log.unlink(missing_ok=True)
        with open(log, "x", encoding="utf-8", opener=envfile.private) as file:
            self.child = child = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                env={**environment, self.variable: self.mark},
                cwd=cwd,
                start_new_session=True,  # it outlives this terminal
            )
        self.remember(child.pid, configuration, **facts)
        return child

    def find(self) -> Process | None:
        """Return the recorded process, if it is running."""
        facts = self.recorded()
        pid = facts.get("pid")
        process = identity.find(pid) if isinstance(pid, int) else None
        if process is None or identity.uid_of(process.pid) not in identity.own_uids():
            return None
        if mark := facts.get("mark"):
            is_same = process.started == facts.get("started")
            is_same = is_same and identity.variable(process.pid, self.variable) == mark
        else:
            is_same = self._is_unmarked(process, facts)
        return process if is_same else None

    def _is_unmarked(self, process: Process, facts: Mapping[str, Any]) -> bool:
        """Return whether a process is ours that an earlier version recorded without a mark."""
        return False

    def forget(self) -> None:
        """Remove the record of the process, which has exited."""
        if self.child is not None:
            self.child.wait()
            self.child = None
        self.record.unlink(missing_ok=True)


def last_lines(log: Path) -> str:
    """Return the end of a log, for an error."""
    return "last log lines:\n" + "\n".join(log.read_text("utf-8", "replace").strip().splitlines()[-TAIL_LINES:])
