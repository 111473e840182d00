"""What jupyter-server-proxy reaches in a lab: this user's own applications, for the lab's own pages."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from clones import free_port
from kernel_hosts import Host, simulated_host
from panel_servers import Server, wait
from tornado.httputil import HTTPHeaders, HTTPServerRequest, RequestStartLine

from rocmlab.lab import extras
from rocmlab.lab.server import extra_routes, proxied

BASE = "/x/y/"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server with jupyter-server-proxy, as EXTRAS=proxy and tensorboard have it."""
    folder = tmp_path_factory.mktemp("proxied")
    with pytest.MonkeyPatch.context() as patch, simulated_host(folder, patch) as host:
        host.offer()
        found = Server(host, base_url=BASE, has_jupyterlab=True, LAB_BASE_URL=BASE, ROCMLAB_EXTRAS="proxy,tensorboard")
        try:
            yield found.up()
        finally:
            found.stop()


@pytest.fixture(scope="module")
def application(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    """The port of a web application of this user, which has one page."""
    folder, port = tmp_path_factory.mktemp("application"), free_port()
    (folder / "page.html").write_text("my page")
    command = [sys.executable, "-m", "http.server", str(port), "--bind", "127.0.0.1", "--directory", str(folder)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        wait(lambda: _answers(port))
        yield port
    finally:
        process.terminate()
        process.wait()


def _answers(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


@pytest.mark.slow
def test_an_application_of_the_user_is_reached_behind_the_token(server: Server, application: int) -> None:
    """By its port or the loopback's names; no other site may frame it, and no one without the token sees it."""
    for place in (f"proxy/{application}", f"proxy/127.0.0.1:{application}", f"proxy/localhost:{application}"):
        status, headers, text = server.request(f"{place}/page.html")
        assert (status, text) == (200, "my page"), place
        assert "frame-ancestors 'self'" in headers["content-security-policy"]
        assert server.request(f"{place}/page.html", token=None)[0] in (302, 403), place


def test_no_other_machine_is_reached(server: Server, application: int) -> None:
    """Nor this one by a name that only leads here, nor by what is no port."""
    for place in (
        "evil.example:80",
        "192.0.2.1:80",
        "0.0.0.0:80",
        f"[::1]:{application}",
        f"lab:{application}",
        "x",
        "",
    ):
        assert server.request(f"proxy/{place}/page.html")[0] == 403, place
        assert server.request(f"proxy/absolute/{place}/page.html")[0] == 403, place


@pytest.mark.slow
def test_who_is_not_logged_in_does_not_learn_what_listens(server: Server, application: int) -> None:
    """An open port and a closed one get the same answer; and a number that is no port is no error."""
    own = f"http://127.0.0.1:{server.port}"
    channel = {"Upgrade": "websocket", "Connection": "Upgrade", "Sec-WebSocket-Version": "13"}

    def seen(port: int, method: str, headers: dict[str, str]) -> tuple[int, str, str]:
        status, found, text = server.request(f"proxy/{port}/x", method, token=None, **headers)
        return status, found.get("location", "").replace(str(port), "PORT"), text.replace(str(port), "PORT")

    closed = free_port()
    for method, headers in (
        ("GET", {}),
        ("HEAD", {}),
        ("POST", {"Origin": own}),
        ("GET", {**channel, "Sec-WebSocket-Key": "dGhlIHNhbXBsZSBub25jZQ=="}),
    ):
        assert seen(application, method, headers) == seen(closed, method, headers), (method, headers)
        assert seen(closed, method, headers)[0] in (302, 403)
    assert server.request("proxy/70000/")[0] == 403


def test_the_path_is_found_as_the_servers_routes_find_it() -> None:
    """There LAB_BASE_URL is a regular expression, in which a dot is any character."""
    line = RequestStartLine("GET", "/gpuX1/proxy/192.0.2.1:80/", "HTTP/1.1")
    request = HTTPServerRequest(start_line=line, headers=HTTPHeaders({"Host": "localhost"}))

    assert proxied.refusal(request, "/gpu.1/", ("proxy",))


def test_another_site_s_page_cannot_use_it(server: Server, application: int) -> None:
    """The proxy checks no XSRF token, so the origin decides, with the login as well as without."""
    own = f"http://127.0.0.1:{server.port}"

    for name in (f"proxy/{application}/page.html", "tensorboard/"):
        for origin in ("http://evil.example", "http://127.0.0.1:1", "null"):
            assert server.request(name, "POST", {}, Origin=origin)[0] == 403, (name, origin)
    assert server.request(f"proxy/{application}/page.html", Origin=own)[0] == 200


def test_what_a_page_of_another_port_embeds_is_not_answered(server: Server, application: int) -> None:
    """Its image or script would be fetched with the login; a link to an application is one that its user follows."""
    link = {"Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "document"}
    names = (f"proxy/{application}/page.html", "server-proxy/servers-info", "git/work/stash", "lsp/status")

    for site in ("cross-site", "same-site"):
        for name in names:
            assert server.request(name, Sec_Fetch_Site=site, Sec_Fetch_Mode="no-cors")[0] == 403, (name, site)
            framed = server.request(name, Sec_Fetch_Site=site, Sec_Fetch_Mode="navigate", Sec_Fetch_Dest="iframe")
            assert framed[0] == 403, (name, site)
        assert server.request(names[0], Sec_Fetch_Site=site, **link)[0] == 200
        assert server.request(names[2], Sec_Fetch_Site=site, **link)[0] == 403
    for name in names[:2]:
        assert server.request(name, Sec_Fetch_Site="same-origin", Sec_Fetch_Mode="cors")[0] == 200, name


@pytest.mark.slow
@pytest.mark.parametrize("up", ["..", "%2e%2e", ".%2E", "%252e%252e", "..%2f..", "x%2f..%252f..", "%25252e."])
def test_git_has_no_address_above_the_labs_folder(up: str) -> None:
    """A link would have git run in any folder of the host; however often it is encoded. Two dots in a name are none."""

    def refused(path: str) -> str | None:
        line, headers = RequestStartLine("POST", path, "HTTP/1.1"), HTTPHeaders({"Host": "localhost"})
        return extra_routes.refusal(HTTPServerRequest(start_line=line, headers=headers), BASE)

    assert refused(f"{BASE}git/work/{up}/status")
    assert refused(f"{BASE}git/{up}/tmp/init")
    assert refused(f"{BASE}lsp/ws/{up}/x")
    assert refused(f"{BASE}nbdime/difftool?base=http://evil.example/x.ipynb")
    assert not refused(f"{BASE}nbdime/api/diff")
    assert not refused(f"{BASE}git/work/a..b/..c/status")
    assert not refused(f"{BASE}api/contents/git/{up}")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be another user, too")
def test_an_application_of_another_user_is_not_reached(server: Server) -> None:
    """Its pages would be of the lab's origin, and act with the login of who follows a link to them."""
    os.seteuid(65534)
    try:
        listener = socket.create_server(("127.0.0.1", 0))
    finally:
        os.seteuid(0)
    with listener:
        port = listener.getsockname()[1]
        status, _, text = server.request(f"proxy/{port}/")

    assert status == 403
    assert "another user listens" in text
    assert "no one listens" in server.request(f"proxy/{port}/")[2]


def test_the_launcher_has_tensorboard_with_an_icon(server: Server) -> None:
    """Only for who knows the token."""
    (entry,) = server.json("server-proxy/servers-info")["server_processes"]

    assert entry["launcher_entry"]["title"] == "TensorBoard"
    assert server.request("server-proxy/icon/tensorboard")[1]["content-type"] == "image/svg+xml"
    assert server.request("server-proxy/servers-info", token=None)[0] in (302, 403)


def test_tensorboard_reads_the_notebooks_on_a_socket_and_no_gpu(host: Host) -> None:
    """By the interpreter of the kernels; its port would be open for every user of the host."""
    host.offer()
    environment = {"ROCMLAB_NOTEBOOKS": "/n", "JUPYTER_RUNTIME_DIR": "/run/lab"}

    found = extras.tensorboard(environment, host.prefix)

    assert found["command"][0] == sys.executable
    assert found["command"][-1] == "/n"
    assert found["unix_socket"] == "/run/lab/tensorboard.sock"
    assert Path(found["launcher_entry"]["icon_path"]).is_file()
    assert found["environment"]["HIP_VISIBLE_DEVICES"] == "-1"


@pytest.mark.long
def test_what_is_usual_in_a_notebook_is_no_warning(host: Host, tmp_path: Path) -> None:
    """The language server has a notebook's code as one Python file, for which ruff's rules are other ones."""
    host.offer()
    found = extras.language_server({"ROCMLAB_SHARE": str(tmp_path)}, host.prefix)
    ignored = found["workspace_configuration"]["pylsp"]["plugins"]["ruff"]["extendIgnore"]
    code = "values = [3]\n\nimport asyncio\n\nawait asyncio.sleep(1)\nvalues\n"

    command = [sys.executable, "-m", "ruff", "check", "--isolated", "--extend-ignore", ",".join(ignored), "-"]
    done = subprocess.run(command, input=code, capture_output=True, text=True, check=False)

    assert done.returncode == 0, done.stdout
