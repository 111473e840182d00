"""What an administrator of JupyterHub tells all users: the page asks this server, and this the hub."""

from __future__ import annotations

import json
import os
import time

from jupyter_server.base.handlers import APIHandler
from tornado import web
from tornado.httpclient import AsyncHTTPClient

API_URL, TOKEN = "JUPYTERHUB_API_URL", "JUPYTERHUB_API_TOKEN"  # JupyterHub's, in the environment of each lab
KEPT_SECONDS = 10.0  # however many pages ask
TIMEOUT_SECONDS = 5.0


class NoticesHandler(APIHandler):
    """`GET api/notices`; none where the hub is stopped, or is not rocmlab's."""

    auth_resource = "rocmlab"
    _track_activity = False
    _asked = -KEPT_SECONDS  # of the class, as is the next
    _found = b'{"notices": []}'

    @web.authenticated
    async def get(self) -> None:
        """Answer."""
        kept = NoticesHandler
        if time.monotonic() - kept._asked >= KEPT_SECONDS:
            kept._asked = time.monotonic()
            kept._found = await self._ask()
        self.set_header("Cache-Control", "no-store")
        self.finish(kept._found)

    async def _ask(self) -> bytes:
        headers = {"Authorization": f"token {os.environ[TOKEN]}"}
        try:
            url = f"{os.environ[API_URL]}/rocmlab/notices"
            answer = await AsyncHTTPClient().fetch(url, headers=headers, request_timeout=TIMEOUT_SECONDS)
            json.loads(answer.body)
        except Exception as err:  # whatever the hub or the network does, there is nothing to show
            self.log.debug("the hub's notices are not known: %s", err)
            return b'{"notices": []}'
        return answer.body
