"""The native lab's server process, distinguished from every other: by number, start time and a random mark.

The mark is in the server's environment, which only this user and root can read, and in `.rocmlab/jupyter.json`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from rocmlab.base import identity
from rocmlab.base.identity import Process
from rocmlab.stack import envfile, sockets
from rocmlab.stack.sockets import NOBODY, OTHER, OURS, UNKNOWN, Holder, trusted


@dataclass
class ServerProcess:
    """The server of one native lab, running or not."""

    record: Path  # pid, start time, mark and configuration of the running server
    home: Path  # what JupyterLab shows; its process is in the work/ of it
    port: int
    mark: str = ""  # of the server that this process would start

    def remember(self, pid: int, configuration: Mapping[str, str]) -> None:
        """Write down the server that was just started with our mark."""
        from rocmlab.stack import source

        started = identity.start_of(pid)
        commit = source.head(Path(__file__).resolve().parents[3])  # whose code it goes on with
        facts = {"pid": pid, "started": started, "mark": self.mark, "configuration": dict(configuration)}
        facts["commit"] = commit
        envfile.write(self.record, json.dumps(facts) + "\n")

    def recorded(self) -> dict[str, object]:
        """Return what the record says, empty where there is none."""
        return envfile.read_json(self.record)

    def find(self) -> Process | None:
        """Return the running server: that of the record, else one of ours that listens though its record is lost."""
        facts = self.recorded()
        pid = facts.get("pid")
        process = identity.find(pid) if isinstance(pid, int) else None
        if process and self._is_recorded(process, facts):
            return process
        for listener in sockets.listeners(self.port) or ():
            if listener.uid in identity.own_uids() and (pid := sockets.holder(listener)):
                process = identity.find(pid)
                if process and self._looks_like_ours(process, self.port):
                    return process
        return None

    def _is_recorded(self, process: Process, facts: Mapping[str, object]) -> bool:
        if identity.uid_of(process.pid) not in identity.own_uids():
            return False
        if mark := facts.get("mark"):
            is_same = process.started == facts.get("started")
            return is_same and identity.variable(process.pid, identity.SERVER) == mark
        configuration = facts.get("configuration")  # of a version that recorded no mark
        port = str(configuration.get("PORT", "")) if isinstance(configuration, dict) else ""
        return self._looks_like_ours(process, int(port) if port.isdecimal() else self.port)

    def _looks_like_ours(self, process: Process, port: int) -> bool:
        """Return whether a process is a server of this very folder: by command line, folder, user and socket."""
        words = identity.arguments_of(process.pid)
        has_command = "jupyterlab" in words and f"--ServerApp.root_dir={self.home}" in words
        if not has_command or identity.uid_of(process.pid) not in identity.own_uids():
            return False
        folder = identity.folder_of(process.pid)
        if folder not in (self.home.resolve(), (self.home / "work").resolve()):  # the first: of an earlier version
            return False
        return any(sockets.is_held_by(each, process.pid) for each in sockets.listeners(port) or ())

    def holder(self) -> Holder:
        """Look who listens on the port: ours only if every socket there is held by our server."""
        found = sockets.listeners(self.port)
        if not found:
            return Holder(UNKNOWN if found is None else NOBODY)
        process = self.find()
        if process and all(trusted(each.uid) and sockets.is_held_by(each, process.pid) for each in found):
            return Holder(OURS, found)
        if process is None and all(trusted(each.uid) and sockets.holder(each) is None for each in found):
            return Holder(UNKNOWN, found)  # this user's, in a process table that is not visible: a sandboxed terminal
        return Holder(OTHER, found)
