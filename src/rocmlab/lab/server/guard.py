"""What protects the server besides Jupyter's login: names, secrets in its environment, cookies, the token of metrics.

Jupyter's own check of the `Host` header covers its own handlers and knows no IP address but the loopback's. The check
here is in front of every route, whichever extension it belongs to, and knows ALLOWED_HOSTS. Behind JupyterHub nothing
of this is changed: there the hub's proxy is the only client, and login and names are the hub's.
"""

from __future__ import annotations

import hmac
import logging
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from jupyter_server.auth.identity import PasswordIdentityProvider
from jupyter_server.base.handlers import JupyterHandler
from tornado import httputil, web

from rocmlab.base import confidential, extras, hosts
from rocmlab.base.errors import RocmlabError
from rocmlab.lab.server import extra_routes, proxied
from rocmlab.lab.server.tls import is_strange, secure_cookies, welcome

log = logging.getLogger("rocmlab")

METRICS = "rocmlab/metrics"
SERVICE = "lab"  # its name in the Compose network, where Prometheus scrapes it
CONTAINERS = ("docker", "podman")
MIN_TOKEN_CHARACTERS = 32
NAME = f"This lab does not answer under this host name. If your proxy uses it: {hosts.SETTING}"
SMALL = re.compile(r"[0-9]{1,5}")  # a length in bytes: a login's form has less
LARGE = "A request of this size is answered after a login alone."
TOKEN = re.compile(r"([?&]token=)[^&\s\"'#]+")


def take_secrets(server: Any) -> str:  # noqa: ANN401  jupyter_server's ServerApp
    """Have the server read its token, remove all secrets from the environment, and return the token of metrics or "".

    Terminals and kernels inherit the environment of this process.
    """
    if not hosts.is_behind_hub(os.environ):
        _ = server.identity_provider.token  # read from JUPYTER_TOKEN or JUPYTER_TOKEN_FILE, once
    found = confidential.forget()
    token = found.get("METRICS_TOKEN", "")
    if not token and (path := found.get("METRICS_TOKEN_FILE")):
        try:
            token = Path(path).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as err:
            log.warning("the token of metrics cannot be read, Prometheus cannot log in: %s", err)
    token = token.strip()
    if token and len(token) < MIN_TOKEN_CHARACTERS:
        log.warning("METRICS_TOKEN is not used: it has fewer than %d characters", MIN_TOKEN_CHARACTERS)
        return ""
    return token


def has_token(request: httputil.HTTPServerRequest, token: str) -> bool:
    """Return whether a request carries this token in its header `Authorization`."""
    scheme, _, given = request.headers.get("Authorization", "").partition(" ")
    same = hmac.compare_digest(given.strip().encode("utf-8", "replace"), token.encode())
    return bool(token) and scheme.lower() in ("bearer", "token") and same


@web.stream_request_body
class RejectedHandler(web.RequestHandler):
    """Answers a request that is not for this server, by its `Host` header for example."""

    def initialize(self, why: str) -> None:
        """Take what to answer."""
        self._why = why

    def data_received(self, chunk: bytes) -> None:
        """Keep nothing."""

    def prepare(self) -> None:
        """Answer with 403, before the body arrives; nothing of the request is used."""
        self.set_status(403)
        self.set_header("Content-Type", "text/plain; charset=utf-8")
        self.finish(f"{self._why}\n")


class ClosedPortHandler(JupyterHandler):
    """Answers a request for a port that is not proxied, and who is not logged in as jupyter-server-proxy does."""

    def initialize(self, why: str) -> None:
        """Take what to answer."""
        self._why = why

    def check_xsrf_cookie(self) -> None:
        """Leave it, as the proxy does: nothing is changed here."""

    async def prepare(self) -> None:  # type: ignore[override]
        """Answer; an answer that tells open ports from closed ones is for who is logged in alone."""
        await super().prepare()
        is_channel = self.request.method == "GET" and self.request.headers.get("Upgrade", "").lower() == "websocket"
        if is_channel and not self.current_user:
            raise web.HTTPError(403)
        web.authenticated(ClosedPortHandler._answer)(self)

    def _answer(self) -> None:
        self.set_status(403)
        self.set_header("Content-Type", "text/plain; charset=utf-8")
        self.finish(f"{self._why}\n")


class Scrubber(logging.Filter):
    """Removes tokens in addresses from the log: tornado writes the whole address where a request fails."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Change the record; each is logged."""
        text = record.getMessage()
        scrubbed = TOKEN.sub(r"\1[secret]", text)
        if scrubbed != text:
            record.msg, record.args = scrubbed, ()
        return True


def is_too_large(server: Any, request: httputil.HTTPServerRequest) -> bool:  # noqa: ANN401  a ServerApp
    """Return whether a request comes with more than a login has, from who is not logged in: tornado would keep it all.

    A login of another kind than by token or password is asked later, by Jupyter.
    """
    headers = request.headers
    is_small = "Transfer-Encoding" not in headers and SMALL.fullmatch(headers.get("Content-Length", "0"))
    return not is_small and is_jupyters(server) and not is_logged_in(server, request)


def is_jupyters(server: Any) -> bool:  # noqa: ANN401  a ServerApp
    """Return whether Jupyter's own login protects this server, by token or password."""
    provider = server.identity_provider
    return type(provider) is PasswordIdentityProvider and bool(provider.auth_enabled)


def is_logged_in(server: Any, request: httputil.HTTPServerRequest) -> bool:  # noqa: ANN401  a ServerApp
    """Return whether a request has the token, or the cookie of a login, as Jupyter will find."""
    provider = server.identity_provider
    handler = JupyterHandler(server.web_app, request)
    try:
        given = (provider.get_token(handler) or "").encode("utf-8", "replace")
    except web.HTTPError:  # of an address that is not UTF-8
        return False
    has_token = bool(provider.token) and hmac.compare_digest(given, provider.token.encode())
    return has_token or provider.get_user_cookie(handler) is not None


class Guard:
    """Checks the `Host` header of every request of one server."""

    def __init__(self, base_url: str, allowed: tuple[str, ...], *, is_in_container: bool) -> None:
        self._metrics = base_url.rstrip("/") + "/" + METRICS
        self._allowed = allowed
        self._is_in_container = is_in_container

    def accepts(self, request: httputil.HTTPServerRequest) -> bool:
        """Return whether the request is for this server; one without a single `Host` header is not."""
        given = request.headers.get_list("Host")
        if len(given) != 1:
            return False
        if hosts.is_allowed(given[0], self._allowed):
            return True
        is_scrape = self._is_in_container and request.path == self._metrics
        return is_scrape and given[0].partition(":")[0] == SERVICE and hosts.HEADER.fullmatch(given[0]) is not None


def install(server: Any, environment: Mapping[str, str] = os.environ) -> None:  # noqa: ANN401  a ServerApp
    """Put the checks in front of every route, and have cookies sent to this site alone."""
    for handler in server.log.handlers:
        handler.addFilter(Scrubber())
    _check_extras(server, extras.parse(environment.get(extras.VARIABLE, "")))
    if hosts.is_behind_hub(environment):
        return
    application = server.web_app
    try:
        allowed = hosts.parse(f"{environment.get(hosts.SETTING, '')},{environment.get(hosts.BOUND, '')}")
    except RocmlabError as err:
        log.error("%s", err)
        allowed = ()
    is_in_container = environment.get("ROCMLAB_RUNTIME") in CONTAINERS
    guard = Guard(server.base_url, allowed, is_in_container=is_in_container)
    find = application.find_handler

    def find_accepted(request: httputil.HTTPServerRequest, **kwargs: Any) -> Any:  # noqa: ANN401  tornado's
        if request.protocol == "https":
            secure_cookies(request)
        if guard.accepts(request):
            if is_strange(request) and (not is_jupyters(server) or is_logged_in(server, request)):
                welcome(request)
            if is_too_large(server, request):
                return application.get_handler_delegate(request, RejectedHandler, {"why": LARGE})
            return find(request, **kwargs)
        log.warning("rejected a request with the Host %.100r", request.headers.get("Host", ""))
        return application.get_handler_delegate(request, RejectedHandler, {"why": NAME})

    application.find_handler = find_accepted
    application.settings["allow_remote_access"] = True  # the check above replaces Jupyter's, which knows fewer names
    cookies = application.settings.setdefault("xsrf_cookie_kwargs", {"path": server.base_url})
    cookies.setdefault("samesite", "Lax")


def _check_extras(server: Any, chosen: tuple[str, ...]) -> None:  # noqa: ANN401  a ServerApp
    """Put the checks of the extras in front of every route; a user may have installed one himself."""
    application = server.web_app
    find = application.find_handler

    def find_allowed(request: httputil.HTTPServerRequest, **kwargs: Any) -> Any:  # noqa: ANN401  tornado's
        why = extra_routes.refusal(request, server.base_url) or proxied.refusal(request, server.base_url, chosen)
        if why:
            return application.get_handler_delegate(request, RejectedHandler, {"why": why})
        if why := proxied.closed(request, server.base_url):
            return application.get_handler_delegate(request, ClosedPortHandler, {"why": why})
        return find(request, **kwargs)

    application.find_handler = find_allowed
