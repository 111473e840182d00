"""How JupyterHub starts a lab: in a container of its own, or as a process of the user's own account.

Both first get the GPUs that the user has chosen from the hub's queue. The lab's own process then leases them
(`rocmlab.hub.lab`), so that they are its own as long as it runs, whatever happens to the hub.
"""

from __future__ import annotations

import asyncio
import html
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from typing import Any

from rocmlab.base import formatting
from rocmlab.base.errors import RocmlabError
from rocmlab.devices import Device
from rocmlab.hub import choices
from rocmlab.hub.configuration import Configuration
from rocmlab.hub.notices import Notices
from rocmlab.hub.problems import shown
from rocmlab.hub.queue import Place, Queue, label
from rocmlab.kernels.leases import key

LEASE_SECONDS = 60.0  # in which a lab that was started leases its GPUs
LISTEN_SECONDS = 120.0  # in which it listens
PROGRESS_SECONDS = 2.0
ERROR_BYTES = 4000  # of what a lab said that did not start
ACTIVITY_INTERVAL, ACTIVITY_SECONDS = "JUPYTERHUB_ACTIVITY_INTERVAL", 300  # JupyterHub's, and its default
CANCEL = "rocmlab/cancel/"  # below the hub's own pages


def activity_seconds(idle_seconds: int) -> int:
    """Return how often labs report that they compute, and the hub looks, where it stops those that are idle so long."""
    return max(1, min(ACTIVITY_SECONDS, idle_seconds // 4))


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
            found.setdefault(ACTIVITY_INTERVAL, str(activity_seconds(idle)))
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
