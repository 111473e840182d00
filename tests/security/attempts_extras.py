"""A lab with EXTRAS: what git, the language server and proxied applications reach, and for whom.

What needs the token, and what other pages may change, is tried with the lab's own routes: see `attempts_requests`.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from urllib.parse import unquote

import websocket
from attempts import Attempt, Group
from attempts_browsers import EVIL, ORIGINS
from attempts_paths import DEPTH, UP
from attempts_requests import EXTRA_READS, REPOSITORY, fill, prepare
from raw_http import UPGRADE, canary
from targets import Target

START_SECONDS = 60.0
# Where another machine, or this one under a name that someone else may have, would be reached.
PLACES = (
    "evil.example:80",
    "192.0.2.1:80",
    "169.254.169.254:80",
    "0.0.0.0:{port}",
    "127.1:{port}",
    "127.0.0.2:{port}",
    "2130706433:{port}",
    "0x7f000001:{port}",
    "0177.0.0.1:{port}",
    "[::1]:{port}",
    "[::ffff:127.0.0.1]:{port}",
    "localhost.evil.example:{port}",
    "127.0.0.1%2eevil.example:{port}",
    "127.0.0.1@evil.example:{port}",
    "user@127.0.0.1:{port}",
    "evil.example%2f:{port}",
    "evil.example%23:{port}",
    "{port}@evil.example:80",
    "{port}%40evil.example:80",
    "{port}%00",
    "%00{port}",
    "+{port}",
    "-{port}",
    "{port}.0",
    "file:%2f%2f%2fetc%2fpasswd",
    "unix:%2fvar%2frun%2fdocker.sock",
)
EMBEDDED = (  # how a page of another port of 127.0.0.1 has a browser ask, with the login
    {"Sec-Fetch-Site": "same-site", "Sec-Fetch-Mode": "no-cors", "Sec-Fetch-Dest": "image"},
    {"Sec-Fetch-Site": "same-site", "Sec-Fetch-Mode": "no-cors", "Sec-Fetch-Dest": "script"},
    {"Sec-Fetch-Site": "same-site", "Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "iframe"},
    {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "object"},
)


# -- git in other folders ----------------------------------------------------------------------------------------------


def _outside(target: Target, name: str) -> Path:
    """Return a folder that the lab does not show."""
    folder = target.lab.folder.parent / f"attack-{name}"
    folder.mkdir(exist_ok=True)
    return folder


def _control_git(target: Target) -> str | None:
    prepare(target)
    made = target.lab.folder / "notebooks" / REPOSITORY.rpartition("/")[2]
    target.as_user(f"{REPOSITORY}/ignore", method="POST", body={"file_path": "x"})
    return None if {".git", ".gitignore"} <= {path.name for path in made.iterdir()} else "git changes nothing"


def _git(target: Target) -> Iterator[Attempt]:
    outside = str(_outside(target, "git")).lstrip("/")
    starts = [up * DEPTH for up in UP] + ["", "/", "%2f", "work/attack-repository/" + "../" * DEPTH]
    for start in starts:
        for what, body in (("init", None), ("ignore", {"file_path": "x"}), ("clone", {"clone_url": REPOSITORY})):
            path = f"/git/{start}{outside}/{what}"
            yield Attempt(f"{what} at /git/{start[:12]}…", partial(_has_left, target, path, body))
    for option in ("--output=", "--no-index "):
        body = {"previous": f"{option}{outside}/attack", "current": "HEAD"}
        yield Attempt(f"git diff {option}", partial(_has_left, target, f"{REPOSITORY}/diff", body))


def _has_left(target: Target, path: str, body: object) -> str | None:
    answer = target.as_user(path, method="POST", body=body)
    found = [each.name for each in _outside(target, "git").iterdir()]
    return f"{found}: {answer}" if found else None


# -- the language server's files ---------------------------------------------------------------------------------------


def _documents(target: Target) -> Path:
    """Return where the lab writes what is edited, for the language server, as its page has it."""
    found = re.search(r'"virtualDocumentsUri": "file://([^"]+)"', target.as_user("/lab").body)
    assert found
    return Path(unquote(found[1]))


def _opened(target: Target, *addresses: str) -> bool:
    """Have the language server open documents, the last of them in its own folder; return whether that was written."""
    written = _documents(target) / f"{canary()}.py"
    header = [f"Authorization: token {target.token}"]
    url = f"ws://{target.address}/lsp/ws/pylsp"
    channel = websocket.create_connection(url, header=header, suppress_origin=True, timeout=START_SECONDS)
    try:
        for address in (*addresses, written.as_uri()):
            document = {"uri": address, "languageId": "python", "version": 1, "text": "attack = 1\n"}
            message = {"jsonrpc": "2.0", "method": "textDocument/didOpen", "params": {"textDocument": document}}
            channel.send(json.dumps(message))
        deadline = time.monotonic() + START_SECONDS
        while not written.exists() and time.monotonic() < deadline:
            time.sleep(0.02)
        return written.exists()
    finally:
        channel.close()


def _control_documents(target: Target) -> str | None:
    return None if _opened(target) else "what is edited is not written"


def _documents_elsewhere(target: Target) -> Iterator[Attempt]:
    base, outside = _documents(target).as_uri(), _outside(target, "documents")
    there = f"{str(outside).lstrip('/')}/attack.py"
    addresses = {f"…/{up}": f"{base}/{up * DEPTH}{there}" for up in UP}
    addresses |= {
        "an address of its own": f"{outside.as_uri()}/attack.py",
        "a name that begins alike": f"{base}-attack/attack.py",
        "a folder, and up": f"{base}/a/b/{'../' * (DEPTH + 2)}{there}",
        "a host": f"file://evil.example/{there}",
        "a query": f"{base}/?/{'../' * DEPTH}{there}",
        "a fragment": f"{base}/#/{'../' * DEPTH}{there}",
    }
    for name, address in addresses.items():
        yield Attempt(f"a document at {name}", partial(_written, target, address))


def _written(target: Target, address: str) -> str | None:
    assert _opened(target, address)
    places = (*_outside(target, "documents").iterdir(), *_documents(target).parent.glob("*-attack"))
    return ", ".join(map(str, places)) or None


# -- what the proxy reaches --------------------------------------------------------------------------------------------


def _control_proxy(target: Target) -> str | None:
    answer = target.as_user(fill("/proxy/{application}/", target))
    return None if target.canary in answer.body else f"the user's application is not reached: {answer}"


def _elsewhere(target: Target) -> Iterator[Attempt]:
    for place in PLACES:
        name = place.format(port=target.application)
        for base in ("/proxy/", "/proxy/absolute/"):
            yield Attempt(f"GET {base}{name}", partial(_passed_on, target, f"{base}{name}/"))
        yield Attempt(f"websocket /proxy/{name}", partial(_passed_on, target, f"/proxy/{name}/", UPGRADE))
    for port in (0, 65536, 99999, target.application + 65536):
        yield Attempt(f"port {port}", partial(_passed_on, target, f"/proxy/{port}/"))


def _passed_on(target: Target, path: str, headers: dict[str, str] | None = None) -> str | None:
    answer = target.site.send(path, {**(headers or {}), "Authorization": f"token {target.token}"})
    return None if answer.status in (400, 403, 404) and target.canary not in answer.body else str(answer)


# -- other pages -------------------------------------------------------------------------------------------------------


def _control_pages(target: Target) -> str | None:
    prepare(target)
    cookie = target.browser.cookie_header()
    own = {**cookie, "Origin": f"http://{target.address}", "Sec-Fetch-Site": "same-origin"}
    for path in EXTRA_READS:
        answer = target.site.send(fill(path, target), {**own, "Referer": f"http://{target.address}/lab"})
        if answer.status != 200:
            return f"the lab's own page does not get {path}: {answer}"
    return None


def _pages(target: Target) -> Iterator[Attempt]:
    cookie = target.browser.cookie_header()
    for path in EXTRA_READS:
        for how in EMBEDDED:
            name = f"{path} as {how['Sec-Fetch-Dest']} of a {how['Sec-Fetch-Site']} page"
            yield Attempt(name, partial(_answered, target, path, {**cookie, **how}))
    for origin in ORIGINS:
        sent = {**cookie, "Origin": origin.format(address=target.address), "Content-Type": "text/plain"}
        for path in ("/proxy/{application}/", "/tensorboard/data/experiments"):
            yield Attempt(f"POST {path} of {origin}", partial(_answered, target, path, sent, "POST"))
    for path in ("/proxy/{application}/", "/tensorboard/"):
        yield Attempt(f"{path} in a frame", partial(_framed, target, path, cookie))
    link = {**cookie, "Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "document"}
    for path in (f"{REPOSITORY}/submodules", f"/nbdime/difftool?base={EVIL}/x.ipynb&remote=work/attack.ipynb"):
        yield Attempt(f"a link to {path}", partial(_answered, target, path, link))


def _answered(target: Target, path: str, headers: dict[str, str], method: str = "GET") -> str | None:
    answer = target.site.send(fill(path, target), headers, method=method, body=b"x" if method == "POST" else b"")
    return str(answer) if answer.status != 403 else None


def _framed(target: Target, path: str, headers: dict[str, str]) -> str | None:
    answer = target.site.send(fill(path, target), headers)
    policy = answer.header("Content-Security-Policy")
    return None if answer.status == 200 and "frame-ancestors 'self'" in policy else f"{policy!r}: {answer}"


ONLY = ("native",)  # whose lab has the extras
GROUPS = (
    Group("git in other folders", "git has written outside of what is shown", _control_git, _git, ONLY),
    Group(
        "the language server's documents", "one is written elsewhere", _control_documents, _documents_elsewhere, ONLY
    ),
    Group("other machines through the proxy", "a request is passed on", _control_proxy, _elsewhere, ONLY),
    Group("another page at the extras", "it is answered with the user's login", _control_pages, _pages, ONLY),
)
