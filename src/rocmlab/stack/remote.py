"""The ssh command that brings the lab's port to the user's own computer, and when it is worth printing."""

from __future__ import annotations

import os
import platform
import pwd
import re
import shlex
import socket
from collections.abc import Mapping
from dataclasses import dataclass

from rocmlab.base import addresses, hosts
from rocmlab.base.errors import RocmlabError

SSH_PORT = 22
DISPLAYS = ("DISPLAY", "WAYLAND_DISPLAY")
WSL = ("WSL_DISTRO_NAME", "WSL_INTEROP")  # a browser of Windows reaches the loopback
UNATTENDED = ("CI",)  # no one opens a URL there
USER = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.\\+@-]*\$?")  # those of a domain have a \ or a second @
DESTINATION = re.compile(r"(?:(?P<user>.*)@)?(?P<host>[^@]+)")


@dataclass(frozen=True)
class Destination:
    """Where ssh connects to."""

    host: str  # a name, an address, or an alias of the user's own ssh configuration
    user: str = ""  # empty: whoever ssh takes
    port: int = SSH_PORT

    def command(self, lab_port: int) -> str:
        """Return the command for the user's own computer; it ends with the shell that it opens."""
        words = ["ssh", "-L", f"{lab_port}:127.0.0.1:{lab_port}"]
        words += ["-p", str(self.port)] if self.port != SSH_PORT else []
        return shlex.join([*words, f"{self.user}@{self.host}" if self.user else self.host])


def of_this_host(environment: Mapping[str, str] = os.environ, system: str = "", name: str = "") -> Destination | None:
    """Return how this host is reached from the computer with the browser; None where that is this host itself.

    It is another one where the terminal came over ssh, which also shows address and port that were reached, or where
    Linux has no display. Source: `SSH_CONNECTION`, which sshd sets (client, its port, server, its port).
    """
    user = login_name(environment)
    parts = environment.get("SSH_CONNECTION", "").split()
    if len(parts) == 4 and addresses.is_address(parts[2]) and parts[3].isdecimal():
        is_scoped = "%" in parts[2]  # of one link, by the name that this host gives it
        return Destination((name or socket.gethostname()) if is_scoped else parts[2], user, int(parts[3]))
    has_browser = (system or platform.system()) != "Linux" or any(
        environment.get(each) for each in (*DISPLAYS, *WSL, *UNATTENDED)
    )
    return None if has_browser else Destination(name or socket.gethostname(), user)


def named(text: str, environment: Mapping[str, str] = os.environ) -> Destination:
    """Return the destination that a user has named: a host, or USER@HOST; the port is that of the ssh configuration.

    Raises:
        RocmlabError: it is neither; a name that begins with `-` would be an option of ssh.
    """
    match = DESTINATION.fullmatch(text)
    user = (match["user"] if match else None) or ""
    if match is None or text.startswith("@") or (user and not USER.fullmatch(user)) or not _is_host(match["host"]):
        raise RocmlabError(
            f"invalid HOST={text!r}",
            "it is the name or address of this machine as your computer knows it, or user@name; no port, no https://",
            "make url HOST=gpu1.example.org",
        )
    return Destination(match["host"], user or login_name(environment))


def login_name(environment: Mapping[str, str] = os.environ, uid: int | None = None) -> str:
    """Return the name of the user who logs in here, under sudo of the one who called it; empty if it is unknown."""
    uid = os.geteuid() if uid is None else uid
    if uid == 0 and (caller := environment.get("SUDO_USER", "")):
        return caller
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return ""


def _is_host(text: str) -> bool:
    return addresses.is_address(text) or (len(text) <= 253 and hosts.NAME.fullmatch(text) is not None)
