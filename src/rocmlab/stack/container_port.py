"""Whether the socket on PORT is that of our container: the engine reports what it publishes, the host who listens.

An engine's listener belongs to root (docker-proxy, Podman's conmon or rootlessport as root) or to this user (rootless);
another user can make neither. Which listener the engine has confirmed is kept in `.rocmlab/listener.json`, so that the
engine is asked once for each start of the container.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path

from rocmlab.stack import envfile, sockets
from rocmlab.stack.described import Described
from rocmlab.stack.process import EngineSilent
from rocmlab.stack.sockets import NOBODY, OTHER, OURS, UNKNOWN, Holder, Listener, trusted

FILE = "listener.json"
CLOSED, PUBLISHED, HOST = "closed", "published", "host"  # what a container has to do with the port
BOOT = Path("/proc/sys/kernel/random/boot_id")  # the id of this start of the host
HOLDS = 'ls -l /proc/[0-9]*/fd 2>/dev/null | grep -qF "socket:[$0]"'  # run inside, by the lab's own user
Engine = Callable[..., tuple[int, str]]


def find(container: Described | None, port: int) -> str:
    """Return whether a container publishes 127.0.0.1:port, or is in the host's network and listens there itself."""
    if container is None:
        return CLOSED
    if ("127.0.0.1", port) in container.published:
        return PUBLISHED
    # In the host's own network (a node of a cluster) nothing is published, and JupyterLab listens itself.
    return HOST if container.network == "host" and f"PORT={port}" in container.variables else CLOSED


def holder(
    engine: Engine,
    container: Callable[[], Described | None],
    port: int,
    state: Path,
    values: Mapping[str, str],
    inside: set[Listener],
) -> Holder:
    """Find who listens on the port: ours if the engine confirms it; `inside` collects sockets of the container."""
    found = sockets.listeners(port)
    if found is None:
        return Holder(UNKNOWN)
    if is_confirmed(state, port, found):
        return Holder(OURS, found)
    try:
        running = container()
    except EngineSilent:  # it may be its own listener
        return Holder(UNKNOWN, found)
    kind = find(running, port)
    if kind == PUBLISHED and all(trusted(each.uid) for each in found):
        is_ours = bool(found) or sockets.is_unused(
            port
        )  # no listener at all: the engine forwards the port without a process (userland-proxy: false)
    elif running and kind == HOST:
        user = f"{values['NB_UID']}:{values['NB_GID']}"
        command = ("exec", "--user", user, running.id, "sh", "-c", HOLDS)
        is_ours = bool(found) and all(each in inside or engine(*command, str(each.inode))[0] == 0 for each in found)
        inside |= set(found) if is_ours else set()
    else:
        is_ours = False
    if is_ours:
        confirm(state, port, found)
        return Holder(OURS, found)
    return Holder(OTHER, found) if found else Holder(NOBODY)


def is_confirmed(state: Path, port: int, found: tuple[Listener, ...]) -> bool:
    """Return whether the engine has already confirmed exactly this listening socket, since this host was started."""
    if len(found) != 1 or not found[0].inode or not trusted(found[0].uid):
        return False
    return envfile.read_json(state / FILE) == _facts(port, found[0])


def confirm(state: Path, port: int, found: tuple[Listener, ...]) -> None:
    """Remember that this listening socket is our container's."""
    if len(found) == 1 and found[0].inode and trusted(found[0].uid) and os.access(state, os.W_OK):
        envfile.write(state / FILE, json.dumps(_facts(port, found[0])) + "\n")


def _facts(port: int, listener: Listener) -> dict[str, object]:
    """Return what names a socket. The uid is part of it: another user could wait until an inode's number returns."""
    try:
        boot = BOOT.read_text(encoding="ascii").strip()
    except OSError:
        boot = ""
    return {"port": port, "inode": listener.inode, "uid": listener.uid, "boot": boot}
