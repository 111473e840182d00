"""The native lab's server process; see `Daemon`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from rocmlab.base import identity
from rocmlab.base.identity import Process
from rocmlab.stack import sockets
from rocmlab.stack.daemon import Daemon
from rocmlab.stack.sockets import NOBODY, OTHER, OURS, UNKNOWN, Holder, trusted


class ServerProcess(Daemon):
    """The server of one native lab, running or not."""

    variable = identity.SERVER

    def __init__(self, record: Path, home: Path, port: int, token: str = "") -> None:
        super().__init__(record, token)
        self.home = home  # what JupyterLab shows; its process is in the work/ of it
        self.port = port

    def remember(self, pid: int, configuration: Mapping[str, object], **facts: str) -> None:
        """Record the server that was just started with our token, and whose code it runs."""
        from rocmlab.stack import source

        commit = source.head(Path(__file__).resolve().parents[3])
        super().remember(pid, configuration, commit=commit, **facts)

    def find(self) -> Process | None:
        """Return the running server: that of the record, else our own that listens although its record is lost."""
        if recorded := super().find():
            return recorded
        for listener in sockets.listeners(self.port) or ():
            if listener.uid in identity.own_uids() and (pid := sockets.holder(listener)):
                process = identity.find(pid)
                if process and self._looks_like_ours(process):
                    return process
        return None

    def _looks_like_ours(self, process: Process) -> bool:
        """Return whether a process is a server of this very folder: by command line, folder, user and socket."""
        arguments = identity.arguments_of(process.pid)
        has_command = "jupyterlab" in arguments and f"--ServerApp.root_dir={self.home}" in arguments
        if not has_command or identity.uid_of(process.pid) not in identity.own_uids():
            return False
        if identity.folder_of(process.pid) not in (self.home.resolve(), (self.home / "work").resolve()):
            return False
        return any(sockets.is_held_by(each, process.pid) for each in sockets.listeners(self.port) or ())

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
