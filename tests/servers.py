"""Programs that other machines would run around a lab, on the loopback: sshd and reverse proxies, each ended by id."""

from __future__ import annotations

import os
import pwd
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest
from clones import free_port

PACKAGES = {"sshd": "openssh-server", "ssh": "openssh-client", "nginx": "nginx-light", "caddy": "caddy"}
START_SECONDS = 30.0
# sshd of root separates privileges with a user that its package makes; here it is in a passwd of these processes alone.
AS_ROOT = """
set -e
mount -t tmpfs -o mode=755 none /run
mkdir -m 755 /run/sshd
mount --bind "$1" /etc
shift
exec "$@"
"""


def program(name: str) -> str:
    """Return the path of a program, from the variable of its name (SSHD) or the PATH; skip where it is missing."""
    found = os.environ.get(name.upper()) or shutil.which(name, path=os.environ.get("PATH", "") + ":/usr/sbin:/sbin")
    if not found:
        pytest.skip(f"no {name}: sudo apt install {PACKAGES[name]}, or set {name.upper()} to its path, as .ci/run does")
    return found


def copy_of_etc(folder: Path) -> Path:
    """Return a copy of /etc below a folder, to be mounted in its place where processes have accounts of their own.

    A file mounted on /etc/passwd alone is gone for them as soon as `useradd` replaces the real one.
    """
    subprocess.run(["cp", "-a", "/etc", str(folder)], capture_output=True, check=False)  # a file may go away meanwhile
    return folder / "etc"


@contextmanager
def running(command: Sequence[str], port: int, log: Path, **environment: str) -> Iterator[None]:
    """Run a server until the end of a test, from when it listens on its port of the loopback."""
    with log.open("w") as output:
        process = subprocess.Popen(
            command, stdout=output, stderr=output, stdin=subprocess.DEVNULL, env={**os.environ, **environment}
        )
    try:
        deadline = time.monotonic() + START_SECONDS
        while not _listens(port):
            assert process.poll() is None, log.read_text()
            assert time.monotonic() < deadline, log.read_text()
            time.sleep(0.05)
        yield
    finally:
        process.terminate()
        process.wait(START_SECONDS)


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


class Sshd:
    """An ssh server of this user, for this user alone, with keys of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.port = free_port()
        self.user = pwd.getpwuid(os.geteuid()).pw_name
        self.program = program("sshd")
        self.client = program("ssh")
        for name in ("host", "user"):
            subprocess.run(
                ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(folder / name)], check=True, timeout=30
            )
        lines = [
            f"Port {self.port}",
            "ListenAddress 127.0.0.1",
            f"HostKey {folder}/host",
            f"AuthorizedKeysFile {folder}/user.pub",
            f"PidFile {folder}/sshd.pid",
            "StrictModes no",  # the folder of tests is below /tmp
            "UsePAM no",
            "PermitRootLogin prohibit-password",
            "PasswordAuthentication no",
            "KbdInteractiveAuthentication no",
        ]
        (folder / "sshd_config").write_text("\n".join(lines) + "\n")
        key = (folder / "host.pub").read_text()
        (folder / "known_hosts").write_text(f"[127.0.0.1]:{self.port} {key}")

    @contextmanager
    def running(self) -> Iterator[Sshd]:
        """Run it until the end of a test."""
        command = [self.program, "-D", "-e", "-f", str(self.folder / "sshd_config")]
        if os.geteuid() == 0:
            passwd = Path("/etc/passwd").read_text()
            users = "" if "\nsshd:" in passwd else "sshd:x:65533:65534::/run/sshd:/usr/sbin/nologin\n"
            etc = copy_of_etc(self.folder)
            (etc / "passwd").write_text(passwd + users)
            inside = ["sh", "-c", AS_ROOT, "sh", str(etc)]
            command = ["unshare", "--mount", "--propagation", "private", *inside, *command]
        with running(command, self.port, self.folder / "sshd.log"):
            yield self

    def options(self) -> list[str]:
        """Return what makes the client use this key, know this server, and read no configuration of the user's."""
        identity = ["-F", "none", "-i", str(self.folder / "user"), "-o", "IdentitiesOnly=yes", "-o", "BatchMode=yes"]
        return [*identity, "-o", f"UserKnownHostsFile={self.folder}/known_hosts", "-o", "ExitOnForwardFailure=yes"]

    def run(self, command: str) -> subprocess.CompletedProcess[str]:
        """Log in and run a command line."""
        words = [self.client, *self.options(), "-p", str(self.port), f"{self.user}@127.0.0.1", command]
        return subprocess.run(words, capture_output=True, text=True, timeout=120, check=False)
