"""Paths that lead out of what is shown, log entries, and requests that hurt; with the right token where one helps."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from urllib.parse import quote

from attempts import Attempt, Group
from attempts_requests import prepare
from raw_http import Answer, canary
from targets import Target

UP = (
    "../",
    "..%2f",
    "%2e%2e/",
    "%2e%2e%2f",
    "..%5c",
    "..\\",
    "%252e%252e%252f",
    "....//",
    "..;/",
    "%c0%ae%c0%ae/",
    ".%00./",
    "..%c0%af",
    "%uff0e%uff0e/",
)
BASES = (
    "/static/",
    "/static/lab/",
    "/lab/extensions/",
    "/lab/extensions/rocmlab-panel/",
    "/files/",
    "/files/work/",
    "/view/work/",
    "/nbconvert/script/work/",
    "/api/contents/",
    "/api/contents/work/",
    "/rocmlab/",
    "/rocmlab/static/",
    "/kernelspecs/torch/",
    "/lab/api/themes/",
    "/lab/api/translations/",
    "/lab/api/workspaces/",
    "/lab/api/settings/",
    "/lab/tree/",
    "/api/config/",
)
EXTRA_BASES = (
    "/git/work/",
    "/lsp/ws/",
    "/nbdime/api/",
    "/server-proxy/icon/",
    "/tensorboard/",
    "/tensorboard/data/plugin/",
)
DEPTH = 14
SECRET_FILE = "etc/passwd"
MARK = "root:x:0:0"
OUTSIDE = ("../attack-escaped", "..%2fattack-escaped", "%2e%2e%2fattack-escaped", "work/../../attack-escaped")
ABSOLUTE = (
    "//etc/passwd",
    "/%2fetc%2fpasswd",
    "/file:///etc/passwd",
    "/~root/",
    "/proc/self/environ",
    "/%2fproc%2fself%2fenviron",
)


def _control(target: Target) -> str | None:
    prepare(target)
    answer = target.as_user("/api/contents/work/attack.txt")
    return None if target.canary in answer.body else f"a file that is shown is not served: {answer}"


def _leaving(target: Target) -> Iterator[Attempt]:
    for base in (*BASES, *(EXTRA_BASES if target.application else ())):
        for up in UP:
            path = f"{base}{up * DEPTH}{SECRET_FILE}"
            yield Attempt(f"GET {base}{up}…", partial(_has_left, target, path))
        for absolute in ABSOLUTE:
            yield Attempt(f"GET {base}{absolute}", partial(_has_left, target, base + absolute))


def _has_left(target: Target, path: str) -> str | None:
    answer = target.as_user(path)
    environment = "JUPYTER_" in answer.body and "\0" in answer.body
    return str(answer) if MARK in answer.body or environment else None


def _writing(target: Target) -> Iterator[Attempt]:
    bodies = {"a file": {"type": "file", "format": "text", "content": "x"}, "a folder": {"type": "directory"}}
    for where in OUTSIDE:
        for name, body in bodies.items():
            yield Attempt(f"save {name} as {where}", partial(_saved, target, "PUT", where, body))
        yield Attempt(f"rename to {where}", partial(_renamed, target, where))
    for where in ("../../etc/passwd", "/etc/passwd", "..%2f..%2fetc/passwd", "work/../../../etc/passwd"):
        yield Attempt(f"copy {where}", partial(_copied, target, where))
    for identity in ("..", "%2e%2e", "..%2f..%2fx", "x%00y"):
        path = f"work/attack.ipynb/checkpoints/{identity}"
        yield Attempt(f"restore the checkpoint {identity}", partial(_saved, target, "POST", path, {}))
    chunk = {"type": "file", "format": "text", "content": "x", "chunk": 1}
    for where in OUTSIDE:
        yield Attempt(f"upload a part of {where}", partial(_saved, target, "PUT", where, chunk))
    for name in ("../../attack", "..", "/bin/sh", "torch/../../x", "$(id)", "-c", "torch\0"):
        yield Attempt(f"a kernel called {name!a}", partial(_kernel, target, name))
    for name in ("..%2f..%2fattack", "%2e%2e", "attack%2f..%2f..%2f..%2fx"):
        path = f"/lab/api/workspaces/{name}"
        body = {"data": {}, "metadata": {"id": name}}
        yield Attempt(f"a workspace called {name}", partial(_workspace, target, path, body))


def _saved(target: Target, method: str, where: str, body: object) -> str | None:
    answer = target.as_user(f"/api/contents/{where}", method=method, body=body)
    return str(answer) if answer.is_granted or _escaped(target) else None


def _renamed(target: Target, where: str) -> str | None:
    target.write("work/attack-old.txt", "x")
    answer = target.as_user("/api/contents/work/attack-old.txt", method="PATCH", body={"path": where})
    if answer.is_granted:  # an odd name is no crime
        target.as_user(f"/api/contents/{quote(where)}", method="DELETE")
    return _escaped(target) or None


def _escaped(target: Target) -> str:
    if target.name == "container":
        return target.inside("find", "/", "-xdev", "-maxdepth", "2", "-name", "attack-escaped")[1].strip()
    project = target.lab.folder
    folders = (project, project.parent, project / ".rocmlab", Path("/"))
    return " ".join(str(folder) for folder in folders if (folder / "attack-escaped").exists())


def _copied(target: Target, where: str) -> str | None:
    answer = target.as_user("/api/contents/work", method="POST", body={"copy_from": where})
    if not answer.is_granted:
        return None
    made = json.loads(answer.body)["path"]
    text = target.as_user(f"/api/contents/{made}").body
    target.as_user(f"/api/contents/{made}", method="DELETE")
    return str(answer) if MARK in text else None


def _kernel(target: Target, name: str) -> str | None:
    answer = target.as_user("/api/kernels", method="POST", body={"name": name})
    return str(answer) if answer.is_granted else None


def _workspace(target: Target, path: str, body: object) -> str | None:
    target.as_user(path, method="PUT", body=body)
    found = _escaped(target) or _outside_workspaces(target)
    return found or None


def _outside_workspaces(target: Target) -> str:
    if target.name == "container":
        return ""
    made = target.lab.folder.glob("*attack*.jupyterlab-workspace")
    return " ".join(map(str, [*made, *(target.lab.folder / ".rocmlab").glob("*attack*")]))


# -- the log, and requests that hurt -----------------------------------------------------------------------------------


def _control_log(target: Target) -> str | None:
    return None if "/api/canary-" in _log_now(target) else "the log does not show a request"


def _log_now(target: Target) -> str:
    """Return the log when it has all that was sent; a request is answered before it is logged."""
    path = f"/api/{canary()}"
    target.site.send(path)
    deadline = time.monotonic() + 60
    while path not in (text := target.log()) and time.monotonic() < deadline:
        time.sleep(0.05)
    return text


def _log(target: Target) -> Iterator[Attempt]:
    escape = "\x1b]0;attack\x07"
    yield Attempt("an escape sequence in the path", partial(_logged, target, f"/{escape}", {}))
    yield Attempt("an escaped one in the path", partial(_logged, target, "/%1b]0;attack%07", {}))
    yield Attempt("one in the query", partial(_logged, target, "/api/x?%1b]0;attack", {}))
    for name in ("Referer", "User-Agent", "Origin", "Host", "X-Forwarded-For"):
        headers = {name: escape} if name != "Host" else {"Host": escape}
        yield Attempt(f"one in {name}", partial(_logged, target, "/api/kernels", headers))
    yield Attempt("a line of its own", partial(_logged, target, "/x%0d%0a[C attack]", {}, "\n[C attack]"))
    yield Attempt("a line of its own in Referer", partial(_lines, target))
    queries = ["/nothing?token={0}", "/api/kernels?token={0}", "/lab?token={0}x", "/files/x?a=b&token={0}&c=d"]
    if target.application:
        queries += ["/tensorboard/?token={0}", f"/proxy/{target.application}/?token={{0}}", "/git/settings?token={0}"]
    for path in queries:
        yield Attempt(f"the token of {path}", partial(_token_logged, target, path, {}))
    referer = {"Referer": f"http://{target.address}/lab?token={target.token}"}
    yield Attempt("the token of a Referer", partial(_token_logged, target, "/api/nothing", referer))
    authorization = {"Authorization": f"token {target.token}"}
    yield Attempt("the token of a header", partial(_token_logged, target, "/api/nothing", authorization))


def _logged(target: Target, path: str, headers: dict[str, str], mark: str = "\x1b]0;attack") -> str | None:
    target.site.send(path, headers)
    return "the log has it as it was sent" if mark in _log_now(target) else None


def _lines(target: Target) -> str | None:
    target.site.send("/api/kernels", {"Referer": "http://x/\r\n[C attack-line]"})
    return "the log has a line of ours" if "\n[C attack-line]" in _log_now(target) else None


def _token_logged(target: Target, path: str, headers: dict[str, str]) -> str | None:
    target.site.send(path.format(target.token), headers)
    return "the log has the token" if target.token in _log_now(target) else None


def _hurting(target: Target) -> Iterator[Attempt]:
    big: dict[str, tuple[str, dict[str, str], bytes, str]] = {
        "a header of 1 MB": ("/api", {"X": "a" * 1_000_000}, b"", "GET"),
        "10,000 headers": ("/api", {f"X{number}": "a" for number in range(10_000)}, b"", "GET"),
        "a path of 1 MB": ("/" + "a" * 1_000_000, {}, b"", "GET"),
        "a body that never comes": ("/login", {"Content-Length": "9999999999"}, b"x", "POST"),
        "a negative length": ("/login", {"Content-Length": "-1"}, b"x", "POST"),
        "two lengths": ("/login", {"Content-Length": "1", "content-length": "5"}, b"x", "POST"),
        "chunks that never end": ("/login", {"Transfer-Encoding": "chunked"}, b"FFFFFFFF\r\nx", "POST"),
        "a chunk and a length": (
            "/login",
            {"Transfer-Encoding": "chunked", "Content-Length": "3"},
            b"0\r\n\r\n",
            "POST",
        ),
        "deep JSON": ("/api/kernels", {}, b"[" * 200_000, "POST"),
        "10,000 parameters": ("/login?" + "&".join(f"a{number}=1" for number in range(10_000)), {}, b"", "GET"),
        "10,000 cookies": ("/login", {"Cookie": "; ".join(f"a{number}=1" for number in range(5_000))}, b"", "GET"),
        "a wrong multipart": (
            "/login",
            {"Content-Type": "multipart/form-data; boundary=" + "-" * 50_000},
            b"x",
            "POST",
        ),
        "a report of 2 MB": ("/api/security/csp-report", {}, b"x" * 2_000_000, "POST"),
        "a zip bomb's first bytes": ("/login", {"Content-Encoding": "gzip"}, b"\x1f\x8b" + b"\0" * 100_000, "POST"),
    }
    for name, (path, headers, body, method) in big.items():
        yield Attempt(name, partial(_hurts, target, path, headers, body, method))
    yield Attempt("a hundred requests that are never finished", partial(_half_open, target))


def _answers(target: Target) -> bool:
    answer: Answer = target.site.send("/api", timeout_seconds=5.0)
    return answer.status == 200


def _hurts(target: Target, path: str, headers: dict[str, str], body: bytes, method: str) -> str | None:
    target.site.send(path, headers, method=method, body=body, timeout_seconds=1.0)
    return None if _answers(target) else "the lab does not answer afterwards"


def _half_open(target: Target) -> str | None:
    import contextlib
    import socket

    with contextlib.ExitStack() as opened:
        for _ in range(100):
            host, _, port = target.address.partition(":")
            connection = opened.enter_context(socket.create_connection((host, int(port)), timeout=5))
            connection.sendall(b"GET /api HTTP/1.1\r\nHost: x")
        return None if _answers(target) else "the lab does not answer meanwhile"


GROUPS = (
    Group("paths out of what is shown", "another file is read", _control, _leaving),
    Group("names out of what is shown", "something is written or started elsewhere", _control, _writing),
    Group("the log", "it holds a secret, or the attacker's text as it was sent", _control_log, _log),
    Group("requests that hurt", "the lab answers no more", _control, _hurting),
)
