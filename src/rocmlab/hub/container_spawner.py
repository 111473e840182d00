"""A lab of JupyterHub in a container of its own."""

from __future__ import annotations

import asyncio
import hashlib
from contextlib import suppress
from typing import Any

from docker.errors import APIError
from dockerspawner import DockerSpawner

from rocmlab.base import host_limits, lease_folder
from rocmlab.hub import choices
from rocmlab.hub.spawners import ERROR_BYTES, WithGpus
from rocmlab.hub.uids import Uids
from rocmlab.stack import gpus, live

HOST_NAME = 63  # characters that the kernel and names in a network have for it
ERROR_LINES = 20


def names(spawner: DockerSpawner) -> dict[str, str]:
    """Return the host name of a container; one of a long user name is cut, as the kernel would not take it."""
    found = f"lab-{spawner.escaped_name}"
    if len(found) > HOST_NAME:
        found = f"{found[: HOST_NAME - 9]}-{hashlib.sha256(found.encode()).hexdigest()[:8]}"
    return {"hostname": found}


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
