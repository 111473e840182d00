"""Who gets the token: our own server, and no one else who listens on the lab's port. With a real second user."""

from __future__ import annotations

import json
import os
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from clones import free_port
from intruders import intruder
from second_user import UID
from test_native import make_lab

from rocmlab.base import identity
from rocmlab.stack import project as projects
from rocmlab.stack import server, settings, sockets, tokens
from rocmlab.stack.native import NativeLab

pytestmark = pytest.mark.slow

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
    environment = {**os.environ, identity.SERVER: lab.jupyter.token}
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
    found = make_lab(tmp_path)
    with (tmp_path / ".env").open("a") as file:
        file.write(f"PORT={found.port}\n")
    return found


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
        """It lives, and someone else listens."""
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


class TestCommands:
    """Every command that looks for the lab, while another user listens on its port."""

    @pytest.fixture
    def folder(self, tmp_path: Path) -> Path:
        """A project folder as `make up` leaves it, with a lab that is down."""
        found = tmp_path / "project"
        for name in ("compose.yaml", "docker/Dockerfile", "notebooks/a.ipynb"):
            (found / name).parent.mkdir(parents=True, exist_ok=True)
            (found / name).touch()
        return found

    def describe(self, folder: Path, chosen: str = "", **more: str) -> int:
        """Write `.env` and the memory of it; return the port."""
        if chosen:
            (folder / ".env").write_text(f"JUPYTER_TOKEN={chosen}\n")
        port = free_port()
        values = {"PORT": str(port), "SHARE": "./share", "ROCMLAB_BACKEND": "cpu", "ROCMLAB_RUNTIME": "native"}
        tokens = {"METRICS_TOKEN": "m" * 64, **({} if chosen else {"JUPYTER_TOKEN": "a" * 64})}
        settings.save(settings.load(folder, {}), {**values, **tokens, **more})
        return port

    def run(self, folder: Path, *words: str, **variables: str) -> subprocess.CompletedProcess[str]:
        """Run one command there, as a user does."""
        source = str(Path(server.__file__).parents[2])
        environment = {**os.environ, "PYTHONPATH": source, "RUNTIME": "native", **variables}
        command = [sys.executable, "-m", "rocmlab", *words]
        return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=120)

    def test_no_command_sends_it_anything_secret(self, folder: Path, tmp_path: Path) -> None:
        """No header, no query: at most a request without either."""
        port = self.describe(folder)
        with intruder(port, tmp_path) as other:
            status = self.run(folder, "status")
            for words in (["url"], ["doctor", "--quick"], ["smi"], ["smi", "--json"], ["up"], ["clean", "--help"]):
                self.run(folder, *words)
            down = self.run(folder, "down")

            for secret in ("a" * 64, "m" * 64, "Authorization", "token", "Cookie"):
                assert secret not in other.received
        assert f"port {port} is held by a process of uid {UID}" in status.stdout
        assert "the lab was not running" in down.stdout

    def test_a_new_token_is_made_after_another_process_held_the_port(self, folder: Path, tmp_path: Path) -> None:
        """Even if it was a look alone that saw it, and the process has gone since; the next `up` makes and says it."""
        port = self.describe(folder)
        with intruder(port, tmp_path):
            self.run(folder, "status")

        project, lines = projects.plan_again(folder)

        assert project.values["JUPYTER_TOKEN"] not in ("", "a" * 64)
        assert len(lines) == 2
        assert f"another process held the lab's port and may know the old one (port {port}" in lines[0]
        assert "a" * 64 not in (folder / ".rocmlab/exposed.json").read_text()
        projects.write(project)
        tokens.forget(project.settings, project.values)
        assert projects.plan_again(folder)[1] == []
        assert not (folder / ".rocmlab/exposed.json").exists()

    def test_logins_by_a_cookie_end_with_the_token(self, folder: Path) -> None:
        """The browser has sent both; a server that crashed leaves the key of its cookies, and the next one reads it."""
        given, key = settings.load(folder, {}), folder / "jupyter_cookie_secret"
        for token, is_kept in (("a" * 64, False), ("a" * 64, True), ("b" * 64, False)):
            key.write_text("key")
            tokens.write(given, {"JUPYTER_TOKEN": token}, folder)
            assert key.exists() == is_kept

    def test_another_port_that_is_taken_is_no_reason(self, folder: Path, tmp_path: Path) -> None:
        """The lab was never there, so no browser has sent a token there."""
        self.describe(folder)
        taken = free_port()
        with intruder(taken, tmp_path):
            projects.plan(folder, settings.load(folder, {"PORT": str(taken), "RUNTIME": "native"})).lab.holder()

        assert projects.plan_again(folder)[1] == []

    def test_a_process_that_holds_the_port_now_is_seen_by_up_itself(
        self, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """`make up PORT=…` with another port looks at the old one."""
        port = self.describe(folder)
        monkeypatch.setenv("PORT", str(free_port()))
        with intruder(port, tmp_path):
            project, lines = projects.plan_again(folder)

        assert project.values["JUPYTER_TOKEN"] != "a" * 64
        assert "JUPYTER_TOKEN is new" in lines[0]

    def test_a_token_that_the_user_chose_is_reported_and_kept(self, folder: Path, tmp_path: Path) -> None:
        """It is theirs to change, and it is said until they do."""
        port = self.describe(folder, chosen="b" * 64)
        with intruder(port, tmp_path):
            project, lines = projects.plan_again(folder)
            projects.write(project)
            tokens.forget(project.settings, project.values)

        assert project.values["JUPYTER_TOKEN"] == "b" * 64
        assert "change it" in lines[0]
        assert "change it" in projects.plan_again(folder)[1][0]
        (folder / ".env").write_text((folder / ".env").read_text().replace("b" * 64, "c" * 64))
        assert projects.plan_again(folder)[1] == []

    def test_the_file_for_a_prometheus_follows(self, folder: Path, tmp_path: Path) -> None:
        """A Prometheus of the user's reads the new token."""
        port = self.describe(folder)
        (folder / ".rocmlab/metrics-token").write_text("m" * 64)
        with intruder(port, tmp_path):
            project, _ = projects.plan_again(folder)

        tokens.forget(project.settings, project.values)

        assert (folder / ".rocmlab/metrics-token").read_text().strip() != "m" * 64


def test_exact_addresses_come_before_wildcards() -> None:
    """The kernel gives a connection to the most specific listener; IPv6's own wildcard does not count next to ours."""
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


@pytest.mark.parametrize("address", ["127.0.0.1", "0.0.0.0", "::", "::ffff:127.0.0.1"])
def test_the_kernel_says_by_netlink_what_proc_says(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The quick way and the one of a kernel without inet_diag find the same sockets."""
    with socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET) as listening:
        listening.bind((address, 0))
        listening.listen()
        port = listening.getsockname()[1]
        quick = sockets.listeners(port)

        def refused(port: int) -> None:
            raise OSError

        own = sockets.Listener(os.getuid(), os.fstat(listening.fileno()).st_ino)
        monkeypatch.setattr(sockets, "diagnosed", refused)
        assert quick == sockets.listeners(port) == (own,)


def test_the_record_of_a_server_holds_no_token(lab: NativeLab) -> None:
    """Only its number, start time and mark, for its owner alone."""
    with running(lab) as process:
        found = json.loads(lab.jupyter.record.read_text())

        assert found["pid"] == process.pid
        assert lab.jupyter.record.stat().st_mode & 0o077 == 0


class TestDiagnosis:
    """What the kernel answers, read as it means it."""

    def test_a_dump_that_fails_is_no_empty_list(self) -> None:
        """A kernel without tcp_diag ends a dump with DONE and an error number: /proc/net/tcp is read then."""
        ours, kernel = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
        with ours, kernel:
            kernel.send(sockets.HEADER.pack(20, sockets.DONE, 2, 0, 0) + struct.pack("=i", -2))
            with pytest.raises(OSError):  # noqa: PT011  it carries no text; the caller reads /proc/net/tcp
                sockets.messages(ours)
            kernel.send(sockets.HEADER.pack(20, sockets.DONE, 2, 0, 0) + struct.pack("=i", 0))

            assert sockets.messages(ours) == []

    def test_a_command_line_is_shown_as_plain_text(self) -> None:
        """Another user chooses it, and it may be printed on root's terminal."""
        program = (
            "import socket, time; listening = socket.create_server(('127.0.0.1', 0))\n"
            "print(listening.getsockname()[1], flush=True); time.sleep(60)"
        )
        command = [sys.executable, "-c", program, "\x1b]0;x\x07\n"]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as other:
            assert other.stdout is not None
            found = sockets.listeners(int(other.stdout.readline()))
            said = sockets.describe(found or ())
            other.kill()

        assert f"PID {other.pid}" in said
        assert said.isprintable()
