"""What the hub answers beside JupyterHub's own pages: a user gives up waiting for GPUs."""

from __future__ import annotations

import hmac

from jupyterhub.handlers import BaseHandler
from tornado import web

from rocmlab.hub.spawners import CANCEL, WithGpus


class CancelHandler(BaseHandler):  # type: ignore[misc]  # jupyterhub has no types for mypy
    """`GET /hub/rocmlab/cancel/<secret>`: the link of the start page, which no other page knows."""

    @web.authenticated
    def get(self, secret: str) -> None:
        """Leave the queue, and go home."""
        spawner = self.current_user.spawners[""]
        place = spawner.place if isinstance(spawner, WithGpus) else None
        if place is None or not hmac.compare_digest(place.secret.encode(), secret.encode()):
            raise web.HTTPError(404, "this lab does not wait any more")
        place.is_cancelled = True
        self.redirect(f"{self.hub.base_url}home")


ROUTES = [(rf"/{CANCEL}([\w-]+)", CancelHandler)]
