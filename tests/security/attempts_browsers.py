"""A malicious page in the browser of a user who is logged in, and a malicious file that the user opens in the lab."""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import partial
from typing import Any

from attempts import Attempt, Group
from attempts_requests import FILES, SOCKETS, STREAM, changes, fill, prepare, reads, sockets
from raw_http import UPGRADE, Answer
from targets import Target

EVIL = "http://evil.example"
HOSTS = (  # what a browser sends of a name that an attacker's DNS leads to 127.0.0.1
    "evil.example",
    "evil.example:8888",
    "evil.example:{port}",
    "127.0.0.1.evil.example:{port}",
    "localhost.evil.example:{port}",
    "127.0.0.1@evil.example",
    "evil.example#127.0.0.1",
    "evil.example/127.0.0.1",
    "127.0.0.1.nip.io",
    "localhost.localdomain.evil.example",
    "192.0.2.7:{port}",
    "8.8.8.8",
    "[2001:db8::1]:{port}",
    "evil.example.",
    "EVIL.EXAMPLE",
    "xn--lcalhost-7sb.example",
    "l\u043ecalhost",
    "host.docker.internal:{port}",
    "localhost\t.evil.example",
    "localhost,evil.example",
)
ORIGINS = (
    EVIL,
    "null",
    "file://",
    "http://127.0.0.1",
    "http://127.0.0.1:1",
    "http://{address}.evil.example",
    "http://localhost:9999",
    "http://evil.example/{address}",
    "http://{address}@evil.example",
    "chrome-extension://abcdef",
    "http://",
)
PAGES = ("/lab", "/lab/tree/work", "/login", "/rocmlab/", "/nbconvert/html/work/attack.ipynb", "/view/work/attack.html")
NEXT = (
    "//evil.example/",
    "///evil.example/",
    "////evil.example",
    "https://evil.example/",
    "http:evil.example",
    "/\\evil.example",
    "\\\\evil.example",
    "/%09/evil.example",
    "/%5cevil.example",
    "%2f%2fevil.example",
    "javascript:alert(1)",
    "//127.0.0.1@evil.example/",
    "/lab//evil.example/..;/",
)


def _control(target: Target) -> str | None:
    prepare(target)
    target.write("work/attack.svg", "<svg xmlns='http://www.w3.org/2000/svg'><script>alert(1)</script></svg>")
    logged_in = target.browser.cookie_header()
    answer = target.browser.send("/api/kernels", {**logged_in, "Referer": f"http://{target.address}/lab"})
    if answer.status != 200:
        return f"the browser is not logged in: {answer}"
    answer = target.site.send(fill(SOCKETS[2], target), {**UPGRADE, **logged_in, "Origin": f"http://{target.address}"})
    if answer.status != 101:
        return f"its websocket is not taken: {answer}"
    xsrf = {**logged_in, "X-XSRFToken": target.browser.cookies["_xsrf"], "Origin": f"http://{target.address}"}
    body = json.dumps({"type": "directory"}).encode()
    answer = target.browser.send("/api/contents/work/attack-folder", xsrf, method="PUT", body=body)
    if answer.status != 201:
        return f"its own requests change nothing: {answer}"
    target.as_user("/api/contents/work/attack-folder", method="DELETE")
    return None


# -- a name that leads to 127.0.0.1 (DNS rebinding) --------------------------------------------------------------------


def _rebinding(target: Target) -> Iterator[Attempt]:
    for text in HOSTS:
        host = text.format(port=target.lab.port)
        for path in ("/api/status", "/login", "/lab"):
            yield Attempt(f"Host: {host!a} at {path}", partial(_as_host, target, host, path))
    for name in ("X-Forwarded-Host", "X-Host", "X-Forwarded-Server", "X-HTTP-Host-Override", "Forwarded"):
        value = "host=127.0.0.1" if name == "Forwarded" else "127.0.0.1"
        yield Attempt(f"Host: evil.example and {name}", partial(_as_host, target, EVIL[7:], "/login", {name: value}))
    for first, second in (("evil.example", target.address), (target.address, "evil.example")):
        two = [("Host", first), ("Host", second)]
        yield Attempt(f"two hosts, {first} first", partial(_two_hosts, target, two, second))
    absolute = f"{EVIL}/api/status"
    yield Attempt("an absolute address", partial(_as_host, target, "evil.example", absolute))


def _as_host(target: Target, host: str, path: str, more: dict[str, str] | None = None) -> str | None:
    headers = {"Authorization": f"token {target.token}", **(more or {})}
    answer = target.site.send(path, headers, host=host)
    return str(answer) if answer.is_granted else None


def _two_hosts(target: Target, headers: list[tuple[str, str]], last: str) -> str | None:
    answer = target.site.send("/api/status", [*headers, ("Authorization", f"token {target.token}")])
    return str(answer) if answer.is_granted else None


# -- requests of another page, with the user's cookies -----------------------------------------------------------------


def _forged(target: Target) -> Iterator[Attempt]:
    cookie, before = target.browser.cookie_header(), target.state()
    xsrf = target.browser.cookies["_xsrf"]
    kinds: dict[str, dict[str, str]] = {
        "no XSRF token": {"Origin": EVIL},
        "a wrong XSRF token": {"X-XSRFToken": "0", "Origin": EVIL},
        "a form": {"Content-Type": "text/plain", "Origin": EVIL, "Referer": f"{EVIL}/"},
        "neither Origin nor Referer": {},
        "a known XSRF token, from elsewhere": {"X-XSRFToken": xsrf, "Origin": EVIL},
        "another server's page on 127.0.0.1": {"Origin": "http://127.0.0.1:9", "Referer": "http://127.0.0.1:9/"},
    }
    for method, path, body in changes(target):
        for name, headers in kinds.items():
            forge = partial(_forge, target, method, path, body, {**cookie, **headers})
            yield Attempt(f"{method} {path}, {name}", forge)
    for origin in ORIGINS:
        sent = {**cookie, "Origin": origin.format(address=target.address)}
        for path in sockets(target):
            yield Attempt(f"websocket {path} of {origin}", partial(_socket, target, path, sent))
    for path in ("/api/shutdown", "/api/kernels/{kernel}/restart", "/rocmlab/api/kernels/{kernel}/shutdown"):
        yield Attempt(f"GET {path}", partial(_forge, target, "GET", path, None, cookie))
    yield Attempt("something has changed", lambda: None if target.state() == before else str(target.state()))


def _forge(target: Target, method: str, path: str, body: object, headers: dict[str, str]) -> str | None:
    data = json.dumps(body).encode() if body is not None else b""
    answer = target.site.send(fill(path, target), headers, method=method, body=data)
    return str(answer) if answer.is_granted else None


def _socket(target: Target, path: str, headers: dict[str, str]) -> str | None:
    answer = target.site.send(fill(path, target), {**UPGRADE, **headers})
    return str(answer) if answer.status == 101 else None


# -- what another page may read, frame, or be led to -------------------------------------------------------------------


def _read(target: Target) -> Iterator[Attempt]:
    cookie = target.browser.cookie_header()
    for origin in ORIGINS:
        sent = {**cookie, "Origin": origin.format(address=target.address)}
        for path in ("/api/contents/work/attack.txt", "/rocmlab/api/devices", "/lab"):
            yield Attempt(f"{path} is shared with {origin}", partial(_shared, target, path, sent))
    asking = {
        "Origin": EVIL,
        "Access-Control-Request-Method": "DELETE",
        "Access-Control-Request-Headers": "x-xsrftoken",
    }
    for path in (*reads(target), STREAM):
        yield Attempt(f"preflight of {path}", partial(_shared, target, path, asking, "OPTIONS"))
    for path in PAGES:
        yield Attempt(f"{path} in a frame", partial(_framed, target, path, cookie))
        yield Attempt(f"{path} with its type guessed", partial(_guessed, target, path, cookie))
    yield from _opened(target, cookie)


def _opened(target: Target, cookie: dict[str, str]) -> Iterator[Attempt]:
    """Try what the user opens: a script, a file with a script in it, a link."""
    embedded = {**cookie, "Referer": f"{EVIL}/", "Sec-Fetch-Site": "cross-site"}
    scripts = (FILES, "/api/contents/work/attack.txt", "/api/kernels", "/rocmlab/api/devices", "/rocmlab/metrics")
    for path in scripts:
        yield Attempt(f"{path} as a script of another page", partial(_told, target, path, embedded))
    for path in ("/view/work/attack.html", "/files/work/attack.html", "/files/work/attack.svg", PAGES[4]):
        yield Attempt(f"{path} runs as the lab's own page", partial(_sandboxed, target, path, cookie))
    for name in ("SameSite", "HttpOnly", "Path"):
        yield Attempt(f"the login cookie without {name}", partial(_cookie, target, name))
    for where in NEXT:
        for path in (f"/login?next={where}", f"/logout?next={where}"):
            yield Attempt(f"{path} leads away", partial(_leads_away, target, path, cookie))
    # As a browser sends it, which makes a slash of each backslash.
    for path in (
        "//evil.example/",
        "//evil.example/lab/",
        "/%2fevil.example/",
        "/%5cevil.example/",
        "///evil.example/",
    ):
        yield Attempt(f"{path} leads away", partial(_leads_away, target, path, cookie))


def _shared(target: Target, path: str, headers: dict[str, str], method: str = "GET") -> str | None:
    answer = target.site.send(fill(path, target), headers, method=method, is_stream=True)
    allowed = answer.header("Access-Control-Allow-Origin")
    return f"Access-Control-Allow-Origin: {allowed}" if allowed else None


def _framed(target: Target, path: str, headers: dict[str, str]) -> str | None:
    answer = target.site.send(path, {**headers, "Referer": f"http://{target.address}/lab"})
    policy = answer.header("Content-Security-Policy")
    if answer.status not in (200, 302):
        return f"there is no such page: {answer}"
    return None if "frame-ancestors 'self'" in policy or "frame-ancestors 'none'" in policy else f"policy {policy!r}"


def _guessed(target: Target, path: str, headers: dict[str, str]) -> str | None:
    answer = target.site.send(path, {**headers, "Referer": f"http://{target.address}/lab"})
    return None if answer.header("X-Content-Type-Options") == "nosniff" else "no X-Content-Type-Options: nosniff"


def _told(target: Target, path: str, headers: dict[str, str]) -> str | None:
    answer = target.site.send(path, headers)
    kind, sniff = answer.header("Content-Type"), answer.header("X-Content-Type-Options")
    is_script = "javascript" in kind or sniff != "nosniff"  # a browser takes nothing else for one
    return f"{kind}: {answer}" if answer.is_granted and is_script else None


def _sandboxed(target: Target, path: str, headers: dict[str, str]) -> str | None:
    answer: Answer = target.site.send(path, {**headers, "Referer": f"http://{target.address}/lab"})
    policy = answer.header("Content-Security-Policy")
    inner = 'sandbox="allow-scripts"' in answer.body and "allow-same-origin" not in answer.body
    return str(answer) if answer.is_granted and not (_is_sandbox(policy) or inner) else None


def _is_sandbox(policy: str) -> bool:
    return "sandbox" in policy and "allow-same-origin" not in policy


def _cookie(target: Target, name: str) -> str | None:
    answer: Any = target.site.send(f"/lab?token={target.token}")
    (cookie,) = (value for key, value in answer.headers if key.lower() == "set-cookie" and "username" in value)
    parts = {part.strip().partition("=")[0].lower(): part.strip() for part in cookie.split(";")[1:]}
    is_there = name.lower() in parts and parts[name.lower()].lower() != "samesite=none"
    return None if is_there else cookie.partition(";")[2]


def _leads_away(target: Target, path: str, headers: dict[str, str]) -> str | None:
    answer = target.site.send(path, headers)
    where = answer.header("Location").lstrip().replace("\\", "/")
    away = where.startswith("//") or ("evil" in where.partition("://")[2].partition("/")[0])
    away |= where.lower().startswith(("javascript:", "http:evil"))
    return f"Location: {where}" if away else None


GROUPS = (
    Group("a name of another host", "a page of that name reaches the lab", _control, _rebinding),
    Group("another page with the user's cookies", "it changes something", _control, _forged),
    Group("what another page reads or frames", "it sees the lab, or its own script runs as it", _control, _read),
)
