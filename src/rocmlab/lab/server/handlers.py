"""The HTTP interface: requests, permissions, and answers in JSON; errors are what, why and fix.

Jupyter authenticates each request and checks its origin, and a POST's XSRF token. Authorizers know reads by the
resource `rocmlab`, and what tells of kernels and what is done to them by `kernels`, as in Jupyter's own routes: who
may read the first alone gets answers without kernels, notebooks and owners.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from jupyter_core.utils import ensure_async
from jupyter_server.auth.decorator import authorized
from jupyter_server.auth.identity import User
from jupyter_server.base.call_context import CallContext
from jupyter_server.base.handlers import APIHandler
from tornado import web
from tornado.iostream import StreamClosedError

from rocmlab.base import live
from rocmlab.base.errors import Problem
from rocmlab.lab.server import cluster, guard, page, wire

if TYPE_CHECKING:
    from rocmlab.lab.server.broadcast import Viewer
    from rocmlab.lab.server.panel import Panel

ACTIONS = ("interrupt", "restart", "shutdown")
RESOURCE = "rocmlab"
HISTORY_SECONDS = 900.0
MAX_HISTORY_SECONDS = 86400.0
HEARTBEAT_SECONDS = 15.0
SLOW_SECONDS = 60.0  # in which a client takes what it was sent, or is let go
STREAM_SECONDS = 3600.0  # then it has to come again, and to be authenticated again
METRICS_SETTING = "GPU_METRICS_NAMES"
SCRAPER = "prometheus"  # who has the token of metrics

Route = tuple[str, type[web.RequestHandler], dict[str, Any]]


def routes(panel: Callable[[], Panel], metrics_token: str = "") -> list[Route]:
    """Return all routes, without the base URL; `metrics_token` opens `metrics` and nothing else; it may be empty."""
    given = {"panel": panel}
    return [
        (r"/rocmlab/api/devices", DevicesHandler, given),
        (r"/rocmlab/api/history", HistoryHandler, given),
        (r"/rocmlab/api/stream", StreamHandler, given),
        (r"/rocmlab/api/kernels", KernelsHandler, given),
        (rf"/rocmlab/api/kernels/([\w-]+)/({'|'.join(ACTIONS)})", ActionHandler, given),
        (r"/rocmlab/api/cluster", ClusterHandler, given),
        (r"/rocmlab/api/packages", PackagesHandler, given),
        (r"/rocmlab/metrics", MetricsHandler, {**given, "token": metrics_token}),
        *page.routes(),
    ]


class RefusedError(web.HTTPError):
    """An answer that is a Problem."""

    def __init__(self, status: int, problem: Problem) -> None:
        super().__init__(status)
        self.problem = problem


@contextlib.contextmanager
def refusing(what: str, status: int = 503) -> Iterator[None]:
    """Answer with the problem where the work below fails."""
    try:
        yield
    except web.HTTPError:
        raise
    except wire.UnknownKernelError as err:
        raise RefusedError(404, err.problem) from err
    except wire.WrongRequestError as err:
        raise RefusedError(400, err.problem) from err
    except Exception as err:
        raise RefusedError(status, wire.problem_of(what, err)) from err


class Handler(APIHandler):
    """What they have in common."""

    auth_resource = RESOURCE
    _track_activity = False  # a page that is left open must not keep a server alive that JupyterHub would end

    def initialize(self, panel: Callable[[], Panel]) -> None:
        """Keep what makes the panel."""
        self._panel = panel

    @property
    def panel(self) -> Panel:
        """The one of this server."""
        return self._panel()

    def write_error(self, status_code: int, **kwargs: Any) -> None:  # noqa: ANN401
        """Answer with what, why and fix; `message` is what JupyterLab shows."""
        error = (kwargs.get("exc_info") or (None, None))[1]
        if not isinstance(error, RefusedError):
            super().write_error(status_code, **kwargs)
            return
        self.log.warning("%s: %s", self.request.path, error.problem)
        self.finish(wire.to_json({**vars(error.problem), "message": error.problem.what}))

    async def sees_kernels(self) -> bool:
        """Return whether this client may see kernels and their notebooks."""
        return bool(await ensure_async(self.authorizer.is_authorized(self, self.current_user, "read", "kernels")))

    def answer(self, value: Any) -> None:  # noqa: ANN401
        """Answer with JSON that no cache keeps."""
        self.set_header("Cache-Control", "no-store")
        self.finish(wire.to_json(value))


class DevicesHandler(Handler):
    """`GET api/devices`."""

    @web.authenticated
    @authorized
    async def get(self) -> None:
        """Answer with every device and what is wrong."""
        with refusing("the devices cannot be listed"):
            self.answer(await self.panel.devices())


class PackagesHandler(Handler):
    """`GET api/packages`."""

    @web.authenticated
    @authorized
    async def get(self) -> None:
        """Answer with the user's packages of each kernel, and whether this image has them."""
        from rocmlab.lab import packages  # most servers are never asked

        with refusing("the packages cannot be listed"):
            self.answer({"kernels": await asyncio.to_thread(packages.states, os.environ)})


class HistoryHandler(Handler):
    """`GET api/history?seconds=900&metrics=busy_percent,power_watts`."""

    @web.authenticated
    @authorized
    async def get(self) -> None:
        """Answer with the series of the last seconds, of the metrics that are requested, else of all."""
        seconds = self._seconds()
        with refusing("the history is not available"):
            asked = self.get_query_argument("metrics", "")
            is_packed = "gzip" in self.request.headers.get("Accept-Encoding", "")
            metrics = [each for each in asked.split(",") if each]
            data = await self.panel.history(seconds, metrics, is_packed)
            self.set_header("Cache-Control", "no-store")
            self.set_header("Vary", "Accept-Encoding")
            if is_packed:
                self.set_header("Content-Encoding", "gzip")  # tornado would compress it on the event loop
            self.finish(data)

    def _seconds(self) -> float:
        text = self.get_query_argument("seconds", f"{HISTORY_SECONDS:g}")
        with contextlib.suppress(ValueError):
            seconds = float(text)
            if 0 < seconds <= MAX_HISTORY_SECONDS:
                return seconds
        limit = f"it is a number above 0 and at most {MAX_HISTORY_SECONDS:g}"
        raise RefusedError(400, Problem(f"seconds={text[:64]!r} is not a duration", limit, "api/history?seconds=900"))


class KernelsHandler(Handler):
    """`GET api/kernels`."""

    auth_resource = "kernels"

    @web.authenticated
    @authorized
    async def get(self) -> None:
        """Answer with the kernels of this server."""
        with refusing("the kernels cannot be listed"):
            self.answer(await self.panel.state.kernels())


class ActionHandler(Handler):
    """`POST api/kernels/<id>/<interrupt|restart|shutdown>`."""

    auth_resource = "kernels"
    _track_activity = True  # a user is there

    @web.authenticated
    @authorized
    async def post(self, kernel_id: str, action: str) -> None:
        """Do it, and answer when it is done."""
        with refusing(f"the kernel {kernel_id[:64]} cannot be reached", status=500):
            await self.panel.act(kernel_id, action)
            self.answer({"kernel_id": kernel_id, "action": action})


class ClusterHandler(Handler):
    """`GET api/cluster`."""

    @web.authenticated
    @authorized
    async def get(self) -> None:
        """Answer with the nodes of the cluster that this lab is in, 404 where it is in none."""
        if not self.panel.cluster.is_member:
            raise RefusedError(404, cluster.NOT_A_MEMBER)
        with refusing("the cluster cannot be queried"):
            told = await self.panel.cluster.now()
            self.answer(told if await self.sees_kernels() else cluster.without_users(told))


class MetricsHandler(Handler):
    """`GET metrics`, for Prometheus; with a token in the header `Authorization: Bearer`.

    The token is the server's own, or METRICS_TOKEN, which opens this route and no other.
    """

    def initialize(self, panel: Callable[[], Panel], token: str = "") -> None:
        """Keep the token of metrics."""
        super().initialize(panel)
        self._metrics_token = token

    async def prepare(self) -> None:  # type: ignore[override]  # as APIHandler's
        """Log in a client with the token of metrics, without a cookie; all others as everywhere."""
        if self.request.method != "GET" or not guard.has_token(self.request, self._metrics_token):
            await super().prepare()
            return
        CallContext.set(CallContext.JUPYTER_HANDLER, self)
        if not self.check_host():
            raise web.HTTPError(403)
        self.current_user = self._jupyter_current_user = User(SCRAPER)

    @web.authenticated
    @authorized
    async def get(self) -> None:
        """Answer with the current metrics, which are sampled for this if there is no viewer."""
        names = self.get_query_argument("names", "") or live.get(METRICS_SETTING) or "rocmlab"
        with refusing("the metrics are not available"):
            accept, sees_kernels = self.request.headers.get("Accept", ""), await self.sees_kernels()
            text, content_type = await self.panel.metrics(names, accept, sees_kernels)
            self.set_header("Cache-Control", "no-store")
            self.finish(text, set_content_type=content_type)


class StreamHandler(Handler):
    """`GET api/stream`: server-sent events `snapshot`, each second, and `state`, when it has changed."""

    viewer: Viewer | None = None

    @web.authenticated
    @authorized
    async def get(self) -> None:
        """Send what is new, until the client goes, or is too slow, or should come again."""
        sees_kernels = await self.sees_kernels()
        with refusing("the GPUs cannot be watched"), self.panel.broadcast.viewer(sees_kernels) as self.viewer:
            self.set_header("Content-Type", "text/event-stream; charset=utf-8")
            self.set_header("Cache-Control", "no-store")
            self.set_header("Content-Encoding", "identity")  # compressed for each viewer it would cost more than all
            self.set_header("X-Accel-Buffering", "no")  # of nginx, which would keep events for itself
            try:
                await self._send(self.viewer)
            except StreamClosedError:
                pass  # it has gone
            except asyncio.TimeoutError:
                self.request.connection.close()  # type: ignore[union-attr]  # with what it did not take

    async def _send(self, viewer: Viewer) -> None:
        loop = asyncio.get_running_loop()
        end = loop.time() + STREAM_SECONDS
        self.write(wire.RETRY)
        await self.flush()
        while not viewer.is_closed and loop.time() < end:
            self.write(await viewer.take(HEARTBEAT_SECONDS) or wire.HEARTBEAT)
            taken = self.flush()
            if not taken.done():  # mostly it is: the system's buffer was not full
                await asyncio.wait_for(taken, SLOW_SECONDS)

    def on_connection_close(self) -> None:
        """Send nothing more."""
        super().on_connection_close()
        if self.viewer:
            self.viewer.close()
