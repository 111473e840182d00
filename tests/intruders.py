"""Another user of this host, under a real second user id: it takes a port and keeps all that is sent to it."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from second_user import UID

PROGRAM = """
import os, socket, sys, threading
address, port, uid, path = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
kept = open(path, "ab", buffering=0)
os.setgroups([]); os.setresgid(uid, uid, uid); os.setresuid(uid, uid, uid)
listening = socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET)
listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
if "reuse" in sys.argv: listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
listening.bind((address, port)); listening.listen(16)
print("listening", flush=True)
def serve(connection):
    with connection:
        connection.settimeout(2)
        text = b""
        try:
            while b"\\r\\n\\r\\n" not in text:
                part = connection.recv(65536)
                if not part: break
                text += part
                kept.write(part)
            body = b'{"version": "2.17.0"}'
            connection.sendall(b"HTTP/1.1 200 OK\\r\\nContent-Type: application/json\\r\\nConnection: close\\r\\n"
                b"Content-Length: %d\\r\\n\\r\\n" % len(body) + body)
        except OSError: pass
while True:
    threading.Thread(target=serve, args=(listening.accept()[0],), daemon=True).start()
"""


@dataclass(frozen=True)
class Intruder:
    """One such listener."""

    pid: int
    path: Path

    @property
    def received(self) -> str:
        """All that it was sent, by anybody."""
        return self.path.read_text(errors="replace")


@contextmanager
def intruder(port: int, folder: Path, address: str = "127.0.0.1", *flags: str, uid: int = UID) -> Iterator[Intruder]:
    """Listen on a port as another user, answering every request as a Jupyter server that is content with it."""
    if os.getuid() != 0:
        pytest.skip("a second user id needs root: run .ci/run")
    folder.mkdir(exist_ok=True)
    path = folder / f"received-{time.monotonic_ns()}"
    command = [sys.executable, "-I", "-c", PROGRAM, address, str(port), str(uid), str(path), *flags]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "listening\n"
            yield Intruder(process.pid, path)
        finally:
            process.kill()
