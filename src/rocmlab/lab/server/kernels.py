"""The kernels of this server: what they are, what they hold, and what may be done to them.

No process has to be looked for: the server knows each kernel's process, its lease, and the path that its notebook has
now, which follows a rename while the kernel's own environment keeps the old one.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timezone
from typing import Any

from jupyter_core.utils import ensure_async
from tornado.web import HTTPError

from rocmlab.base import live
from rocmlab.base.errors import RocmlabError
from rocmlab.devices import Device
from rocmlab.lab.server import idle
from rocmlab.lab.server.leased import lease_of, turn_of
from rocmlab.lab.server.wire import UnknownKernelError
from rocmlab.telemetry.model import device_id

Row = dict[str, Any]


class Kernels:
    """The kernels of one server, through the managers that JupyterLab's own requests go through."""

    def __init__(self, kernels: Any, sessions: Any) -> None:  # noqa: ANN401  jupyter_server's managers
        self._kernels = kernels
        self._sessions = sessions

    async def rows(self) -> list[Row]:
        """Return what each kernel is and holds, in the order in which they were started."""
        names = {session["kernel"]["id"]: _name(session) for session in await self._list_sessions()}
        now, patience = datetime.now(timezone.utc), _start_timeout_seconds()
        found = []
        for kernel_id in self._kernels.list_kernel_ids():
            try:
                manager = self._kernels.get_kernel(kernel_id)
            except (KeyError, HTTPError):
                continue  # it has ended since the list was made
            found.append(_row(kernel_id, manager, names.get(kernel_id), now, patience))
        return found

    def gpus(self, kernel_id: str) -> tuple[Device, ...]:
        """Return the GPUs that a kernel has a lease of."""
        manager = self._kernels.get_kernel(kernel_id) if kernel_id in self._kernels else None
        return manager.provisioner.owned.devices if manager and lease_of(manager) else ()

    async def act(self, kernel_id: str, action: str) -> None:
        """Interrupt, restart or shut down a kernel; raise RocmlabError if that could not be done."""
        if kernel_id not in self._kernels:
            raise UnknownKernelError(
                f"kernel {kernel_id[:64]} not found",
                "it has been shut down meanwhile, or it is another server's",
                "reload the page: it shows the current kernels",
            )
        try:
            if action == "interrupt":
                await ensure_async(self._kernels.interrupt_kernel(kernel_id))
            elif action == "restart":
                answer = await ensure_async(self._kernels.restart_kernel(kernel_id))
                if hasattr(answer, "__await__"):  # Jupyter's future for the kernel's first answer, as its own REST does
                    await answer
            else:
                await self._shut_down(kernel_id)
        except Exception as err:
            raise RocmlabError(
                f"the kernel {kernel_id} could not be {'shut down' if action == 'shutdown' else action + 'ed'}",
                f"{type(err).__name__}: {err}",
                "Kernel > Shut Down Kernel in its notebook; the server's log: make logs",
            ) from err

    async def _shut_down(self, kernel_id: str) -> None:
        """End the session with it, if there is one, as JupyterLab does; other sessions of it end with the kernel."""
        for session in await self._list_sessions():
            if session["kernel"]["id"] == kernel_id:
                await ensure_async(self._sessions.delete_session(session["id"]))
                return
        await ensure_async(self._kernels.shutdown_kernel(kernel_id))

    async def _list_sessions(self) -> list[Row]:
        found: list[Row] = await ensure_async(self._sessions.list_sessions())
        return [session for session in found if session.get("kernel")]


def _name(session: Mapping[str, Any]) -> str | None:
    """Return the notebook's path; a console has no file, and is called by its name."""
    if session.get("type") == "console":
        return str(session.get("name") or session.get("path") or "a console")
    return str(session["path"]) if session.get("path") else None


def _start_timeout_seconds() -> float:
    """Return after how long a kernel no longer counts as starting.

    Its state is `starting` until a client, such as a notebook, has sent it a message, however long it has been ready.
    """
    try:
        return idle.Limits.of(live.values()).warned_seconds or idle.DEFAULT_SECONDS
    except RocmlabError:  # the warning itself reports an invalid setting
        return idle.DEFAULT_SECONDS


def _idle_since(manager: Any, now: datetime, patience_seconds: float) -> datetime | None:  # noqa: ANN401
    """Return since when a kernel does nothing; None if it works, or that is unknown."""
    state, since = getattr(manager, "execution_state", None), getattr(manager, "last_activity", None)
    if state == "idle":
        return since
    is_silent = state == "starting" and since and (now - since).total_seconds() > patience_seconds
    return since if is_silent else None  # the last activity of such a one is its start


def _row(
    kernel_id: str,
    manager: Any,  # noqa: ANN401
    notebook: str | None,
    now: datetime,
    patience_seconds: float,
) -> Row:
    provisioner = getattr(manager, "provisioner", None)  # none while it starts, and with kernels of a gateway
    owned = getattr(provisioner, "owned", None)  # only of our provisioner; none if the kernel was rejected
    lease, turn = lease_of(manager), turn_of(manager)
    since = _idle_since(manager, now, patience_seconds)
    state = getattr(manager, "execution_state", None)
    begun = getattr(manager, "last_activity", None) if state == "starting" else None  # nothing else counts until then
    return {
        "kernel_id": kernel_id,
        "pid": getattr(provisioner, "pid", None),
        "notebook": notebook,
        "kernel_name": getattr(manager, "kernel_name", None),
        "state": state,
        "starting_since_seconds": begun.timestamp() if begun else None,  # Unix time; None: it does not start
        "idle_seconds": round(max(0.0, (now - since).total_seconds()), 3) if since else None,
        "idle_since_seconds": since.timestamp() if since else None,  # Unix time
        "devices": [device_id(device) for device in owned.devices] if owned else [],
        "is_gpu_shared": bool(owned and owned.is_shared),  # it uses a GPU that nothing can reserve: Metal, WSL2
        "since": lease.holder.started if lease else None,  # of the lease; None: it has none
        "queue": {"gpus": turn.count, "ticket": turn.ticket_name} if turn else None,  # None: it waits for no GPU
    }
