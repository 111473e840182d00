"""Another user takes the lab's port while the lab is down, and collects what commands send there."""

from __future__ import annotations

import contextlib
import json
import subprocess
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import strangers
from attempts import Attempt, Group
from targets import Target

COMMANDS = (
    "status",
    "url",
    "doctor",
    "leases",
    "smi",
    "kernels",
    "logs",
    "devices",
    "up",
    "monitoring",
    "down",
    "clean",
)
NOT_TRIED = ("clean",)  # it would remove what the other tests use
RECORDER = r"""
import json, socket, sys
server = socket.socket()
server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
server.bind(("127.0.0.1", int(sys.argv[1])))
server.listen(64)
print("listening", flush=True)
while True:
    client, _ = server.accept()
    client.settimeout(2)
    got = b""
    try:
        while b"\r\n\r\n" not in got and (part := client.recv(65536)):
            got += part
    except OSError:
        pass
    print(json.dumps(got.decode("latin-1")), flush=True)
    body = b'{"version": "2", "kernels": 0, "connections": 0, "started": "2026-01-01T00:00:00Z"}'
    try:
        head = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
        client.sendall(head % len(body) + body)
    except OSError:
        pass
    client.close()
"""


class Recorder:
    """A server of the second user, which answers everything and keeps what it was sent."""

    def __init__(self, port: int, log: Path) -> None:
        self.log = log
        number = strangers.uid()
        with log.open("w") as file:
            self.process = subprocess.Popen(
                [str(strangers.interpreter()), "-I", "-c", RECORDER, str(port)],
                stdout=file,
                stderr=file,
                user=number,
                group=number,
                extra_groups=[],
                cwd="/",
            )
        deadline = time.monotonic() + 60
        while "listening" not in log.read_text(encoding="utf-8"):
            assert time.monotonic() < deadline, log.read_text(encoding="utf-8")
            assert self.process.poll() is None, log.read_text(encoding="utf-8")
            time.sleep(0.05)

    def heard(self) -> str:
        """Return all that was sent to it."""
        time.sleep(0.1)
        return self.log.read_text(encoding="utf-8")

    def close(self) -> None:
        """End it."""
        self.process.kill()
        self.process.wait()


@contextlib.contextmanager
def recording(target: Target) -> Iterator[Recorder]:
    """Take the port of a lab that is down."""
    log = target.lab.folder.parent / "attack-recorder.log"
    found = Recorder(target.lab.port, log)
    try:
        yield found
    finally:
        found.close()
        log.unlink()


def _control(target: Target) -> str | None:
    target.finish()
    target.lab.make("down")
    with recording(target) as recorder:
        target.as_user("/api/status")
        return None if target.token in recorder.heard() else "the recorder does not hear what is sent"


def _attempts(target: Target) -> Iterator[Attempt]:
    before = target.lab.env
    with recording(target) as recorder:
        for command in COMMANDS:
            if command not in NOT_TRIED:
                yield Attempt(f"make {command} with the port taken", partial(_sent, target, recorder, command, before))
    target.lab.make("up")
    yield Attempt("the lab takes a token that was sent", partial(_opened, target, before["JUPYTER_TOKEN"], recorder))
    target.lab.make("down")


def _sent(target: Target, recorder: Recorder, command: str, before: dict[str, str]) -> str | None:
    """Run a command; a failure is fine, a secret in what it sends is not."""
    settings = dict(target.lab.settings)
    port = before["PORT"]
    environment = target.lab.environment
    subprocess.run(
        ["make", command, *(f"{name}={value}" for name, value in settings.items()), f"PORT={port}"],
        cwd=target.lab.folder,
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=180,
        check=False,
    )
    heard = recorder.heard()
    return next((f"it sent {name}" for name, value in _secrets(before).items() if value in heard), None)


def _secrets(env: dict[str, str]) -> dict[str, str]:
    names = ("JUPYTER_TOKEN", "METRICS_TOKEN", "CLUSTER_TOKEN", "GRAFANA_PASSWORD")
    return {name: env[name] for name in names if env.get(name)}


def _opened(target: Target, token: str, recorder: Recorder) -> str | None:
    was_sent = json.dumps(token)[1:-1] in recorder.log.read_text(encoding="utf-8") if recorder.log.exists() else False
    answer = target.site.send("/api/status", {"Authorization": f"token {token}"})
    return str(answer) if was_sent and answer.is_granted else None


GROUPS = (Group("the lab's port taken by another user", "a secret is sent there", _control, _attempts),)
