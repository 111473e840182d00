"""Pages and interface for administrators: what happens on this machine, and stopping labs, telling users, draining it.

Forms without scripts, each with JupyterHub's XSRF token; the interface has the same for `rocmlab hub` and its token.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from datetime import datetime, timezone
from functools import partial
from pathlib import Path
from typing import Any

from jupyterhub import orm
from jupyterhub.apihandlers import APIHandler
from jupyterhub.handlers import BaseHandler
from jupyterhub.scopes import needs_scope
from tornado import ioloop, web

from rocmlab.base import formatting
from rocmlab.base.errors import RocmlabError
from rocmlab.devices import Device
from rocmlab.hub import choices, overview, usage
from rocmlab.hub.overview import Lab, Overview
from rocmlab.hub.problems import shown
from rocmlab.hub.spawners import WithGpus

PAGE = "rocmlab/labs"  # below the hub's own pages
API = "api/rocmlab"
ACTIONS = ("stop", "message", "drain", "undrain")

Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]
sees: Decorator = needs_scope("admin-ui")
acts: Decorator = needs_scope("admin:servers")


class Administration:
    """What both kinds of handlers do; the rest of a handler is JupyterHub's."""

    db: Any
    users: Any
    current_user: Any
    stop_single_user: Any

    def spawners(self) -> list[Any]:
        """Return the spawner of each user."""
        return [self.users[row].spawners[""] for row in self.db.query(orm.User).order_by(orm.User.name)]

    async def look(self) -> Overview:
        """Return all that is known now."""
        spawners = self.spawners()
        try:
            names = {each.uid: each.user.name for each in spawners if each.uid is not None}
        except RocmlabError as err:
            raise shown(500, err) from err
        on_a_thread = partial(ioloop.IOLoop.current().run_in_executor, None)
        devices = await on_a_thread(WithGpus.gpu_queue.devices)
        labs = [_lab(each, len(devices)) for each in spawners if each.active or each.pending]
        return await on_a_thread(_overview, devices, labs, names)

    async def act(self, action: str, given: Mapping[str, str]) -> str | None:
        """Do what an administrator wants, and return what is to be known of it; None: nothing.

        Raises:
            RocmlabError: it cannot be done.
        """
        notices, by = WithGpus.notices, self.current_user.name
        if action == "stop":
            return await self._stop(given.get("user", ""))
        if action == "message":
            notices.send(given.get("text", ""), by)
        elif action == "undrain":
            notices.end_drain()
        elif (why := notices.begin_drain(given.get("text", ""), by)) is not None:
            return f"no lab is started, but kernels of labs that run, and runs, are given GPUs: {why}"
        return None

    async def _stop(self, name: str) -> str | None:
        spawner = next((each for each in self.spawners() if each.user.name == name), None)
        if spawner is None or not (spawner.active or spawner.pending):
            raise RocmlabError(
                f"{name} has no lab that runs", "it has ended, or the name is wrong", "rocmlab hub status"
            )
        if spawner.place is not None:
            spawner.place.is_cancelled = True
            return "it no longer waits for GPUs"
        if spawner.pending:
            raise RocmlabError(f"the lab of {name} cannot be stopped now", f"it {spawner.what()}", "retry in a minute")
        await self.stop_single_user(spawner.user, "")
        return None


def _lab(spawner: Any, gpus: int) -> Lab:  # noqa: ANN401
    row = spawner.orm_spawner
    try:
        choice = choices.parse(spawner.user_options, gpus)
    except RocmlabError:  # by the interface a user can send anything
        choice = None
    return Lab(spawner.user.name, spawner.what(), choice, _utc(row.started), _utc(row.last_activity))


def _utc(moment: datetime | None) -> str | None:
    """Return a time of the hub's database, which has UTC without saying so."""
    return None if moment is None else formatting.utc(moment.replace(tzinfo=timezone.utc))


def _overview(devices: Sequence[Device], labs: list[Lab], names: Mapping[int, str]) -> Overview:
    queue, notices = WithGpus.gpu_queue, WithGpus.notices
    held = queue.held()
    since, used = usage.read(Path(WithGpus.settings_of_hub.state))
    return Overview(
        labs,
        overview.gpus_of(devices, held, names),
        overview.waiting_of(queue.waiting()),
        overview.users_of(used, held, names),
        None if since is None else _utc(datetime.fromtimestamp(since, timezone.utc)),
        notices.drain(),
        notices.message(),
    )


class PageHandler(Administration, BaseHandler):  # type: ignore[misc]  # jupyterhub has no types for mypy
    """`GET /hub/rocmlab/labs`: the page; `POST` with an action: what its forms do."""

    @web.authenticated
    @sees
    async def get(self) -> None:
        """Show the page."""
        await self._show("")

    @web.authenticated
    @sees
    @acts
    async def post(self) -> None:
        """Do it, and show the page again with what is to be known of it."""
        given = {name: self.get_body_argument(name, "") for name in ("action", "user", "text")}
        if given["action"] not in ACTIONS:
            raise web.HTTPError(400, "there is no such action")
        try:
            found = await self.act(given["action"], given)
        except RocmlabError as err:
            self.set_status(409)
            found = str(err)
        if found:
            await self._show(found)
        else:
            self.redirect(f"{self.hub.base_url}{PAGE}")  # so that loading the page again does not do it again

    async def _show(self, news: str) -> None:
        found = await self.look()
        self.set_header("Cache-Control", "no-store")
        facts = {"found": found, "news": news, "page": f"{self.hub.base_url}{PAGE}", "energy": formatting.energy}
        self.finish(await self.render_template("labs.html", **facts))


class LabsHandler(Administration, APIHandler):  # type: ignore[misc]
    """`GET /hub/api/rocmlab/labs`: the same as JSON."""

    @sees
    async def get(self) -> None:
        """Answer."""
        self.finish((await self.look()).as_dict())


class ActionHandler(Administration, APIHandler):  # type: ignore[misc]
    """`POST /hub/api/rocmlab/<action>`."""

    @sees
    @acts
    async def post(self, action: str) -> None:
        """Do it."""
        body = self.get_json_body() or {}
        if not isinstance(body, dict):
            raise web.HTTPError(400, "a JSON object is needed")
        given = {name: value for name, value in body.items() if isinstance(value, str)}
        try:
            self.finish({"note": await self.act(action, given)})
        except RocmlabError as err:
            self.set_status(409)
            self.finish(asdict(err.problem))


class NoticesHandler(APIHandler):  # type: ignore[misc]
    """`GET /hub/api/rocmlab/notices`: what each user may read, and each lab with its own token."""

    def get(self) -> None:
        """Answer."""
        if self.current_user is None:
            raise web.HTTPError(403, "log in first")
        self.set_header("Cache-Control", "no-store")
        self.finish({"notices": [{"key": each.key, "text": each.text} for each in WithGpus.notices.shown()]})


ROUTES = [
    (rf"/{PAGE}", PageHandler),
    (rf"/{API}/labs", LabsHandler),
    (rf"/{API}/notices", NoticesHandler),
    (rf"/{API}/({'|'.join(ACTIONS)})", ActionHandler),
]
