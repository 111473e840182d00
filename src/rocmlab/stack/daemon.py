"""One of our processes in the background, distinguished from all others by process id, start time and a random token.

The token is in its environment, which only this user and root can read, and in a file in `.rocmlab`.
"""

from __future__ import annotations

import json
import os
import signal
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

    variable = ""  # of its environment, with the token

    def __init__(self, record: Path, token: str = "") -> None:
        self.record = record  # pid, start time, token and configuration of the running process
        self.token = token  # of the process that this one would start
        self.child: subprocess.Popen[bytes] | None = None  # the process, if this very process started it

    def recorded(self) -> dict[str, Any]:
        """Return the record, empty where there is none."""
        return envfile.read_json(self.record)

    def remember(self, pid: int, configuration: Mapping[str, object], **facts: str) -> None:
        """Record the process that was just started with our token."""
        found = {"pid": pid, "started": identity.start_of(pid), "mark": self.token}
        envfile.write(self.record, json.dumps({**found, "configuration": dict(configuration), **facts}) + "\n")

    def launch(
        self,
        command: Sequence[str],
        environment: Mapping[str, str],
        configuration: Mapping[str, object],
        *,
        log: Path,
        cwd: Path,
        keep: Sequence[int] = (),
        **facts: str,
    ) -> subprocess.Popen[bytes]:
        """Start it with its output in a private log, and record it; it has the descriptors `keep` as well."""
        import subprocess

        log.unlink(missing_ok=True)
        # Appending: who empties it while this runs leaves no hole of the size that it had.
        with open(os.open(log, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND, 0o600), "wb") as file:
            self.child = child = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                env={**environment, self.variable: self.token},
                cwd=cwd,
                start_new_session=True,  # it outlives this terminal
                pass_fds=keep,
            )
        try:
            self.remember(child.pid, configuration, **facts)
        except BaseException:
            os.killpg(child.pid, signal.SIGKILL)  # no later command would find it
            self.child = None
            child.wait()
            raise
        return child

    def find(self) -> Process | None:
        """Return the recorded process, if it is running."""
        facts = self.recorded()
        pid = facts.get("pid")
        process = identity.find(pid) if isinstance(pid, int) else None
        if process is None or identity.uid_of(process.pid) not in identity.own_uids():
            return None
        token, is_same = facts.get("mark"), process.started == facts.get("started")
        return process if token and is_same and identity.variable(process.pid, self.variable) == token else None

    def forget(self) -> None:
        """Remove the record of the process, which has exited."""
        if self.child is not None:
            self.child.wait()
            self.child = None
        self.record.unlink(missing_ok=True)


def last_lines(log: Path) -> str:
    """Return the end of a log, for an error."""
    return "last log lines:\n" + "\n".join(log.read_text("utf-8", "replace").strip().splitlines()[-TAIL_LINES:])
