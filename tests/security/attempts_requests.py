"""Requests of someone who does not know the token: every route, every place and form of a token, every method."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from attempts import Attempt, Group
from raw_http import UPGRADE, Answer, Headers
from targets import START_SECONDS, Target

NO_KERNEL = "00000000-0000-0000-0000-000000000000"
NOTEBOOK = {"type": "notebook", "content": {"cells": [], "metadata": {}, "nbformat": 4, "nbformat_minor": 5}}
# Method, path, body; each answers the user. {kernel} and {terminal} run, {note} is a notebook of the user.
READS = (
    "/api/status",
    "/api/me",
    "/api/spec.yaml",
    "/api/contents",
    "/api/contents/work",
    "/api/contents/work/attack.txt",
    "/api/contents/work/attack.ipynb/checkpoints",
    "/api/kernels",
    "/api/kernels/{kernel}",
    "/api/kernelspecs",
    "/api/kernelspecs/torch",
    "/api/sessions",
    "/api/terminals",
    "/api/terminals/{terminal}",
    "/api/nbconvert",
    "/api/config/notebook",
    "/lab",
    "/lab/tree/work",
    "/lab/api/settings",
    "/lab/api/settings/rocmlab-panel:plugin",
    "/lab/api/workspaces",
    "/lab/api/translations",
    "/lsp/status",
    "/nbconvert/html/work/attack.ipynb",
    "/view/work/attack.html",
    "/metrics",
    "/rocmlab/",
    "/rocmlab/metrics",
    "/rocmlab/api/devices",
    "/rocmlab/api/history",
    "/rocmlab/api/kernels",
)
REPOSITORY = "/git/work/attack-repository"
EXTRA_READS = (  # of a lab with EXTRAS
    "/git/settings",
    f"{REPOSITORY}/stash",
    f"{REPOSITORY}/submodules",
    "/server-proxy/servers-info",
    "/tensorboard/",
    "/tensorboard/data/environment",
    "/proxy/{application}/",
)
FILES = "/files/work/attack.txt"  # only in a container: the native lab's links lead out of what /files may show
STREAM = "/rocmlab/api/stream"
SOCKETS = ("/api/kernels/{kernel}/channels", "/terminals/websocket/{terminal}", "/api/events/subscribe")
EXTRA_SOCKETS = ("/lsp/ws/pylsp", "/proxy/{application}/")
CHANGES: tuple[tuple[str, str, Any], ...] = (
    ("PUT", "/api/contents/work/attack-new.txt", {"type": "file", "format": "text", "content": "x"}),
    ("POST", "/api/contents/work", {"type": "notebook"}),
    ("POST", "/api/contents/work", {"copy_from": "work/attack.ipynb"}),
    ("PATCH", "/api/contents/work/attack.txt", {"path": "work/attack-moved.txt"}),
    ("DELETE", "/api/contents/work/attack.txt", None),
    ("POST", "/api/contents/work/attack.ipynb/checkpoints", None),
    ("POST", "/api/contents/work/attack.ipynb/trust", None),
    ("POST", "/api/kernels", {"name": "torch"}),
    ("POST", "/api/kernels/{kernel}/restart", None),
    ("POST", "/api/kernels/{kernel}/interrupt", None),
    ("DELETE", "/api/kernels/{kernel}", None),
    ("POST", "/api/sessions", {"path": "x", "type": "notebook", "name": "", "kernel": {"name": "torch"}}),
    ("POST", "/api/terminals", None),
    ("DELETE", "/api/terminals/{terminal}", None),
    ("POST", "/api/shutdown", None),
    ("POST", "/api/events", {"schema_id": "x", "version": "1", "data": {}}),
    ("PATCH", "/api/config/notebook", {"attack": True}),
    ("PUT", "/api/config/notebook", {"attack": True}),
    ("PUT", "/lab/api/settings/rocmlab-panel:plugin", {"raw": "{}"}),
    ("PUT", "/lab/api/workspaces/attack", {"data": {}, "metadata": {"id": "attack"}}),
    ("POST", "/lab/api/plugins", {"cmd": "disable", "plugin_name": "x"}),
    ("POST", "/nbconvert/html", {**NOTEBOOK, "name": "x"}),
    ("POST", "/rocmlab/api/kernels/{kernel}/interrupt", None),
    ("POST", "/rocmlab/api/kernels/{kernel}/restart", None),
    ("POST", "/rocmlab/api/kernels/{kernel}/shutdown", None),
)
EXTRA_CHANGES: tuple[tuple[str, str, Any], ...] = (
    ("POST", f"{REPOSITORY}/init", None),
    ("POST", f"{REPOSITORY}/status", None),
    ("POST", f"{REPOSITORY}/ignore", {"file_path": "x"}),
    ("POST", f"{REPOSITORY}/config", {"options": {"user.name": "attack"}}),
    ("POST", "/git/work/clone", {"clone_url": "file:///nonexistent"}),
    ("POST", "/git/known_hosts", {"hostname": "evil.example"}),
    ("POST", "/nbdime/api/diff", {"base": "work/attack.ipynb", "remote": "work/attack.ipynb"}),
)
OVERRIDES = ("X-HTTP-Method-Override", "X-HTTP-Method", "X-Method-Override", "_method")
TRUSTED_HEADERS = (  # which a careless proxy setting would believe
    {"X-Forwarded-User": "root"},
    {"Remote-User": "root"},
    {"X-Forwarded-For": "127.0.0.1"},
    {"X-Real-IP": "127.0.0.1"},
    {"Forwarded": "for=127.0.0.1;host=localhost"},
    {"X-Original-URL": "/api/status"},
    {"X-JupyterHub-User": "jovyan"},
    {"X-Forwarded-Proto": "https"},
)


def prepare(target: Target) -> None:
    """Give the user files, a kernel and a terminal, which an attacker would like to have."""
    target.write("work/attack.txt", target.canary)
    target.write("work/attack.html", f"<script>document.title='{target.canary}'</script>")
    assert target.as_user("/api/contents/work/attack.ipynb", method="PUT", body=NOTEBOOK).status in (200, 201)
    if target.application:
        folder = REPOSITORY.removeprefix("/git")
        target.as_user(f"/api/contents{folder}", method="PUT", body={"type": "directory"})
        assert target.as_user(f"{REPOSITORY}/init", method="POST").status == 200
        user = {"Authorization": f"token {target.token}"}
        assert target.site.send("/tensorboard/", user, timeout_seconds=START_SECONDS).status == 200  # it starts now


def reads(target: Target) -> tuple[str, ...]:
    """Return what the user can read."""
    more = EXTRA_READS if target.application else ()
    return (*READS, *more) if target.name == "native" else (*READS, *more, FILES)


def sockets(target: Target) -> tuple[str, ...]:
    """Return where a WebSocket is opened."""
    return (*SOCKETS, *EXTRA_SOCKETS) if target.application else SOCKETS


def changes(target: Target) -> tuple[tuple[str, str, Any], ...]:
    """Return the requests that change something; what a proxied application does with one is its own business."""
    return (*CHANGES, *EXTRA_CHANGES) if target.application else CHANGES


def fill(path: str, target: Target) -> str:
    """Put the names of what runs into a path."""
    return path.format(kernel=target.kernel, terminal=target.terminal, application=target.application)


def _wrong(target: Target) -> dict[str, Headers]:
    """Return what someone sends who has no token, by what it is."""
    right = target.token
    basic = base64.b64encode(b":guess").decode()
    return {
        "no token": {},
        "an empty token": {"Authorization": "token "},
        "an empty bearer": {"Authorization": "Bearer "},
        "a wrong token": {"Authorization": f"token {'0' * len(right)}"},
        "a wrong bearer": {"Authorization": f"Bearer {'0' * len(right)}"},
        "all but the last letter": {"Authorization": f"token {right[:-1]}"},
        "all and one more": {"Authorization": f"token {right}0"},
        "the token in capitals": {"Authorization": f"token {right.upper()}"},
        "the token backwards": {"Authorization": f"token {right[::-1]}"},
        "8,000 letters": {"Authorization": f"token {'a' * 8000}"},
        "letters of no alphabet": {"Authorization": "token \u2028\u00e9\U0001f600"},
        "a NUL": {"Authorization": f"token {right[:8]}\\x00"},
        "null": {"Authorization": "token null"},
        "true": {"Authorization": "token true"},
        "a pattern": {"Authorization": "token .*"},
        "a list": {"Authorization": "token ['']"},
        "a query language": {"Authorization": "token ' OR '1'='1"},
        "basic authentication": {"Authorization": f"Basic {basic}"},
        "two headers": [("Authorization", "token 0"), ("Authorization", "token ")],
        "another scheme": {"Authorization": "Negotiate abc"},
        "a forged cookie": {"Cookie": f"username-127-0-0-1-{target.lab.port}=root"},
        "a forged signed cookie": {"Cookie": f'username-127-0-0-1-{target.lab.port}="2|1:0|10:1|4:user|4:cm9v|00"'},
        "an old cookie": {"Cookie": f"username-127-0-0-1-{target.lab.port}=cm9vdA==|1|00"},
        "XSRF alone": {"X-XSRFToken": "x", "Cookie": "_xsrf=x"},
    }


def _granted(answer: Answer) -> str | None:
    return str(answer) if answer.is_granted else None


def _ask(target: Target, path: str, headers: Headers = (), **more: Any) -> str | None:
    return _granted(target.site.send(fill(path, target), headers, **more))


def _control_reads(target: Target) -> str | None:
    prepare(target)
    for path in reads(target):
        answer = target.as_user(fill(path, target))
        if not answer.is_granted or answer.status >= 400:
            return f"{path}: {answer}"
    user = {"Authorization": f"token {target.token}"}
    if target.site.send(STREAM, user, is_stream=True).status != 200:
        return STREAM
    for path in sockets(target):
        answer = target.site.send(fill(path, target), {**UPGRADE, **user})
        if answer.status != 101:
            return f"{path}: {answer}"
    return None


def _reads(target: Target) -> Iterator[Attempt]:
    wrong = _wrong(target)
    for path in (*reads(target), STREAM):
        for name in ("no token", "a wrong token", "an empty token", "a forged signed cookie"):
            yield Attempt(f"GET {path} with {name}", partial(_ask, target, path, wrong[name], is_stream=path == STREAM))
    for name, headers in wrong.items():
        yield Attempt(f"GET /api/contents with {name}", partial(_ask, target, "/api/contents", headers))
    yield from _elsewhere(target)
    for path in sockets(target):
        for name in ("no token", "a wrong token", "a forged signed cookie"):
            headers = {**UPGRADE, **dict(wrong[name])}
            yield Attempt(f"websocket {path} with {name}", partial(_ask, target, path, headers))


def _elsewhere(target: Target) -> Iterator[Attempt]:
    """Try other places of a token, and other forms of method and path."""
    for name in ("token", "Token", "auth_token", "access_token", "_xsrf"):
        for value in ("", "0" * 64, "null", "%00"):
            yield Attempt(f"GET /api/kernels?{name}={value}", partial(_ask, target, f"/api/kernels?{name}={value}"))
    for headers in TRUSTED_HEADERS:
        yield Attempt(f"GET /api/kernels with {headers}", partial(_ask, target, "/api/kernels", headers))
    for method in ("HEAD", "OPTIONS", "TRACE", "CONNECT", "PROPFIND", "get", "GETX"):
        yield Attempt(f"{method} /api/contents/work/attack.txt", partial(_method, target, method))
    for path in ("//api/status", "/./api/status", "/api/../api/status", "/API/status", "/api/status/", "/api//status"):
        yield Attempt(f"GET {path}", partial(_ask, target, path))
    for path in ("/api/status;x", "/api/status%00", "/api/status%20", "/static/../api/status", "/login/../api/kernels"):
        yield Attempt(f"GET {path}", partial(_ask, target, path))


def _method(target: Target, method: str) -> str | None:
    answer = target.site.send("/api/contents/work/attack.txt", method=method)
    return str(answer) if target.canary in answer.body or (answer.is_granted and method != "OPTIONS") else None


def _control_changes(target: Target) -> str | None:
    prepare(target)
    before = target.state()
    target.write("work/attack-new.txt", "x")
    if target.state() == before:
        return "a new file is not seen"
    target.as_user("/api/contents/work/attack-new.txt", method="DELETE")
    return None if target.state() == before else "a file's end is not seen"


def _changes(target: Target) -> Iterator[Attempt]:
    wrong = _wrong(target)
    before = target.state()
    for method, path, body in changes(target):
        for name in ("no token", "a wrong token", "XSRF alone"):
            change = partial(_change, target, method, path, body, wrong[name])
            yield Attempt(f"{method} {path} with {name}", change)
    for header in OVERRIDES:
        path = f"/api/contents/work/attack.txt{'?_method=DELETE' if header == '_method' else ''}"
        yield Attempt(f"{header}: DELETE", partial(_ask, target, path, {header: "DELETE"}, method="POST"))
    for password in ("", "0" * 64, "%00", "password"):
        yield Attempt(f"log in with {password!r}", partial(_log_in, target, password))
    yield Attempt("log in with a new password", partial(_log_in, target, "0", "&new_password=attack"))
    yield Attempt("something has changed", lambda: None if target.state() == before else str(target.state()))


def _change(target: Target, method: str, path: str, body: object, headers: Headers) -> str | None:
    data = json.dumps(body).encode() if body is not None else b"{}"
    sent = {"Content-Type": "application/json", **dict(headers)}
    return _granted(target.site.send(fill(path, target), sent, method=method, body=data))


def _log_in(target: Target, password: str, more: str = "") -> str | None:
    page = target.site.send("/login")
    xsrf = page.cookies.get("_xsrf", "")
    headers = {"Content-Type": "application/x-www-form-urlencoded", "Cookie": f"_xsrf={xsrf}"}
    body = f"_xsrf={xsrf}&password={password}{more}".encode()
    answer = target.site.send("/login", headers, method="POST", body=body)
    cookie = "; ".join(f"{name}={value}" for name, value in answer.cookies.items())
    return _granted(target.site.send("/api/kernels", {"Cookie": cookie}))


def _control_metrics(target: Target) -> str | None:
    if not target.metrics_token:
        return "there is no METRICS_TOKEN in .env"
    answer = target.site.send("/rocmlab/metrics", {"Authorization": f"Bearer {target.metrics_token}"})
    return None if answer.status == 200 else f"it does not read the metrics: {answer}"


def _metrics(target: Target) -> Iterator[Attempt]:
    token = str(target.metrics_token)
    forms: dict[str, Callable[[str], tuple[str, dict[str, str]]]] = {
        "Bearer": lambda path: (path, {"Authorization": f"Bearer {token}"}),
        "token": lambda path: (path, {"Authorization": f"token {token}"}),
        "?token=": lambda path: (f"{path}?token={token}", {}),
    }
    for form, made in forms.items():
        for path in (*reads(target), STREAM):
            if path != "/rocmlab/metrics":
                sent, headers = made(path)
                attempt = partial(_ask, target, sent, headers, is_stream=path == STREAM)
                yield Attempt(f"GET {path} with the metrics' token as {form}", attempt)
    bearer = {"Authorization": f"Bearer {token}"}
    for path in sockets(target):
        yield Attempt(f"websocket {path} with it", partial(_ask, target, path, {**UPGRADE, **bearer}))
    for method, path, body in changes(target):
        yield Attempt(f"{method} {path} with it", partial(_change, target, method, path, body, bearer))
    yield Attempt("log in with it", partial(_log_in, target, token))
    for method in ("POST", "PUT", "DELETE", "PATCH"):
        change = partial(_change, target, method, "/rocmlab/metrics", None, bearer)
        yield Attempt(f"{method} /rocmlab/metrics with it", change)
    for path in ("/rocmlab/metrics/../api/kernels", "/rocmlab/metrics%2f..%2fapi%2fkernels", "/rocmlab/metrics/"):
        yield Attempt(f"GET {path} with it", partial(_ask, target, path, bearer))


GROUPS = (
    Group("reading without the token", "a request is answered", _control_reads, _reads),
    Group("changing without the token", "a file, a kernel or a setting changes", _control_changes, _changes),
    Group("the metrics' token elsewhere", "it opens more than the metrics", _control_metrics, _metrics),
)
