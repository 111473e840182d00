"""How JupyterHub starts a lab: in a container of its own, or as a process of the user's own account.

Both first get the GPUs that the user has chosen from the hub's queue. The lab's own process then leases them
(`rocmlab.hub.lab`), so that they are its own as long as it runs, whatever happens to the hub.
"""

from __future__ import annotations

import asyncio
import hashlib
import html
import json
import os
import pwd
import resource
import signal
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from docker.errors import APIError
from dockerspawner import DockerSpawner
from jupyterhub.spawner import LocalProcessSpawner

from rocmlab.base import formatting, host_limits, identity, lease_folder
from rocmlab.base.errors import RocmlabError
from rocmlab.base.identity import Process
from rocmlab.devices import Device
from rocmlab.hub import cgroups, choices
from rocmlab.hub.cgroups import Cgroups
from rocmlab.hub.configuration import Configuration
from rocmlab.hub.native_lab import GIVEN
from rocmlab.hub.notices import Notices
from rocmlab.hub.problems import shown
from rocmlab.hub.queue import Place, Queue, label
from rocmlab.hub.uids import Uids, first_of_people
from rocmlab.kernels.leases import key
from rocmlab.stack import gpus, live, sockets

LEASE_SECONDS = 60.0  # in which a lab that was started leases its GPUs
LISTEN_SECONDS = 120.0  # in which it listens
LOOPBACK = "127.0.0.1"
HOST_NAME = 63  # characters that the kernel and names in a network have for it
PROGRESS_SECONDS = 2.0
GONE_SECONDS = 3.0
ERROR_BYTES = 4000
ERROR_LINES = 20
ACTIVITY_INTERVAL, ACTIVITY_SECONDS = "JUPYTERHUB_ACTIVITY_INTERVAL", 300  # JupyterHub's, and its default
CANCEL = "rocmlab/cancel/"  # below the hub's own pages


class WithGpus:
    """What both have in common: the choice of GPUs, the wait for them, and what the user sees meanwhile."""

    user: Any  # JupyterHub's, as are the next four
    hub: Any
    user_options: dict[str, object]
    poll: Callable[[], Awaitable[int | None]]
    pending: str | None  # `spawn`, `stop` or `check`
    settings_of_hub: Configuration  # of the class, as are the next two
    gpu_queue: Queue
    notices: Notices
    place: Place | None = None  # in the queue, while it waits
    _given: Sequence[Device] = ()
    _is_launched = False

    def choice(self) -> str:
        """Return what the user has chosen.

        Raises:
            HTTPError: it cannot be chosen.
        """
        try:
            return choices.parse(self.user_options, len(self.gpu_queue.devices()))
        except RocmlabError as err:
            raise shown(400, err) from err

    async def start(self) -> Any:  # noqa: ANN401  JupyterHub's
        """Wait for the GPUs, and start the lab with them."""
        count = choices.wanted(self.choice())
        self._given = ()
        try:
            self.notices.check()
            if count:
                self.place = self.gpu_queue.join(self.user.name, count)
                limit = self.settings_of_hub.limits.wait_seconds
                self._given = await self.gpu_queue.wait(self.place, limit, self.notices.check)
            self._is_launched = True
            found = await self.launch()
            await self._leased()
            await self._listening(found)
            return found
        except RocmlabError as err:
            raise shown(503, err) from err
        finally:
            if self.place is not None:
                self.place.close()
            self.place, self._is_launched = None, False

    def options_from_query(self, query: object) -> dict[str, str]:
        """Start nothing by a link, which any page may show: JupyterHub shows the form then."""
        raise shown(400, RocmlabError("a link does not start a lab", "another page may have made it", "choose below"))

    def what(self) -> str:
        """Return what it does now, in short."""
        if self.place is not None and not self._is_launched:
            return f"waits for {formatting.plural(self.place.count, 'GPU')}"
        return {None: "runs", "spawn": "starts", "stop": "stops"}.get(self.pending, "is checked")

    @property
    def uid(self) -> int | None:
        """The uid of the lab's processes, by which leases are known; None: it has none yet."""
        raise NotImplementedError

    async def launch(self) -> Any:  # noqa: ANN401
        """Start the lab with the GPUs that it was given."""
        raise NotImplementedError

    async def failure(self) -> str:
        """Return why a lab that has exited did not start, as far as that is known."""
        return "it has ended and printed nothing"

    async def is_listening(self, address: str, port: int) -> bool:
        """Return whether the lab listens there; raise RocmlabError if it is someone else."""
        raise NotImplementedError

    async def _leased(self) -> None:
        """Wait until the lab's own process has leased its GPUs.

        Raises:
            HTTPError: it has ended, or has not leased them in time.
        """
        deadline = time.monotonic() + LEASE_SECONDS
        while self._given and not await asyncio.to_thread(self.gpu_queue.is_leased, self._given):
            await self._check(deadline, f"its process did not lease its GPUs in {LEASE_SECONDS:.0f} s")

    async def _listening(self, where: tuple[str, int]) -> None:
        """Wait until the lab listens.

        Raises:
            HTTPError: it has ended, or does not listen in time.
            RocmlabError: someone else listens there.
        """
        deadline = time.monotonic() + LISTEN_SECONDS
        while not await self.is_listening(*where):
            await self._check(deadline, f"it does not listen at {where[0]}:{where[1]} after {LISTEN_SECONDS:.0f} s")

    async def _check(self, deadline: float, late: str) -> None:
        """Raise HTTPError if the lab has ended, or is late; else wait a moment."""
        if await self.poll() is not None:
            raise shown(500, RocmlabError("the lab did not start", await self.failure(), "start it again"))
        if time.monotonic() > deadline:
            raise shown(500, RocmlabError("the lab did not start", late, "start it again"))
        await asyncio.sleep(0.2)

    async def progress(self) -> AsyncIterator[dict[str, object]]:
        """Tell the user, while the start page is open, what the lab waits for, with a link to give up."""
        last = ""
        while True:
            place = None if self._is_launched else self.place
            text = await asyncio.to_thread(self._waiting, place) if place else "the lab is being started"
            if text != last:
                last = text
                yield {"progress": 10 if place else 50, "message": text, **self._link(text, place)}
            await asyncio.sleep(PROGRESS_SECONDS)

    def _waiting(self, place: Place) -> str:
        ahead = self.gpu_queue.ahead(place)
        text = f"waiting for {formatting.plural(place.count, 'GPU')}"
        text += f" behind {formatting.plural(ahead, 'other')}" if ahead else ""
        return ". ".join([text, *self.gpu_queue.lines()])

    def _link(self, text: str, place: Place | None) -> dict[str, str]:
        if place is None:
            return {}
        address = f"{self.hub.base_url}{CANCEL}{place.secret}"
        return {"html_message": f'{html.escape(text)}. <a href="{html.escape(address)}">Stop waiting</a>'}

    def get_env(self) -> dict[str, str]:
        """Return the lab's environment: JupyterHub's own, and whose lab it is with which GPUs."""
        found: dict[str, str] = super().get_env()  # type: ignore[misc]  # of the spawner that this is mixed into
        choice = self.choice()
        chosen = ",".join(key(device) for device in self._given) if choices.wanted(choice) else choice
        if idle := self.settings_of_hub.limits.idle_seconds:  # so that a lab that computes is known to before that
            found.setdefault(ACTIVITY_INTERVAL, str(max(1, min(ACTIVITY_SECONDS, idle // 4))))
        return {
            **found,
            choices.VARIABLE: chosen,
            "ROCMLAB_USER": self.user.name,
            "ROCMLAB_LAB": self.settings_of_hub.name,
        }


def options_form(spawner: WithGpus) -> str:
    """Return the form of the start page."""
    held = spawner.gpu_queue.held()
    rows = []
    for device in spawner.gpu_queue.devices():
        holder = held.get(device)
        who, since = (holder.who(), holder.started) if holder else (None, None)
        rows.append(choices.Gpu(label(device), who, since, device.simulated))
    return choices.form(rows)


def options_from_form(form: Mapping[str, Sequence[str]]) -> dict[str, str]:
    """Return what a user has chosen on the start page."""
    return {choices.FIELD: form[choices.FIELD][0]} if form.get(choices.FIELD) else {}


def names(spawner: DockerSpawner) -> dict[str, str]:
    """Return the host name of a container; one of a long user name is cut, as the kernel would not take it."""
    found = f"lab-{spawner.escaped_name}"
    if len(found) > HOST_NAME:
        found = f"{found[: HOST_NAME - 9]}-{hashlib.sha256(found.encode()).hexdigest()[:8]}"
    return {"hostname": found}


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


class ContainerSpawner(WithGpus, DockerSpawner):  # type: ignore[misc]
    """A lab in a container of its own, from the lab's image."""

    uids: Uids  # of the class

    @property
    def uid(self) -> int | None:
        """The one that its container got, if there was any."""
        return self.uids.known(self.user.name)

    async def launch(self) -> Any:  # noqa: ANN401
        """Start the container."""
        self.extra_host_config = {**self._common_host_config(), **self._gpu_config()}
        return await DockerSpawner.start(self)

    def _common_host_config(self) -> dict[str, Any]:
        found = self.settings_of_hub
        # The spawner removes it, so that what a lab that has ended by itself said can be read first.
        host: dict[str, Any] = {"shm_size": found.shm_size, "network_mode": found.network, "auto_remove": False}
        host["security_opt"] = ["label=disable"]  # as in compose.yaml
        if found.limits.pids:
            host["pids_limit"] = found.limits.pids
        if found.limits.memory_bytes:
            host["memswap_limit"] = found.limits.memory_bytes  # the same as its memory: no swap beyond it
        return host

    def _gpu_config(self) -> dict[str, Any]:
        """Return how the container gets exactly its GPUs; all of them where each kernel leases its own."""
        found, choice = self.settings_of_hub, self.choice()
        devices = (
            self._given if choices.wanted(choice) else self.gpu_queue.devices() if choice == choices.PER_KERNEL else ()
        )
        if found.root != "/" or found.backend not in ("rocm", "cuda"):
            return {}  # the nodes of a simulated host are files; its masks hide the others
        passed = gpus.exactly(found.backend, list(devices))
        host: dict[str, Any] = {"group_add": list(found.groups)} if found.backend == "rocm" else {}
        if found.backend == "rocm":
            # Without /dev/kfd a lab for AMD GPUs refuses to start; without a render node it reaches none.
            host["devices"] = [f"{path}:{path}:rw" for path in passed.nodes or ("/dev/kfd",)]
        elif passed.ids:
            host["device_requests"] = [{"Driver": "nvidia", "DeviceIDs": list(passed.ids), "Capabilities": [["gpu"]]}]
        return host

    def get_env(self) -> dict[str, str]:
        """Return the container's environment."""
        found = self.settings_of_hub
        simulated = {"ROCMLAB_ROOT": "/opt/simulated-host"} if found.root != "/" else {}
        account = {"NB_UID": str(self.uids.of(self.user.name)), "NB_GID": "100"}
        return {**super().get_env(), **account, **simulated}

    @property
    def volume_binds(self) -> dict[str, Any]:
        """What the container sees of this host: the user's own volumes, the leases, and the common folders."""
        found, user = self.settings_of_hub, self.escaped_name
        own = {f"{found.name}-{user}-{part}": part for part in ("work", "share")}
        # `nocopy`: an empty volume is given to the user by the entry point, whatever the image has in its place.
        binds: dict[str, Any] = {
            volume: {"bind": f"/home/jovyan/{part}", "mode": "rw,nocopy"} for volume, part in own.items()
        }
        root = "/opt/simulated-host" if found.root != "/" else ""
        if root:
            binds[found.root] = {"bind": root, "mode": "ro"}
            binds[f"{found.root}/dev"] = {"bind": f"{root}/dev", "mode": "rw"}
        binds[found.leases] = {"bind": f"{root}{lease_folder.USUAL}", "mode": "rw"}
        binds[f"{found.state}/live"] = {"bind": live.INSIDE, "mode": "ro"}
        limits = host_limits.path().parent
        if not root and limits.is_dir():
            binds[str(limits)] = {"bind": host_limits.FOLDER, "mode": "ro"}
        if found.data:
            binds[found.data] = {"bind": "/home/jovyan/data", "mode": "ro"}
        if found.common:
            binds[found.common] = {"bind": "/home/jovyan/common", "mode": "rw"}
        return binds

    async def is_listening(self, address: str, port: int) -> bool:
        """Return whether the container listens; its address is its own."""
        try:
            _, writer = await asyncio.wait_for(asyncio.open_connection(address, port), timeout=5)
        except (OSError, asyncio.TimeoutError):
            return False
        writer.close()
        return True

    async def failure(self) -> str:
        """Return the last lines of a container that has ended."""
        text = b""
        with suppress(APIError):
            text = await self.docker("logs", self.object_name, tail=ERROR_LINES)
        return text.decode("utf-8", "replace")[-ERROR_BYTES:].strip() or await super().failure()
