"""What the routes of JupyterLab's extras are protected by besides the login: the site of the page, and the folder.

A request that changes nothing needs no XSRF token, but in these routes it can run git in a folder or reach a user's own
application. And a browser sends the lab's login with requests of every page that any program on 127.0.0.1 serves.
"""

from __future__ import annotations

from urllib.parse import unquote

from tornado.httputil import HTTPServerRequest

from rocmlab.base import extras
from rocmlab.lab.server.proxied import path_below

FILES = {"git", "lsp", "nbdime"}  # these name files of the lab
ROUTES = extras.PROXIED | FILES | {"server-proxy"}
OTHER_SITES = ("cross-site", "same-site")  # another port of one name is of the same site
MAX_ENCODINGS = 4  # tornado and jupyterlab-git decode a path once each


def refusal(request: HTTPServerRequest, base_url: str) -> str | None:
    """Return why a request is not for one of these routes, whoever sends it; None: it is, or it is for another route.

    Links to proxied applications may be anywhere; what they lead to is a page of its own.
    """
    path = path_below(request, base_url)
    name = path.partition("/")[0]
    if name not in ROUTES:
        return None
    given = request.headers
    is_link = given.get("Sec-Fetch-Mode") == "navigate" and given.get("Sec-Fetch-Dest") == "document"
    if given.get("Sec-Fetch-Site") in OTHER_SITES and not (is_link and name in extras.PROXIED):
        return "A page of another site has sent this request."
    if name in FILES and _leaves(path):
        return "Only what is below the lab's folder has an address here."
    if name == "nbdime" and not path.startswith("nbdime/api/"):
        return (
            "nbdime has no pages of its own here, which would fetch what a link names: compare notebooks in JupyterLab."
        )
    return None


def _leaves(path: str) -> bool:
    """Return whether a path has a step up, however often its dots and slashes are encoded."""
    for _ in range(MAX_ENCODINGS):
        if ".." in path.split("/"):
            return True
        path = unquote(path)
    return False
