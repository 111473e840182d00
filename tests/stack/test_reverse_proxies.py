"""The examples of docs/proxy: a lab behind Debian's nginx and Caddy, over TLS, under a name of its own."""

from __future__ import annotations

import http.client
import json
import os
import re
import socket
import ssl
import subprocess
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

import clients
import pytest
import websocket
from clones import REPOSITORY, Clone, clone, free_port, furnish, without_docker
from panel_servers import Events
from servers import program, running

from rocmlab.stack import server, tls

pytestmark = pytest.mark.slow
NAME = "lab.example.org"
WAIT_SECONDS = 60.0
NGINX = """
daemon off;
pid {folder}/nginx.pid;
error_log {folder}/error.log info;
{user}
events {{}}
http {{
    client_body_temp_path {folder}/body;
    proxy_temp_path {folder}/proxied;
    fastcgi_temp_path {folder}/fastcgi;
    uwsgi_temp_path {folder}/uwsgi;
    scgi_temp_path {folder}/scgi;
    access_log {folder}/access.log;
    include {folder}/rocmlab.conf;
}}
"""
CADDY = """
{
    admin off
    skip_install_trust
    local_certs
    auto_https disable_redirects
    default_bind 127.0.0.1
}
"""


@dataclass
class Proxy:
    """One proxy that runs."""

    port: int
    certificate: Path  # that signs its own
    folder: Path  # with all that it logs
    lab: Clone

    @property
    def base_url(self) -> str:
        """The path below which the lab's pages are."""
        return base_url(self.lab)

    def channel(self) -> ssl.SSLSocket:
        """Connect as to its name, and check the certificate for it."""
        context = ssl.create_default_context(cafile=str(self.certificate))
        plain = socket.create_connection(("127.0.0.1", self.port), timeout=WAIT_SECONDS)
        return context.wrap_socket(plain, server_hostname=NAME)

    @contextmanager
    def answer(
        self, path: str, method: str = "GET", body: str | None = None, host: str = "", **headers: str
    ) -> Iterator[http.client.HTTPResponse]:
        """Make one request; redirections are not followed."""
        connection = http.client.HTTPConnection(NAME, self.port, timeout=WAIT_SECONDS)
        connection.sock = self.channel()
        try:
            connection.request(
                method, self.base_url.rstrip("/") + path, body, {"Host": host or f"{NAME}:{self.port}", **headers}
            )
            yield connection.getresponse()
        finally:
            connection.close()

    def websocket(self, path: str, origin: str = "", **headers: str) -> websocket.WebSocket:
        """Open a WebSocket as a page of this origin does, by default of the lab itself."""
        return websocket.create_connection(
            f"wss://{NAME}:{self.port}{self.base_url.rstrip('/')}{path}",
            socket=self.channel(),
            origin=origin or f"https://{NAME}:{self.port}",
            header=headers,
            timeout=WAIT_SECONDS,
        )


def example(file: str, changes: dict[str, str]) -> str:
    """Return an example with what differs in a test; each must be in it."""
    text = (REPOSITORY / "docs/proxy" / file).read_text()
    for before, after in changes.items():
        assert before in text
        text = text.replace(before, after)
    return text


def base_url(lab: Clone) -> str:
    """Return the path below which the lab's pages are."""
    return lab.settings.get("LAB_BASE_URL", "/")


@contextmanager
def nginx(folder: Path, lab: Clone) -> Iterator[Proxy]:
    """Run nginx with its example and a certificate of its own."""
    binary, port = program("nginx"), free_port()
    key, certificate = folder / "lab.key", folder / "lab.pem"
    words = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2"]
    words += ["-subj", f"/CN={NAME}", "-addext", f"subjectAltName=DNS:{NAME}", "-keyout", str(key)]
    subprocess.run([*words, "-out", str(certificate)], check=True, capture_output=True, timeout=60)
    changes = {
        "listen 443 ssl;": f"listen 127.0.0.1:{port} ssl;",
        "/etc/ssl/lab.example.org.pem": str(certificate),
        "/etc/ssl/lab.example.org.key": str(key),
        "127.0.0.1:8888": f"127.0.0.1:{lab.port}",
        "location / {": f"location {base_url(lab)} {{",
    }
    (folder / "rocmlab.conf").write_text(example("nginx.conf", changes))
    (folder / "nginx.conf").write_text(NGINX.format(folder=folder, user="user root;" if os.geteuid() == 0 else ""))
    command = [binary, "-e", f"{folder}/early.log", "-p", str(folder), "-c", str(folder / "nginx.conf")]
    with running(command, port, folder / "output.log"):
        yield Proxy(port, certificate, folder, lab)


@contextmanager
def caddy(folder: Path, lab: Clone) -> Iterator[Proxy]:
    """Run Caddy with its example; its own authority takes the place of a public one."""
    binary, port = program("caddy"), free_port()
    changes = {f"{NAME} {{": f"{NAME}:{port} {{", "127.0.0.1:8888": f"127.0.0.1:{lab.port}"}
    changes |= {"reverse_proxy ": f"reverse_proxy {base_url(lab)}* "} if base_url(lab) != "/" else {}
    text = example("Caddyfile", changes)
    (folder / "Caddyfile").write_text(CADDY + text)
    homes = {"HOME": str(folder), "XDG_DATA_HOME": str(folder), "XDG_CONFIG_HOME": str(folder)}
    command = [binary, "run", "--adapter", "caddyfile", "--config", str(folder / "Caddyfile")]
    root = folder / "caddy/pki/authorities/local/root.crt"
    with running(command, port, folder / "output.log", **homes):
        deadline = time.monotonic() + WAIT_SECONDS
        while not list(folder.glob(f"caddy/certificates/local/{NAME}/*.crt")):
            assert time.monotonic() < deadline, (folder / "output.log").read_text()
            time.sleep(0.05)
        yield Proxy(port, root, folder, lab)


# Each lab and each proxy is a fixture of its own: tests run in any order, and one with parameters would start again for
# each other parameter.


def started(path: str) -> Any:
    """Return a fixture: a native lab that knows the proxy's name and serves TLS itself too; nothing is installed."""

    @pytest.fixture(scope="module")
    def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Clone]:
        below = {"LAB_BASE_URL": path} if path else {}
        bound = {"BIND": "127.0.0.2", "TLS_PORT": str(free_port())}
        found = clone(tmp_path_factory.mktemp("lab") / "rocmlab", ALLOWED_HOSTS=NAME, **bound, **below)
        found.environment["PATH"] = without_docker(found.environment["PATH"])
        furnish(found)
        found.make("up")
        yield found
        found.make("down", "FORCE=1", succeeds=False)

    return lab


def proxied(lab: str, run: Callable[[Path, Clone], AbstractContextManager[Proxy]]) -> Any:
    """Return a fixture: one of the proxies, in front of that lab."""

    @pytest.fixture(scope="module")
    def proxy(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Proxy]:
        with run(tmp_path_factory.mktemp("proxy"), request.getfixturevalue(lab)) as found:
            yield found

    return proxy


at_the_root = started("")
below_a_path = started("/gpu1/lab/")
nginx_at_the_root, caddy_at_the_root = proxied("at_the_root", nginx), proxied("at_the_root", caddy)
nginx_below_a_path, caddy_below_a_path = proxied("below_a_path", nginx), proxied("below_a_path", caddy)


@pytest.fixture(params=["at_the_root", "below_a_path"])
def lab(request: pytest.FixtureRequest) -> Clone:
    """Each lab."""
    found: Clone = request.getfixturevalue(request.param)
    return found


@pytest.fixture(
    params=[
        "nginx_at_the_root",
        "caddy_below_a_path",
        pytest.param("caddy_at_the_root", marks=pytest.mark.long),
        pytest.param("nginx_below_a_path", marks=pytest.mark.long),
    ]
)
def proxy(request: pytest.FixtureRequest) -> Proxy:
    """Each proxy."""
    found: Proxy = request.getfixturevalue(request.param)
    return found


def token(lab: Clone) -> dict[str, str]:
    """Return the header with the lab's token."""
    return {"Authorization": f"token {lab.env['JUPYTER_TOKEN']}"}


@pytest.mark.long
def test_the_printed_link_logs_in_with_a_cookie_for_tls_alone(proxy: Proxy) -> None:
    """Then the cookie is enough; the proxy has written the token nowhere, and without both there is nothing."""
    with proxy.answer(f"/lab?token={proxy.lab.env['JUPYTER_TOKEN']}") as page:
        cookies = page.headers.get_all("Set-Cookie") or []
        assert page.status == 200
        assert b"JupyterLab" in page.read()
    assert [each for each in cookies if each.startswith("username-")]
    assert all(re.search(r"; *secure", each, re.IGNORECASE) for each in cookies), cookies
    assert all("samesite=lax" in each.lower() for each in cookies), cookies
    kept = "; ".join(each.partition(";")[0] for each in cookies)

    with proxy.answer("/api/status", Cookie=kept) as answer:
        assert answer.status == 200
    xsrf = next(each for each in kept.split("; ") if each.startswith("_xsrf=")).partition("=")[2]
    body = json.dumps({"type": "directory"})
    with proxy.answer("/api/contents/work", "POST", body, Cookie=kept) as answer:
        assert answer.status == 403, "another site's page could do that"
    with proxy.answer("/api/contents/work", "POST", body, **{"Cookie": kept, "X-XSRFToken": xsrf}) as answer:
        assert answer.status == 201, answer.read()
        made = json.loads(answer.read())["path"]
    with proxy.answer(f"/api/contents/{quote(made)}", "DELETE", **token(proxy.lab)) as answer:
        assert answer.status == 204
    with proxy.answer("/api/status") as answer:
        assert answer.status == 403
    logged = [path for path in proxy.folder.rglob("*") if path.is_file() and path.suffix == ".log"]
    assert logged
    assert not [path for path in logged if proxy.lab.env["JUPYTER_TOKEN"] in path.read_text()]


def test_a_kernel_computes_over_a_websocket(proxy: Proxy) -> None:
    """As a page of the lab's own does; a page of another site is refused, although it knew the token."""
    with proxy.answer("/api/kernels", "POST", json.dumps({"name": "torch"}), **token(proxy.lab)) as answer:
        kernel = json.loads(answer.read())["id"]
    path = f"/api/kernels/{kernel}/channels?session_id={uuid.uuid4().hex}"
    try:
        channel = proxy.websocket(path, **token(proxy.lab))
        try:
            assert clients.execute_on(channel, "s", "print(6 * 7)") == "42\n"
        finally:
            channel.close()
        with pytest.raises(websocket.WebSocketBadStatusException, match="403"):
            proxy.websocket(path, origin="https://evil.example")
    finally:
        with proxy.answer(f"/api/kernels/{kernel}", "DELETE", **token(proxy.lab)) as answer:
            assert answer.status == 204


def test_the_event_stream_is_not_kept_back(proxy: Proxy) -> None:
    """Samples come one by one, each soon after it was taken."""
    with proxy.answer("/rocmlab/api/stream", **token(proxy.lab)) as answer:
        assert answer.status == 200
        events = Events(answer)
        ages = []
        for name, data in events:
            if name == "snapshot":
                ages.append(time.time() - data["time_seconds"])
            if len(ages) == 3:
                break

    assert max(ages[1:]) < 5


def test_a_file_larger_than_the_proxys_default_can_be_saved(proxy: Proxy) -> None:
    """A notebook with its outputs is one request of many megabytes."""
    text = "x" * 5_000_000
    body = json.dumps({"type": "file", "format": "text", "content": text})

    with proxy.answer("/api/contents/work/large.txt", "PUT", body, **token(proxy.lab)) as answer:
        assert answer.status == 201, answer.read()

    assert (proxy.lab.folder / "notebooks/large.txt").read_text() == text
    with proxy.answer("/api/contents/work/large.txt", "DELETE", **token(proxy.lab)) as answer:
        assert answer.status == 204


@pytest.mark.long
def test_the_labs_own_commands_find_it(lab: Clone) -> None:
    """Also below a path, which is in the address that is printed; nothing of the lab is at the root then."""
    printed = f"http://127.0.0.1:{lab.port}{base_url(lab)}lab?token={lab.env['JUPYTER_TOKEN']}"

    assert lab.make("url").stdout.splitlines()[0] == printed
    assert printed in lab.make("status").stdout
    program_text = "from rocmlab.cli import smi_lab; print(smi_lab.kernels())"  # None: no lab answered
    environment = {**lab.environment, "PYTHONPATH": "src"}
    command = ["python3", "-c", program_text]
    assert subprocess.check_output(command, cwd=lab.folder, env=environment, text=True, timeout=60).strip() == "[]"
    before = (lab.folder / ".rocmlab/jupyter.json").read_text()
    lab.make("up")
    assert (lab.folder / ".rocmlab/jupyter.json").read_text() == before
    with server.OPENER.open(printed, timeout=20) as page:
        assert page.status == 200
    is_root = base_url(lab) == "/"
    assert clients.ask(lab.port, lab.env["JUPYTER_TOKEN"], "/api/status")[0] == (200 if is_root else 404)


@pytest.mark.long
def test_the_labs_own_tls_is_printed_and_renewed_while_it_runs(lab: Clone) -> None:
    """With the fingerprint of what is served; another certificate, as after a renewal, needs no restart."""
    port = int(lab.settings["TLS_PORT"])
    link = f"https://127.0.0.2:{port}{base_url(lab)}lab?token={lab.env['JUPYTER_TOKEN']}"
    before = (lab.folder / ".rocmlab/jupyter.json").read_text()
    made = next((lab.folder / ".rocmlab").glob("certificate-*.pem"))
    first = tls.fingerprint(made.read_text())
    printed = lab.make("url").stdout
    status = lab.make("status").stdout

    made.unlink()
    again = lab.make("up").stdout

    second = tls.fingerprint(next((lab.folder / ".rocmlab").glob("certificate-*.pem")).read_text())
    assert second != first
    for text, proof in ((printed, first), (status, first), (again, second)):
        assert link in text
        assert f"certificate SHA-256 {proof}\n" in text
    assert tls.fingerprint(ssl.get_server_certificate(("127.0.0.2", port))) == second
    assert (lab.folder / ".rocmlab/jupyter.json").read_text() == before
    assert lab.env["JUPYTER_TOKEN"] not in (lab.folder / ".rocmlab/jupyter.log").read_text()


@pytest.mark.parametrize("host", ["evil.example", "127.0.0.1.evil.example", "lab.example.org.evil.example"])
def test_another_name_gets_nothing_through_the_proxy(proxy: Proxy, host: str) -> None:
    """Either the proxy knows no such site, or the lab rejects the name that was passed on."""
    with proxy.answer("/api/status", host=host, **token(proxy.lab)) as answer:
        text = answer.read()

    assert answer.status == 403 or text == b""
    assert b"started" not in text
