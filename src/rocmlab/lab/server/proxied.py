"""What may be reached through jupyter-server-proxy: only applications of this user, and only from the lab's own pages.

A page of a proxied application is of the lab's origin, so it can do all that the lab's pages can. On a host of several
users any of them may listen on a port and have a link to it clicked; and the proxy leaves XSRF tokens to applications.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection
from urllib.parse import urlsplit

from tornado.httputil import HTTPServerRequest

from rocmlab.base import extras
from rocmlab.stack import sockets

PORT = re.compile(r"proxy/(?:absolute/)?(?:(?:localhost|127\.0\.0\.1):)?(\d{1,5})(?:/.*)?", re.DOTALL)


def refusal(request: HTTPServerRequest, base_url: str, chosen: Collection[str]) -> str | None:
    """Return why a request is not passed on, whoever sends it; None: it is, or it is none for the proxy."""
    path = path_below(request, base_url)
    name = path.partition("/")[0]
    if name not in extras.PROXIED:
        return None
    if name not in chosen and extras.PROXIED & set(chosen):
        return f"This lab has no {name}. On its machine: make up {extras.SETTING}={','.join(sorted({*chosen, name}))}"
    origin = request.headers.get("Origin")
    if origin and urlsplit(origin).netloc.lower() != request.headers.get("Host", "").lower():
        return "A page of another site has sent this request."
    port = PORT.fullmatch(path)
    if name == "proxy" and not (port and int(port[1]) < 1 << 16):
        return "Only ports of this lab's machine are reached: proxy/PORT/"
    return None


def closed(request: HTTPServerRequest, base_url: str) -> str | None:
    """Return why a port is not reached: for who is logged in, as it says what listens on this machine; else None."""
    port = PORT.fullmatch(path_below(request, base_url))
    owners = sockets.owners(int(port[1])) if port else None
    if not port or owners == {os.geteuid()}:
        return None
    others = "another user listens" if owners else "it is not known who listens" if owners is None else "no one listens"
    return f"On port {port[1]} {others}; only applications of the lab's own user are reached."


def path_below(request: HTTPServerRequest, base_url: str) -> str:
    """Return the path below the lab's own, as tornado's routes find it: there `base_url` is a regular expression."""
    found = re.match(base_url, request.path)
    return request.path[found.end() :] if found else ""
