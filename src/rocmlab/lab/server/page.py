"""The panel as a page of its own at `{base_url}rocmlab/`, from the files in `static/` (scripts/build-frontend).

The page finds the server's address and the token in JSON inside it, as JupyterLab does, and all its files by relative
links: so it works below any base URL and behind JupyterHub. It may load and reach nothing but this server.
"""

from __future__ import annotations

import html
import json
from pathlib import Path
from typing import Any

from jupyter_server.auth.decorator import authorized
from jupyter_server.base.handlers import JupyterHandler
from tornado import web

FOLDER = Path(__file__).parent / "static"
FILES = r"[\w-]+(?:\.[\w-]+)*\.(?:js|css|svg|png|woff2|map)"
CONFIG = '<script id="jupyter-config-data" type="application/json">{}</script>'
POLICY = (
    "default-src 'none'",
    "script-src 'self'",
    "style-src 'self'",
    "img-src 'self' data:",
    "font-src 'self'",
    "connect-src 'self'",
    "base-uri 'none'",
    "form-action 'none'",
)
MISSING = """\
<!doctype html>
<html lang="en">
<head><meta charset="utf-8"><title>rocmlab: the page is not built</title></head>
<body>
<h1>The page of the GPUs is not built</h1>
<p>{missing} is missing in this installation of rocmlab.</p>
<p>In a checkout: <code>scripts/build-frontend</code>, then restart the lab. The data themselves are at
<a href="api/devices">api/devices</a> and <a href="metrics">metrics</a>.</p>
</body>
</html>
"""


def routes() -> list[tuple[str, type[web.RequestHandler], dict[str, Any]]]:
    """Return the page, its files, and the way to it for those who forget the slash."""
    return [
        (r"/rocmlab", SlashHandler, {}),
        (r"/rocmlab/", PageHandler, {}),
        (rf"/rocmlab/({FILES})", FileHandler, {"path": str(FOLDER)}),
        (rf"/rocmlab/static/({FILES})", FileHandler, {"path": str(FOLDER)}),
    ]


def with_config(text: str, config: dict[str, Any]) -> str:
    """Return a page with the JSON at the end of its head; no text in it can end the element."""
    data = json.dumps(config).replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")
    head, tag, rest = text.partition("</head>")
    return f"{head}{CONFIG.format(data)}{tag}{rest}"


class Handler(JupyterHandler):
    """What the page and its files have in common."""

    auth_resource = "rocmlab"

    @property
    def content_security_policy(self) -> str:
        """Jupyter's own, and nothing from elsewhere."""
        return "; ".join([super().content_security_policy, *POLICY])


class SlashHandler(Handler):
    """`GET {base_url}rocmlab`."""

    @web.authenticated
    @authorized
    async def get(self) -> None:
        """Send the browser to the page, from which relative links lead on."""
        query = f"?{self.request.query}" if self.request.query else ""
        self.redirect(f"{self.base_url}rocmlab/{query}")


class PageHandler(Handler):
    """`GET {base_url}rocmlab/`."""

    @web.authenticated
    @authorized
    async def get(self) -> None:
        """Answer with the page, or with what is missing."""
        self.set_header("Cache-Control", "no-store")  # it has the token in it
        try:
            text = (FOLDER / "index.html").read_text(encoding="utf-8")
        except OSError:
            self.set_status(404)
            self.finish(MISSING.format(missing=html.escape(str(FOLDER / "index.html"))))
            return
        _ = self.xsrf_token  # sets the cookie that the page's POST requests send back
        config = {"baseUrl": self.base_url, "token": self.token or "", "rocmlabUrl": f"{self.base_url}rocmlab/"}
        self.finish(with_config(text, config))


class FileHandler(Handler, web.StaticFileHandler):
    """The scripts, styles and images of the page; only for users who are logged in, like the page."""

    @web.authenticated
    @authorized
    async def get(self, path: str, include_body: bool = True) -> None:  # type: ignore[override]
        """Answer with a file."""
        await web.StaticFileHandler.get(self, path, include_body)

    @web.authenticated
    @authorized
    async def head(self, path: str) -> None:  # type: ignore[override]
        """Answer with a file's headers."""
        await web.StaticFileHandler.get(self, path, include_body=False)

    def set_extra_headers(self, path: str) -> None:
        """Let a browser cache it, and revalidate it each time."""
        self.set_header("Cache-Control", "no-cache")
