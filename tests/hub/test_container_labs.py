"""What the hub requests of the engine for a lab in a container: DockerSpawner, and an engine that records."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from spawning import NAME, spawner, start
from tornado import web

from rocmlab.base.errors import RocmlabError
from rocmlab.hub.uids import Uids

ID = "0123456789ab" * 4
LAST_WORDS = b"error: /home/jovyan/work cannot be written\n"


@dataclass
class Engine:
    """What was requested of the engine, and whether its container runs."""

    created: list[dict[str, Any]] = field(default_factory=list)
    names: list[str] = field(default_factory=list)
    paths: list[str] = field(default_factory=list)
    is_failing: bool = False


class Handler(BaseHTTPRequestHandler):
    """The few answers of an engine that a start needs; one container, at the loopback."""

    engine: Engine

    def log_message(self, format: str, *arguments: object) -> None:
        """Print nothing."""

    def _answer(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def _json(self, status: int, body: object) -> None:
        self._answer(status, json.dumps(body).encode())

    def do_GET(self) -> None:
        """Say what there is."""
        self.engine.paths.append(self.path)
        if self.path.startswith("/version"):
            self._json(200, {"ApiVersion": "1.44"})
        elif "/images/" in self.path:
            self._json(200, {"Config": {"Cmd": ["start-notebook.sh"]}})
        elif "/logs" in self.path:
            self._answer(200, b"\x02\0\0\0" + len(LAST_WORDS).to_bytes(4, "big") + LAST_WORDS)
        elif self.engine.created:
            state = {"Running": not self.engine.is_failing, "ExitCode": 2, "Error": "", "FinishedAt": "now"}
            networks = {NAME: {"IPAddress": "127.0.0.1"}}
            body = {"Id": ID, "State": state, "Config": {"Tty": False}, "NetworkSettings": {"Networks": networks}}
            self._json(200, body)
        else:
            self._json(404, {"message": "no such container"})

    def do_POST(self) -> None:
        """Record what is requested."""
        self.engine.paths.append(self.path)
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        if "/containers/create" in self.path:
            self.engine.created.append(json.loads(body))
            self.engine.names.append(self.path.partition("name=")[2])
            self._json(201, {"Id": ID})
        else:
            self._answer(204, b"")


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> Iterator[Engine]:
    """An engine that records, where Docker's own clients look for one."""
    found = Engine()
    handler = type("Recording", (Handler,), {"engine": found})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    monkeypatch.setenv("DOCKER_HOST", f"tcp://127.0.0.1:{server.server_port}")
    monkeypatch.delenv("DOCKER_TLS_VERIFY", raising=False)
    try:
        yield found
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.fixture
def port() -> Iterator[int]:
    """A port of the loopback on which something listens, as a lab would."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield listener.getsockname()[1]


def test_a_start_requests_what_was_chosen_and_the_limits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, engine: Engine, port: int
) -> None:
    """The form's choice reaches the lab; memory without swap, CPUs and processes are limited; nothing is pulled."""
    lab = spawner(
        tmp_path, monkeypatch, "ada", HUB_MEMORY_LIMIT="2gb", HUB_CPU_LIMIT="1.5", HUB_PIDS_LIMIT="99", SHM_SIZE="1gb"
    )

    assert start(lab, port, {"gpus": ["cpu"]}) == ("127.0.0.1", port)

    (made,) = engine.created
    host, env = made["HostConfig"], dict(line.split("=", 1) for line in made["Env"])
    assert env["ROCMLAB_HUB_GPUS"] == "cpu"
    assert env["ROCMLAB_USER"] == "ada"
    assert (host["Memory"], host["MemorySwap"], host["PidsLimit"]) == (2 << 30, 2 << 30, 99)
    assert host["CpuQuota"] == 1.5 * host["CpuPeriod"]
    assert host["NetworkMode"] == NAME
    assert host["SecurityOpt"] == ["label=disable"]
    assert not host.get("Privileged")
    assert not host.get("PortBindings")
    assert made["Hostname"] == "lab-ada"
    assert engine.names == [f"{NAME}-ada"]
    assert f"{NAME}-ada-work:/home/jovyan/work:rw,nocopy" in host["Binds"]
    assert not any("docker.sock" in bind for bind in host["Binds"])
    assert not any("/images/create" in path for path in engine.paths)


def test_a_choice_that_is_not_possible_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, engine: Engine, port: int
) -> None:
    """It is an error of the form, and no container is made; an image cannot be chosen at all."""
    lab = spawner(tmp_path, monkeypatch, "ada")

    with pytest.raises(web.HTTPError, match="cannot be chosen"):
        start(lab, port, {"gpus": ["7"], "image": ["other:latest"]})
    assert not engine.created
    assert "image" not in lab.user_options


def test_the_last_lines_of_a_container_that_ends_are_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, engine: Engine, port: int
) -> None:
    """A lab that ends before it listens fails at once, with what it said; the engine does not remove it before."""
    engine.is_failing = True
    lab = spawner(tmp_path, monkeypatch, "ada")

    with socket.create_server(("127.0.0.1", 0)) as listener:
        closed = listener.getsockname()[1]
    with pytest.raises(web.HTTPError) as raised:
        start(lab, closed, {"gpus": ["cpu"]})
    assert LAST_WORDS.decode().strip() in str(raised.value)
    assert not engine.created[0]["HostConfig"].get("AutoRemove")


@pytest.mark.slow
@pytest.mark.parametrize(
    "user", ["a-b", "a.b", "äda", "a" * 200, "maximilian.mustermann-schmidt@informatik.example.org"]
)
def test_names_of_containers_and_volumes_are_valid_for_any_user(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, engine: Engine, port: int, user: str
) -> None:
    """Letters, digits and dashes; the host name is not longer than the kernel's limit."""
    lab = spawner(tmp_path, monkeypatch, user)

    start(lab, port, {})

    (made,) = engine.created
    assert len(made["Hostname"]) < 64
    for name in (made["Hostname"], engine.names[0]):
        assert set(name) <= set("abcdefghijklmnopqrstuvwxyz0123456789-")


def test_two_users_never_have_the_same_volume(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, engine: Engine) -> None:
    """Also where one's name looks like another's, escaped or with a volume's ending."""
    users = ("a", "a-work", "a-2dwork", "a-b", "a-2db", "ab", "a.b", "ä")
    found = [name for user in users for name in spawner(tmp_path, monkeypatch, user).volume_binds if "-hub-" in name]

    assert len({name for name in found if NAME in name}) == 2 * len(users)


def test_a_uid_is_one_that_no_account_of_the_host_can_become(tmp_path: Path) -> None:
    """Whoever is in /etc/subuid could else be a lab's user, read its token and change its leases."""
    ranges = tmp_path / "subuid"
    ranges.write_text("bob:70000:2\n# a comment\n\ncarol:70003:65536\n")
    uids = Uids(tmp_path / "uids.json", has_accounts=False, subordinate=ranges)

    assert uids.of("ada") == 70002
    assert uids.of("eve") == 70003 + 65536
    assert uids.of("ada") == 70002
    assert Uids(tmp_path / "other.json", has_accounts=False, subordinate=tmp_path / "none").of("ada") == 70000


def test_an_account_that_cannot_be_found_now_gets_no_other_uid(tmp_path: Path) -> None:
    """Its lab could not read the user's files; the directory may be down. What was given before is given again."""
    uids = Uids(tmp_path / "uids.json", has_accounts=True, subordinate=tmp_path / "none")

    with pytest.raises(RocmlabError, match="no account on this host now") as raised:
        uids.of("rocmlab-nemo")
    assert "getent passwd rocmlab-nemo" in raised.value.problem.fix
    assert not (tmp_path / "uids.json").exists()
    (tmp_path / "uids.json").write_text('{"rocmlab-nemo": 70007}')
    assert uids.of("rocmlab-nemo") == 70007


def test_a_link_starts_no_lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, engine: Engine) -> None:
    """Another site could else have a user hold every GPU."""
    lab = spawner(tmp_path, monkeypatch, "ada")

    with pytest.raises(web.HTTPError, match="a link does not start a lab"):
        lab.options_from_query({"gpus": ["1"]})
