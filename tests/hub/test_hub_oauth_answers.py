"""What a user sees whose OAuth provider answers something unexpected; a local HTTP server is the provider."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import SimpleNamespace
from typing import Any

import pytest

from rocmlab.hub.authenticators import explaining

pytest.importorskip("oauthenticator")
TOKEN = {"access_token": "token-of-the-provider", "token_type": "bearer"}
USER = {"name": "ada", "admin": True, "groups": ["chiefs"]}


class Provider(ThreadingHTTPServer):
    """Answers each path with one status and text."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Answering)
        self.answers = {"/token": (200, json.dumps(TOKEN)), "/user": (200, json.dumps(USER))}

    def log_in(self) -> Any:
        """Return what the hub hears of a user who comes back with a code."""
        base = f"http://127.0.0.1:{self.server_address[1]}"
        urls = {"authorize_url": f"{base}/authorize", "token_url": f"{base}/token", "userdata_url": f"{base}/user"}
        authenticator = explaining()(
            client_id="rocmlab",
            client_secret="secret",
            oauth_callback_url="http://127.0.0.1:1/hub/oauth_callback",
            username_claim="name",
            enable_pkce=False,
            allow_all=True,
            **urls,
        )
        handler = SimpleNamespace(get_argument=lambda _: "code")
        return asyncio.run(authenticator.get_authenticated_user(handler, None))


class Answering(BaseHTTPRequestHandler):
    """One request of the hub's."""

    server: Provider

    def do_GET(self) -> None:
        """Answer it."""
        self.rfile.read(int(self.headers.get("Content-Length") or 0))
        status, text = self.server.answers[self.path.partition("?")[0]]
        self.send_response(status)
        self.send_header("Content-Length", str(len(text.encode())))
        self.end_headers()
        self.wfile.write(text.encode())

    do_POST = do_GET

    def log_message(self, *_: object) -> None:
        """Keep the test's output."""


@pytest.fixture
def provider() -> Iterator[Provider]:
    """It, running."""
    with Provider() as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield server
        server.shutdown()
        thread.join()


@pytest.mark.parametrize(
    ("path", "status", "text", "shown", "why"),
    [
        ("/token", 400, '{"error": "invalid_grant"}', 403, "rejected it (400)"),
        ("/token", 503, "", 502, "has a problem (503)"),
        ("/user", 500, "<h1>Error</h1>", 502, "has a problem (500)"),
        ("/token", 200, "<h1>Down for maintenance</h1>", 502, "something else than who you are"),
        ("/token", 200, "", 502, "something else than who you are"),
        ("/token", 200, "{}", 502, "something else than who you are"),
        ("/user", 200, "[]", 502, "something else than who you are"),
        ("/user", 200, "", 502, "something else than who you are"),
        ("/user", 200, "{}", 502, "something else than who you are"),
        ("/user", 200, '{"name": ["ada"]}', 502, "something else than who you are"),
        ("/user", 200, '{"name": "\\u212Aai"}', 403, "becomes another user's"),  # the sign of kelvin
        ("/user", 200, '{"name": "\\uff41da"}', 403, "becomes another user's"),  # a wide a
    ],
)
def test_each_answer_is_one_sentence(
    provider: Provider, path: str, status: int, text: str, shown: int, why: str
) -> None:
    """The page has what to do next and never an Internal Server Error."""
    from tornado import web

    provider.answers[path] = (status, text)

    with pytest.raises(web.HTTPError) as caught:
        provider.log_in()

    assert caught.value.status_code == shown
    assert why in str(vars(caught.value)["jupyterhub_message"])


def test_a_provider_that_is_gone_does_not_answer(provider: Provider) -> None:
    """Nobody listens on its port."""
    from tornado import web

    provider.server_close()

    with pytest.raises(web.HTTPError, match="does not answer") as caught:
        provider.log_in()

    assert caught.value.status_code == 502


@pytest.mark.parametrize(("given", "expected"), [("Ada", "ada"), ("ädä@x", "ädä@x"), ("../ada", None), ("", None)])
def test_the_name_is_the_providers_in_lower_case(provider: Provider, given: str, expected: str | None) -> None:
    """So Ada and ada are one user; a path is none, and what the provider calls an administrator is not one here."""
    from tornado import web

    provider.answers["/user"] = (200, json.dumps(USER | {"name": given}))

    try:
        found = provider.log_in()
    except web.HTTPError:
        found = None

    assert (found and found["name"]) == expected
    assert not (found and found["admin"])
