"""The recorder of a server: a Tap per kernel that has run a cell, and where pages ask for what they lack."""

from __future__ import annotations

import asyncio
import logging
import re
import time
from typing import TYPE_CHECKING, Any

from jupyter_core.utils import ensure_async
from jupyter_server.auth.decorator import authorized
from jupyter_server.base.handlers import APIHandler
from tornado import web

from rocmlab.lab.closing import close_all

if TYPE_CHECKING:
    from rocmlab.lab.recorder.tap import Tap


log = logging.getLogger("rocmlab")

CLASS = "kernel_websocket_connection_class"
WAIT_SECONDS = 20.0  # for news
PAUSE_SECONDS = 0.2


class Recorder:
    """All kernels of a server."""

    def __init__(self, server: Any) -> None:  # noqa: ANN401  jupyter_server's ServerApp
        self._server = server
        self._taps: dict[str, Tap] = {}
        self._saving: dict[str, tuple[set[str], float]] = {}  # path: the cells that a page saves, since when

    def install(self) -> None:
        """Have connections of pages recorded, if they are what is known here."""
        settings = self._server.web_app.settings
        try:
            from rocmlab.lab.recorder import connection  # of another jupyter_server it may not be importable

            settings[CLASS] = connection.recording(settings.get(CLASS), self)
        except (ImportError, AttributeError, TypeError) as err:
            log.warning("what cells print while no page is connected is not kept: %s", err)
            return
        self._server.contents_manager.register_pre_save_hook(self._before_save)
        self._server.contents_manager.register_post_save_hook(self._after_save)

    def tap(self, kernel_id: str, is_made: bool) -> Tap | None:
        """Return a kernel's, which is made if there is none and it is to be; None if there is none."""
        found = self._taps.get(kernel_id)
        if found is not None and found.is_closed:  # the setting was turned off
            found = self._taps.pop(kernel_id) and None
        if found is None and is_made and kernel_id in self._server.kernel_manager:
            for ended in [each for each in self._taps if each not in self._server.kernel_manager]:
                del self._taps[ended]  # it has closed itself
            from rocmlab.lab.recorder.tap import Tap

            found = self._taps[kernel_id] = Tap(self._server, kernel_id)
        return found

    def _before_save(self, *, path: str, model: Any, **_: Any) -> None:  # noqa: ANN401
        if model.get("type") == "notebook" and model.get("content") and self._is_of_page():
            cells = {str(each.get("id")) for each in model["content"].get("cells", [])}
            self._saving[path.strip("/")] = (cells, time.monotonic())

    def _after_save(self, *, model: Any, **_: Any) -> None:  # noqa: ANN401
        path = str(model.get("path", "")).strip("/")  # a save that fails does not come here
        if self._is_of_page() and (noted := self._saving.pop(path, None)):
            for tap in self._taps.values():
                tap.note_save(path, *noted)

    def _is_of_page(self) -> bool:
        if not self._taps:
            return False  # no one to tell
        from rocmlab.lab.recorder import files

        return not files.is_writing.get()

    async def close(self) -> None:
        """Write what is left of each kernel, whatever another one's does."""
        await close_all([tap.close for tap in self._taps.values()], log)


class OutputsHandler(APIHandler):
    """`GET api/outputs/<kernel>?session=…&notebook=…&after=-1`: what cells have printed; waits if there is nothing new.

    `session` is that of the page's connection, `notebook` the id of the notebook's session, as `api/sessions` has it.
    """

    auth_resource = "kernels"
    _track_activity = False

    def initialize(self, recorder: Recorder) -> None:
        """Keep the recorder."""
        self._recorder = recorder

    @web.authenticated
    @authorized
    async def get(self, kernel_id: str) -> None:
        """Answer who may execute, as Jupyter's own channel of outputs does."""
        if not await ensure_async(self.authorizer.is_authorized(self, self.current_user, "execute", "kernels")):
            raise web.HTTPError(403)
        session, number = self.get_query_argument("session"), self.get_query_argument("after", "-1")
        if not re.fullmatch(r"-1|\d{1,15}", number):
            raise web.HTTPError(400, "after is the number of the last answer, or -1")
        after = int(number)
        tap = self._recorder.tap(kernel_id, False)
        self.set_header("Cache-Control", "no-store")
        if tap is None or self.get_query_argument("only", "") == "connection":
            known = await tap.place(session) if tap else {}
            nothing = {"number": -1, "cells": [], "file": None, "is_connected": True, "continues": False}
            self.finish({**nothing, **known})
            return
        tap.note_page(session, self.get_query_argument("notebook", ""))
        end = asyncio.get_running_loop().time() + WAIT_SECONDS
        while 0 <= tap.records.number == after and asyncio.get_running_loop().time() < end and not self._is_closed:
            await asyncio.sleep(PAUSE_SECONDS)
        self.finish(await tap.news(session, after, set(self.get_query_argument("requests", "").split(","))))

    _is_closed = False

    def on_connection_close(self) -> None:
        """Wait no more."""
        super().on_connection_close()
        self._is_closed = True
