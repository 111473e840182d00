"""Who gets into the server and who does not, and which secrets processes inside it are given."""

from __future__ import annotations

import http.client
import json
import re
import socket
import ssl
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlencode

import clients
import pytest
import websocket
from clones import free_port
from kernel_hosts import WAIT_SECONDS, Host, simulated_host
from panel_servers import METRICS_TOKEN, TOKEN, Server, wait
from test_hosts import NOT_OURS

from rocmlab.base import confidential
from rocmlab.cli import password
from rocmlab.lab.server.tls import MAX_OF_ADDRESS
from rocmlab.stack import settings as configuration
from rocmlab.stack import tls

BASE = "/x/y/"
ALLOWED = "lab.example.org,192.168.1.20"
SECRETS = {
    "JUPYTER_TOKEN": TOKEN,
    "METRICS_TOKEN": METRICS_TOKEN,
    "CLUSTER_TOKEN": "c" * 32,
    "RAY_AUTH_TOKEN": "r" * 32,
    "GRAFANA_PASSWORD": "g" * 32,
}
ROUTES = (  # of Jupyter and ours, with the methods of each that do something
    ("GET", "api/status"),
    ("GET", "api/contents"),
    ("PUT", "api/contents/new.txt"),
    ("DELETE", "api/contents/kept.txt"),
    ("GET", "api/kernels"),
    ("POST", "api/kernels"),
    ("GET", "api/sessions"),
    ("POST", "api/sessions"),
    ("GET", "api/kernelspecs"),
    ("GET", "api/terminals"),
    ("POST", "api/terminals"),
    ("GET", "api/config/notebook"),
    ("GET", "api/me"),
    ("GET", "api/spec.yaml"),
    ("POST", "api/shutdown"),
    ("GET", "metrics"),
    ("GET", "files/kept.txt"),
    ("GET", "view/kept.txt"),
    ("GET", "nbconvert/html/kept.txt"),
    ("GET", "rocmlab/"),
    ("GET", "rocmlab/index.js"),
    ("GET", "rocmlab/api/devices"),
    ("GET", "rocmlab/api/history"),
    ("GET", "rocmlab/api/stream"),
    ("GET", "rocmlab/api/kernels"),
    ("GET", "rocmlab/api/cluster"),
    ("POST", "rocmlab/api/kernels/0/interrupt"),
    ("POST", "rocmlab/api/kernels/0/shutdown"),
    ("POST", "rocmlab/metrics"),
    ("HEAD", "rocmlab/metrics"),
    ("PUT", "rocmlab/metrics"),
)
CHANNELS = ("api/kernels/{kernel}/channels", "terminals/websocket/1", "api/events/subscribe")


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Host]:
    """A simulated host whose kernels are this interpreter."""
    folder = tmp_path_factory.mktemp("security")
    with pytest.MonkeyPatch.context() as patch, simulated_host(folder, patch) as found:
        found.offer()
        yield found


@pytest.fixture(scope="module")
def bound(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """What `make up BIND=127.0.0.2` gives the server, its certificate included."""
    chosen = {"BIND": "127.0.0.2", "TLS_PORT": str(free_port())}
    settings = configuration.load(tmp_path_factory.mktemp("tls"), chosen)
    derived = tls.values(settings, "gpu1")
    tls.prepare(settings, derived)
    return {**chosen, **derived, "ROCMLAB_TLS": str(tls.path_of(settings).parent)}


def over_tls(bound: dict[str, str], path: str, token: str | None = TOKEN, host: str = "") -> tuple[int, list[str], str]:
    """Make a request as another machine does, and return status, cookies and text."""
    context = ssl.create_default_context(cafile=f"{bound['ROCMLAB_TLS']}/server.pem")
    port = int(bound["TLS_PORT"])
    connection = http.client.HTTPSConnection(bound["BIND"], port, timeout=WAIT_SECONDS, context=context)
    headers = {"Host": f"{host or bound['BIND']}:{port}", **({"Authorization": f"token {token}"} if token else {})}
    try:
        connection.request("GET", BASE + path, headers=headers)
        answer = connection.getresponse()
        return answer.status, answer.headers.get_all("Set-Cookie") or [], answer.read().decode()
    finally:
        connection.close()


@pytest.fixture(scope="module")
def server(host: Host, bound: dict[str, str]) -> Iterator[Server]:
    """A server below a base URL, with all secrets in its environment, a proxy's names allowed, and TLS."""
    variables = {**bound, **SECRETS, "HF_TOKEN": "hf-of-the-user", "ALLOWED_HOSTS": ALLOWED}
    found = Server(host, base_url=BASE, has_jupyterlab=True, **variables)
    (found.folder / "kept.txt").write_text("kept")
    try:
        yield found.up()
    finally:
        found.stop()


def early(server: Server, *headers: str) -> bytes:
    """Return what a large request is answered before its body is sent, nothing where the server waits for that."""
    with socket.create_connection(("127.0.0.1", server.port), timeout=1) as channel:
        lines = [f"PUT {server.base_url}api/contents/big.ipynb HTTP/1.1", f"Host: 127.0.0.1:{server.port}", *headers]
        channel.sendall("\r\n".join([*lines, "", ""]).encode())
        try:
            return channel.recv(4096)
        except TimeoutError:
            return b""


def raw(server: Server, *headers: str, path: str = "api/status", version: str = "1.1") -> int:
    """Send a request line and these headers as they are, and return the status."""
    with socket.create_connection(("127.0.0.1", server.port), timeout=WAIT_SECONDS) as channel:
        lines = [f"GET {server.base_url}{path} HTTP/{version}", *headers, "Connection: close", "", ""]
        channel.sendall("\r\n".join(lines).encode())
        with channel.makefile("rb") as answer:
            line = answer.readline().split()
    return int(line[1])


def login(server: Server) -> tuple[str, str]:
    """Log in by the printed link, and return the cookies' header and the XSRF token."""
    _, headers, _ = server.request(f"rocmlab/?token={TOKEN}", token=None)
    cookies = re.findall(r"((?:username-[\w-]+|_xsrf)=(?:\"[^\"]*\"|[^;]*))", headers["set-cookie"])
    xsrf = next(cookie.partition("=")[2] for cookie in cookies if cookie.startswith("_xsrf"))
    return "; ".join(cookies), xsrf


def test_other_machines_reach_the_lab_over_tls(server: Server, bound: dict[str, str]) -> None:
    """With the token, under the address or the host's name; the cookies are for TLS alone."""
    status, cookies, _ = over_tls(bound, f"rocmlab/?token={TOKEN}", token=None)

    assert status == 200
    assert {each.partition("-")[0].partition("=")[0] for each in cookies} == {"username", "_xsrf"}
    assert all("; secure" in each.lower() for each in cookies), cookies
    assert over_tls(bound, "api/status", host="gpu1")[0] == 200
    assert over_tls(bound, "api/status", token=None)[0] == 403
    assert over_tls(bound, "api/status", host="evil.example")[0] == 403
    assert "secure" not in server.request(f"rocmlab/?token={TOKEN}", token=None)[1]["set-cookie"].lower()
    assert TOKEN not in server.log


@pytest.mark.slow
def test_a_password_logs_in_by_jupyters_page(
    server: Server, bound: dict[str, str], host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is set while the server runs; guessing ends after five attempts, and the token is never locked out."""
    monkeypatch.setenv("JUPYTER_CONFIG_DIR", str(host.prefix / "etc/jupyter"))
    monkeypatch.setenv("ROCMLAB_RUNTIME", "native")
    before = server.log.count("the password was set")
    password.main("password", [], lambda _: "correct horse battery")
    wait(lambda: server.log.count("the password was set") > before)

    def post(typed: str) -> int:
        _, headers, _ = server.request("login", token=None)
        xsrf = re.findall("_xsrf=([^;]*)", headers["set-cookie"])[0]
        connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=WAIT_SECONDS)
        given = {"Cookie": f"_xsrf={xsrf}", "Content-Type": "application/x-www-form-urlencoded"}
        connection.request("POST", f"{BASE}login", urlencode({"password": typed, "_xsrf": xsrf}), given)
        try:
            return connection.getresponse().status
        finally:
            connection.close()

    try:
        assert post("correct horse battery") == 302
        assert [post(f"guess-{number}") for number in range(6)] == [401] * 5 + [429]
        assert post("correct horse battery") == 429
        assert post(TOKEN) == 302
        assert server.request("api/status")[0] == 200
    finally:
        before = server.log.count("the password was removed")
        password.main("password", ["--remove"])
        wait(lambda: server.log.count("the password was removed") > before)
    assert "guess-" not in server.log
    assert "correct horse" not in server.log


def test_a_kernels_websocket_is_open_to_its_own_pages_over_tls(server: Server, bound: dict[str, str]) -> None:
    """And closed to those of other sites, and of the same address without TLS's port."""
    channel = f"wss://{bound['BIND']}:{bound['TLS_PORT']}{BASE}api/events/subscribe"
    options = {"ca_certs": f"{bound['ROCMLAB_TLS']}/server.pem"}
    cookies = over_tls(bound, f"rocmlab/?token={TOKEN}", token=None)[1]
    header = {"Cookie": "; ".join(each.partition(";")[0] for each in cookies)}

    def connect(origin: str) -> None:
        websocket.create_connection(channel, WAIT_SECONDS, sslopt=options, origin=origin, header=header).close()

    connect(f"https://{bound['BIND']}:{bound['TLS_PORT']}")
    for origin in ("https://evil.example", f"http://{bound['BIND']}:{server.port}"):
        with pytest.raises(websocket.WebSocketBadStatusException, match="403"):
            connect(origin)


def test_strangers_hold_no_connections_that_a_user_needs(server: Server, bound: dict[str, str]) -> None:
    """Not with requests that never end either: a user's connections stay, and another one is answered."""
    context = ssl.create_default_context(cafile=f"{bound['ROCMLAB_TLS']}/server.pem")
    where = (bound["BIND"], int(bound["TLS_PORT"]))
    channel = f"wss://{where[0]}:{where[1]}{BASE}api/events/subscribe?token={TOKEN}"
    user = websocket.create_connection(channel, WAIT_SECONDS, sslopt={"ca_certs": f"{bound['ROCMLAB_TLS']}/server.pem"})
    request = f"GET {BASE}login HTTP/1.1\r\nHost: {where[0]}\r\n\r\n".encode()
    strangers: list[ssl.SSLSocket] = []
    try:
        for _ in range(MAX_OF_ADDRESS + 8):
            plain = socket.create_connection(where, timeout=WAIT_SECONDS)
            strangers.append(context.wrap_socket(plain, server_hostname=where[0]))
            strangers[-1].sendall(request)
            assert strangers[-1].recv(12) == b"HTTP/1.1 200"
        status = over_tls(bound, "api/status")[0]
        user.ping()
        pong = user.recv_data(control_frame=True)[0]
        strangers[0].settimeout(WAIT_SECONDS)
        while strangers[0].recv(65536):
            pass  # the rest of its answer, and then the end
    finally:
        user.close()
        for each in strangers:
            each.close()

    assert (status, pong) == (200, websocket.ABNF.OPCODE_PONG)


@pytest.mark.slow
@pytest.mark.parametrize("size", ["Content-Length: 100000000", "Transfer-Encoding: chunked"])
def test_a_large_request_is_kept_for_who_is_logged_in_alone(server: Server, size: str) -> None:
    """Others get the answer before they have sent it, whatever they claim: the server would keep it in its memory."""
    cookies, xsrf = login(server)

    forged = cookies.replace("|", "|0", 1)
    for claim in ("Accept: */*", "Authorization: token wrong", "Cookie: a=b", f"Cookie: {forged}"):
        assert early(server, size, claim).startswith(b"HTTP/1.1 403 "), claim
    for proof in ((f"Authorization: token {TOKEN}",), (f"Cookie: {cookies}", f"X-XSRFToken: {xsrf}")):
        assert early(server, size, *proof) == b"", proof


@pytest.mark.parametrize("header", [header for header in NOT_OURS if header.strip()])
def test_another_name_is_rejected_even_with_the_token(server: Server, header: str) -> None:
    """A page whose name was pointed to 127.0.0.1 gets nothing, whatever it knows."""
    token = f"Authorization: token {TOKEN}"

    assert raw(server, f"Host: {header}", token) in (400, 403)
    assert raw(server, f"Host: {header}", path="login") in (400, 403)
    assert raw(server, f"Host: {header}", path="static/favicons/favicon.ico") in (400, 403)


@pytest.mark.parametrize("headers", [(), ("Host:",), ("Host: ",), ("Host: localhost", "Host: evil.example")])
@pytest.mark.parametrize("version", ["1.0", "1.1"])
def test_a_request_without_one_name_is_rejected(server: Server, headers: tuple[str, ...], version: str) -> None:
    """None, an empty one, and two of them."""
    assert raw(server, *headers, f"Authorization: token {TOKEN}", version=version) in (400, 403)


@pytest.mark.parametrize(
    "header", ["localhost", "127.0.0.1:8888", "[::1]:8888", "lab.example.org", "LAB.example.org:443", "192.168.1.20"]
)
def test_the_loopback_and_allowed_names_are_answered(server: Server, header: str) -> None:
    """An address of a proxy too, which Jupyter's own check does not know."""
    assert raw(server, f"Host: {header}", f"Authorization: token {TOKEN}") == 200
    assert raw(server, f"Host: {header}", f"Authorization: token {TOKEN}", path="rocmlab/api/devices") == 200
    assert raw(server, f"Host: {header}") == 403


@pytest.mark.slow
def test_the_compose_network_s_name_opens_nothing_on_this_server(server: Server) -> None:
    """`lab` is a name of the container alone, and there of one route."""
    assert raw(server, "Host: lab:8888", f"Authorization: Bearer {METRICS_TOKEN}", path="rocmlab/metrics") == 403


def test_prometheus_reads_the_metrics_with_its_token(server: Server) -> None:
    """In the header alone, and without a cookie that would be worth more."""
    status, headers, text = server.request("rocmlab/metrics", token=None, Authorization=f"Bearer {METRICS_TOKEN}")

    assert status == 200
    assert "rocmlab_gpu_busy_ratio" in text
    assert "set-cookie" not in headers
    assert "access-control-allow-origin" not in headers
    assert server.request(f"rocmlab/metrics?token={METRICS_TOKEN}", token=None)[0] == 403
    for wrong in (METRICS_TOKEN[:-1], METRICS_TOKEN + "m", "", "x" * 32, "ü" * 32):
        assert raw(server, "Host: localhost", f"Authorization: Bearer {wrong}", path="rocmlab/metrics") == 403
    assert raw(server, "Host: localhost", f"Authorization: Basic {METRICS_TOKEN}", path="rocmlab/metrics") == 403


@pytest.mark.slow
@pytest.mark.parametrize(("method", "path"), ROUTES)
def test_the_token_of_metrics_opens_nothing_else(server: Server, method: str, path: str) -> None:
    """Neither in the header nor in the address."""
    for found in (
        server.request(path, method, token=METRICS_TOKEN),
        server.request(f"{path}?token={METRICS_TOKEN}", method, token=None),
    ):
        if found[0] == 302:  # a page sends a browser to the login
            assert found[1]["location"].startswith(f"{BASE}login?")
        else:
            assert found[0] in (401, 403, 405), found
    assert (server.folder / "kept.txt").read_text() == "kept"
    assert not (server.folder / "new.txt").exists()


def channel(server: Server, path: str, **options: object) -> int:
    """Try to open a WebSocket and return the status: 101 where it opens."""
    url = f"ws://127.0.0.1:{server.port}{server.base_url}{path}"
    try:
        websocket.create_connection(url, timeout=WAIT_SECONDS, **options).close()
    except websocket.WebSocketBadStatusException as err:
        return err.status_code
    return 101


@pytest.mark.slow
def test_channels_open_for_this_site_and_its_user_alone(server: Server) -> None:
    """Kernels, terminals and events: not with the token of metrics, not for another site, not under another name."""
    kernel = server.json("api/kernels", "POST", {"name": "torch-cpu"}, status=201)["id"]
    terminal = server.json("api/terminals", "POST")["name"]
    cookie, _ = login(server)
    own = f"http://127.0.0.1:{server.port}"
    try:
        for path in (each.format(kernel=kernel).replace("/1", f"/{terminal}") for each in CHANNELS):
            assert channel(server, path, cookie=cookie, origin=own) == 101
            assert channel(server, path, suppress_origin=True) == 403
            assert channel(server, f"{path}?token={METRICS_TOKEN}", suppress_origin=True) == 403
            assert channel(server, path, header=[f"Authorization: token {METRICS_TOKEN}"], suppress_origin=True) == 403
            for origin in ("http://evil.example", "http://127.0.0.1:1", "null", f"{own}.evil.example"):
                assert channel(server, path, cookie=cookie, origin=origin) in (403, 404)
            assert channel(server, path, cookie=cookie, host="evil.example", origin="http://evil.example") == 403
            assert channel(server, f"{path}?token={TOKEN}", host="evil.example", suppress_origin=True) == 403
    finally:
        server.json(f"api/kernels/{kernel}", "DELETE", status=204)
        server.json(f"api/terminals/{terminal}", "DELETE", status=204)


def test_another_site_cannot_use_the_login(server: Server) -> None:
    """Its pages' requests carry no cookie, cannot read answers, and change nothing with a cookie alone."""
    cookie, xsrf = login(server)
    own = f"http://127.0.0.1:{server.port}"
    evil = "http://evil.example"

    for path in ("rocmlab/api/devices", "rocmlab/api/stream", "rocmlab/metrics", "api/contents"):
        status, headers, _ = server.request(path, token=None, Cookie=cookie, Origin=evil)
        assert status in (403, 404)
        assert "access-control-allow-origin" not in headers
    path = "rocmlab/api/kernels/00000000-0000-0000-0000-000000000000/shutdown"
    assert server.request(path, "POST", token=None, Cookie=cookie)[0] == 403
    assert server.request(path, "POST", token=None, Cookie=cookie, X_XSRFToken=xsrf, Origin=evil)[0] == 404
    answer = server.request(path, "POST", token=None, Cookie=cookie, X_XSRFToken=xsrf, Origin=own)
    assert answer[0] == 404
    assert "kernel" in json.loads(answer[2])["what"]  # it was requested, and is not there


def test_cookies_stay_on_this_site(server: Server) -> None:
    """Neither is sent with another site's requests, and the login is out of reach of scripts."""
    _, headers, _ = server.request(f"rocmlab/?token={TOKEN}", token=None)
    cookies = re.split(r"; (?=username-|_xsrf=)", headers["set-cookie"])

    names = {cookie.partition("=")[0].partition("-")[0]: cookie.lower() for cookie in cookies}
    assert set(names) == {"username", "_xsrf"}
    for text in names.values():
        assert "samesite=lax" in text
        assert f"path={BASE}" in text
    assert "httponly" in names["username"]
    assert "frame-ancestors 'self'" in headers["content-security-policy"]
    assert headers["referrer-policy"] == "same-origin"
    assert headers["x-content-type-options"] == "nosniff"


@pytest.mark.slow
def test_a_kernel_is_given_no_secret(server: Server) -> None:
    """A notebook that prints its environment, or has a shell print it, writes no token into a file; HF_TOKEN stays."""
    client = clients.Server(f"127.0.0.1:{server.port}{BASE.rstrip('/')}", TOKEN)
    code = "import os, subprocess; print(dict(os.environ)); print(subprocess.check_output('env', text=True))"

    printed = client.execute("torch-cpu", code)

    assert "hf-of-the-user" in printed
    assert not [name for name in confidential.NAMES if name in printed]
    assert not [name for name, value in SECRETS.items() if value in printed]


@pytest.mark.slow
def test_a_terminal_is_given_no_secret(server: Server) -> None:
    """Nor is anything else that the server starts."""
    name = server.json("api/terminals", "POST")["name"]
    url = f"ws://127.0.0.1:{server.port}{BASE}terminals/websocket/{name}?token={TOKEN}"
    terminal = websocket.create_connection(url, timeout=WAIT_SECONDS)
    printed = ""
    try:
        terminal.send(json.dumps(["stdin", "env; echo en''d\r"]))
        while "\nend" not in printed:
            kind, *rest = json.loads(terminal.recv())
            printed += rest[0] if kind == "stdout" else ""
    finally:
        terminal.close()
        server.json(f"api/terminals/{name}", "DELETE", status=204)

    assert "hf-of-the-user" in printed
    assert not [name for name in confidential.NAMES if f"{name}=" in printed]
    assert not [name for name, value in SECRETS.items() if value in printed]


def test_the_log_shows_no_secret(server: Server) -> None:
    """Whatever was requested so far, with the token in the address too, and from another site."""
    channel(server, f"rocmlab/api/stream?token={TOKEN}", host="evil.example", suppress_origin=True)
    server.request(f"api/status?token={TOKEN}", token=None)
    server.request(f"rocmlab/metrics?token={METRICS_TOKEN}", token=None)
    server.request(f"api/kernels/none?a=b&token={TOKEN}", token=None)

    assert "evil.example" in server.log
    assert not [line for line in server.log.splitlines() if any(value in line for value in SECRETS.values())]


@pytest.mark.slow
def test_tokens_come_from_files(host: Host) -> None:
    """As both runtimes give them: the environment of the server never holds one."""
    for name, value in (("jupyter-token", "j" * 40), ("metrics-token", "p" * 40 + "\n")):
        (host.share.parent / name).write_text(value)
    files = {f"{name.upper()}_TOKEN_FILE": str(host.share.parent / f"{name}-token") for name in ("jupyter", "metrics")}
    folder = f"--ServerApp.root_dir={host.share.parent}"
    server = Server(host, folder, JUPYTER_TOKEN="", ROCMLAB_RUNTIME="docker", CLUSTER_NETWORK="host", PORT="0", **files)
    try:
        wait(lambda: server.request("api/status", token="j" * 40)[0] == 200, 0.1)

        assert server.request("api/status", token=TOKEN)[0] == 403
        assert server.request("rocmlab/metrics", token="p" * 40)[0] == 200
        assert raw(server, "Host: lab:8888", f"Authorization: Bearer {'p' * 40}", path="rocmlab/metrics") == 200
        assert raw(server, "Host: lab:8888", f"Authorization: Bearer {'p' * 40}", path="rocmlab/api/devices") == 403
        assert raw(server, "Host: lab:8888", f"Authorization: token {'j' * 40}") == 403
        assert "j" * 40 not in Path(f"/proc/{server.process.pid}/environ").read_text()
    finally:
        server.stop()


@pytest.mark.long
@pytest.mark.slow
def test_behind_jupyterhub_names_are_the_hub_s(host: Host) -> None:
    """Its proxy passes on the name in the browser's address, to a server that listens on all addresses."""
    server = Server(host, "--ServerApp.allow_remote_access=True", JUPYTERHUB_SERVICE_PREFIX="/user/a/").up()
    try:
        assert raw(server, "Host: hub.example.org", f"Authorization: token {TOKEN}") == 200
    finally:
        server.stop()
