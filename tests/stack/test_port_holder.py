"""Who gets the token: our own server, and nobody else who listens on the lab's port. With a real second user."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from clones import free_port
from intruders import UID, intruder
from test_native import make_lab

from rocmlab import identity
from rocmlab.stack import server, sockets
from rocmlab.stack.native import NativeLab

SERVER = """
import http.server, sys
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200 if self.headers["Authorization"] == "token " + sys.argv[2] else 403)
        self.end_headers()
        self.wfile.write(b'{"started": true}')
    do_POST = do_GET
    def log_message(self, *_): pass
listening = http.server.ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Handler)
print("listening", flush=True)
listening.serve_forever()
"""


@contextmanager
def running(lab: NativeLab) -> Iterator[subprocess.Popen[str]]:
    """Run a small server where JupyterLab would be, as `start` would have: with the mark, and recorded."""
    environment = {**os.environ, identity.SERVER: lab.mark}
    command = [sys.executable, "-c", SERVER, str(lab.port), lab.token]
    lab.settings.state.mkdir(exist_ok=True)
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "listening\n"
        lab.jupyter.remember(process.pid, {})
        try:
            yield process
        finally:
            process.kill()


@pytest.fixture
def lab(tmp_path: Path) -> NativeLab:
    """A native lab with a token, which does not run."""
    (tmp_path / ".env").write_text(f"JUPYTER_TOKEN={'a' * 64}\n")
    (tmp_path / ".rocmlab").mkdir()
    return make_lab(tmp_path)


class TestNative:
    """The lab without a container."""

    def test_our_own_server_is_asked_with_the_token(self, lab: NativeLab) -> None:
        """By its number, start time, mark and socket."""
        with running(lab):
            assert lab.holder().kind == server.OURS
            assert lab.ask("/api/status") == (200, {"started": True})
            assert lab.is_running()

    @pytest.mark.parametrize("address", ["127.0.0.1", "0.0.0.0", "::"])
    def test_another_users_listener_gets_no_request(self, lab: NativeLab, tmp_path: Path, address: str) -> None:
        """Neither on the very address nor on all of them; and it is remembered."""
        with intruder(lab.port, tmp_path, address) as other:
            assert lab.holder().kind == server.OTHER
            assert lab.ask("/api/status") == (0, None)
            assert not lab.is_running()
            lab.stop(lambda _: None)

            assert other.received == ""
        assert f"uid {UID}" in (lab.settings.state / "exposed.json").read_text()

    def test_a_record_that_names_another_process_opens_nothing(self, lab: NativeLab, tmp_path: Path) -> None:
        """The other user's process has the recorded number, as after a restart of the machine."""
        with intruder(lab.port, tmp_path) as other:
            lab.jupyter.remember(other.pid, {})

            assert lab.ask("/api/status") == (0, None)
            assert other.received == ""

    def test_our_server_on_another_port_does_not_vouch_for_this_one(self, lab: NativeLab, tmp_path: Path) -> None:
        """It lives, and somebody else listens."""
        with running(lab):
            moved = make_lab(tmp_path, PORT=str(free_port()))

            with intruder(moved.port, tmp_path) as other:
                assert moved.ask("/api/status") == (0, None)
                assert other.received == ""

    def test_a_second_socket_on_the_same_address_is_a_reason_to_refuse(self, lab: NativeLab) -> None:
        """With SO_REUSEPORT the kernel would choose who gets the token."""
        with socket.socket() as first, socket.socket() as second:
            for each in (first, second):
                each.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
                each.bind(("127.0.0.1", lab.port))
                each.listen()
            lab.jupyter.remember(os.getpid(), {})

            assert len(sockets.listeners(lab.port) or ()) == 2
            assert lab.holder().kind == server.OTHER

    def test_a_server_that_changes_between_the_look_and_the_connection_gets_nothing(
        self, lab: NativeLab, tmp_path: Path
    ) -> None:
        """The look before the connection and the one after it must find the same socket."""
        looks = iter([server.Holder(server.OURS, (sockets.Listener(0, 1),))])
        with intruder(lab.port, tmp_path) as other:
            answer = server.ask(lab.port, lab.token, "/api/status", lambda: next(looks, lab.holder()))

            assert answer == (0, None)
            assert lab.token not in other.received

    def test_the_connection_must_be_accepted_by_a_user_who_listens(self, lab: NativeLab, tmp_path: Path) -> None:
        """Even where both looks were deceived: the accepting socket's owner is looked at as well."""
        ours = server.Holder(server.OURS, (sockets.Listener(0, 1),))
        with intruder(lab.port, tmp_path) as other:
            for _ in range(20):
                with socket.create_connection(("127.0.0.1", lab.port)) as client:
                    if sockets.accepted_by(lab.port, client.getsockname()[1]) == UID:
                        break
            else:
                pytest.fail("the owner of an accepted connection is not seen")
            assert ours.kind == server.OURS
            assert other.received == ""

    def test_no_redirection_is_followed_with_the_token(self, lab: NativeLab) -> None:
        """A server that sends the client elsewhere would send the token along."""
        asked: list[str] = []

        class Redirecting(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                asked.append(self.path)
                self.send_response(302)
                self.send_header("Location", "/elsewhere")
                self.end_headers()

            def log_message(self, *_: object) -> None:
                """Say nothing."""

        listening = ThreadingHTTPServer(("127.0.0.1", lab.port), Redirecting)
        thread = threading.Thread(target=listening.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        ours = server.Holder(server.OURS)
        try:
            assert server.ask(lab.port, lab.token, "/api/status", lambda: ours) == (302, None)
        finally:
            listening.shutdown()
            thread.join()
            listening.server_close()
        assert asked == ["/api/status"]


def test_exact_addresses_come_before_wildcards() -> None:
    """The kernel gives a connection to the most specific listener; IPv6's own wildcard does not count beside ours."""
    with socket.socket() as exact, socket.socket(socket.AF_INET6) as wild:
        exact.bind(("127.0.0.1", 0))
        exact.listen()
        port = exact.getsockname()[1]
        wild.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        wild.bind(("::", port))
        wild.listen()

        found = sockets.listeners(port)

        assert found is not None
        assert [sockets.is_held_by(each, os.getpid()) for each in found] == [True]
        assert found[0].inode == os.fstat(exact.fileno()).st_ino
        assert sockets.holder(found[0]) == os.getpid()


def test_the_record_of_a_server_holds_no_token(lab: NativeLab) -> None:
    """Only its number, start time and mark, for its owner alone."""
    with running(lab) as process:
        found = json.loads(lab.jupyter.record.read_text())

        assert found["pid"] == process.pid
        assert lab.jupyter.record.stat().st_mode & 0o077 == 0
