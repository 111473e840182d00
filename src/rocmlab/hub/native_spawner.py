"""A lab of JupyterHub as a process of the user's own account."""

from __future__ import annotations

import asyncio
import json
import os
import pwd
import resource
import signal
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Any

from jupyterhub.spawner import LocalProcessSpawner

from rocmlab.base import identity
from rocmlab.base.errors import RocmlabError
from rocmlab.base.identity import Process
from rocmlab.hub import cgroups
from rocmlab.hub.cgroups import Cgroups
from rocmlab.hub.native_lab import GIVEN
from rocmlab.hub.problems import shown
from rocmlab.hub.spawners import ERROR_BYTES, WithGpus
from rocmlab.hub.uids import first_of_people
from rocmlab.stack import sockets

LOOPBACK = "127.0.0.1"
GONE_SECONDS = 3.0


class NativeSpawner(WithGpus, LocalProcessSpawner):  # type: ignore[misc]  # jupyterhub has no types for mypy
    """A lab as a process of the user's own account on this host; the hub is root."""

    pid: int  # JupyterHub's
    cgroups: Cgroups  # of the class
    _cgroup: Path | None = None  # with the lab's limits
    _errors: Path | None = None  # what the lab's process says until it is JupyterLab
    _started = ""  # when the process was started: its number may be another's after a reboot

    async def launch(self) -> Any:  # noqa: ANN401
        """Start the process, in the user's home, with the user's groups."""
        try:
            account = pwd.getpwnam(self.user.name)
        except KeyError:
            why = "labs run under the accounts of this host"
            problem = RocmlabError(
                f"{self.user.name} has no account on this host", why, f"sudo adduser {self.user.name}"
            )
            raise shown(403, problem) from None
        if account.pw_uid == 0:
            problem = RocmlabError(
                "root has no lab here", "a lab runs any code that a page sends", "log in as another user"
            )
            raise shown(403, problem)
        if self.settings_of_hub.access.authenticator != "pam" and account.pw_uid < first_of_people():
            why = f"uid {account.pw_uid} is one of this host's services, and it was not this host that checked the name"
            raise shown(403, RocmlabError(f"{self.user.name} has no lab here", why, "log in as another user"))
        found = self.settings_of_hub
        self.cmd = [
            found.lab_python,
            "-P",
            "-m",
            "rocmlab.hub.native_lab",
            found.lab_python,
            "-P",
            "-m",
            "jupyterhub.singleuser",
        ]
        limits, self._cgroup = found.limits, None
        if limits.need_cgroup:
            self._cgroup = await asyncio.to_thread(self.cgroups.make, account.pw_uid, limits.memory_bytes, limits.cpus)
        descriptor, name = tempfile.mkstemp(prefix="start-", suffix=".log", dir=found.state)
        self._forget_errors()
        self._errors = Path(name)
        self.popen_kwargs = {"stdin": -3, "stdout": descriptor, "stderr": descriptor}  # -3: subprocess.DEVNULL
        try:
            address = await LocalProcessSpawner.start(self)
        finally:
            os.close(descriptor)
        self._started = identity.start_of(self.pid) or ""
        return address

    @property
    def uid(self) -> int | None:
        """That of the user's account."""
        try:
            return pwd.getpwnam(self.user.name).pw_uid
        except KeyError:
            return None

    async def is_listening(self, address: str, port: int) -> bool:
        """Return whether the lab's user listens there.

        Raises:
            RocmlabError: another user does, who would get the cookies of whoever opens this lab.
        """
        found = await asyncio.to_thread(sockets.listeners, port) if address == LOOPBACK else None
        if found is None:
            return True  # it is unknown, and JupyterHub itself waits then
        own = pwd.getpwnam(self.user.name).pw_uid
        if others := {listener.uid for listener in found} - {own}:
            who = ", ".join(map(str, sorted(others)))
            why = f"a program of uid {who} listens on port {port} of this host, which was chosen for this lab"
            fix = "start the lab again, and tell an administrator"
            raise RocmlabError("the lab's port was taken by another user", why, fix)
        return bool(found)

    def make_preexec_fn(self, name: str) -> Any:  # noqa: ANN401
        """Return what the child does before it becomes the lab: limits, then the user's ids and home."""
        become, pids = super().make_preexec_fn(name), self.settings_of_hub.limits.pids

        def prepare() -> None:
            os.umask(0o077)
            if self._cgroup:
                cgroups.enter(self._cgroup)
            if pids:
                resource.setrlimit(resource.RLIMIT_NPROC, (pids, pids))
            become()

        return prepare

    def user_env(self, env: dict[str, str]) -> dict[str, str]:
        """Add what the lab's process needs of the hub's settings."""
        found = self.settings_of_hub
        given = {"project": found.project, "backend": found.backend, "root": found.root, "settings": found.lab}
        given |= {"data": found.data, "common": found.common}
        env = super().user_env(env)
        return {**env, GIVEN: json.dumps(given), "LOGNAME": self.user.name}

    async def failure(self) -> str:
        """Return what the lab's process said before it was JupyterLab."""
        text = ""
        with suppress(OSError):
            if self._errors:
                with self._errors.open("rb") as file:  # which the user's process writes, so it may be large
                    file.seek(max(0, self._errors.stat().st_size - ERROR_BYTES))
                    text = file.read(ERROR_BYTES).decode("utf-8", "replace")
        return text.strip() or await super().failure()

    def _forget_errors(self) -> None:
        if self._errors:
            self._errors.unlink(missing_ok=True)
        self._errors = None

    def get_state(self) -> dict[str, Any]:
        """Return what a later hub needs to know this process again."""
        found: dict[str, Any] = super().get_state()
        return {**found, "started": self._started} if self.pid else found

    def load_state(self, state: dict[str, Any]) -> None:
        """Know the process again, unless its number is another's now."""
        super().load_state(state)
        self._started = state.get("started", "")
        if self.pid and (not self._started or identity.start_of(self.pid) != self._started):
            self.pid = 0

    async def _signal(self, sig: int) -> bool:
        """Send a signal to this very process; return whether it is still there."""
        process = Process(self.pid, self._started)
        if sig:
            await asyncio.to_thread(process.send, sig)
        return process.is_alive

    async def stop(self, now: bool = False) -> None:
        """Stop the lab, and all that it has started."""
        family = await asyncio.to_thread(identity.family, Process(self.pid, self._started)) if self.pid else []
        await super().stop(now=now)
        for number in (signal.SIGTERM, signal.SIGKILL):
            left = [each for each in family if each.is_alive]
            await asyncio.to_thread(identity.send, left, number)
            await asyncio.to_thread(identity.wait_gone, left, GONE_SECONDS)
        if (uid := self.uid) is not None:
            self.cgroups.remove(uid)
        self._forget_errors()
