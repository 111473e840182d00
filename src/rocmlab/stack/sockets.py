"""Who listens on a port of the loopback: what is looked at before a secret is sent there.

Source: the kernel's socket monitoring (sock_diag(7)), which lists listeners in 0.1 ms, else `/proc/net/tcp` and `tcp6`
(proc_net(5)), which take 10 ms or more: local address, state, uid and inode of sockets; the descriptors in
`/proc/<pid>/fd` name the inode. On macOS `lsof`.
"""

from __future__ import annotations

import os
import socket
import struct
import sys
from dataclasses import dataclass

from rocmlab.base import identity

LISTEN = b"0A"
HAS_PROC = sys.platform == "linux"
SOCK_DIAG, DIAG_BY_FAMILY, TCP_LISTEN = 4, 20, 10  # of linux/netlink.h, linux/sock_diag.h and net/tcp_states.h
REQUEST_DUMP, INTERRUPTED, ERROR, DONE = 0x301, 0x10, 2, 3
NO_COOKIE = b"\xff" * 8
HEADER = struct.Struct("=IHHII")  # struct nlmsghdr
DIAG_REQUEST = struct.Struct("=BBBBIHH32sI8s")  # struct inet_diag_req_v2; ports are in the network's byte order
DIAG_MESSAGE = struct.Struct("=BBBBHH16s16sI8sIIIII")  # struct inet_diag_msg
ROOT = 0
NOBODY, OURS, OTHER, UNKNOWN = "nobody", "ours", "other", "unknown"


@dataclass(frozen=True)
class Listener:
    """One socket that a connection to 127.0.0.1 may reach."""

    uid: int
    inode: int = 0  # on Linux
    pid: int = 0  # on macOS


@dataclass(frozen=True)
class Holder:
    """Who listens on the lab's port: no one, our own server, another process, or it is unknown."""

    kind: str
    listeners: tuple[Listener, ...] = ()

    def __str__(self) -> str:
        if self.kind == UNKNOWN:
            return "the listening process is unknown: the engine does not answer, or the processes are not visible here"
        return describe(self.listeners)


def _hexadecimal(address: str) -> bytes:
    """Return an address as `/proc/net/tcp*` prints it: groups of 32 bits in the machine's own byte order."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    return _words(socket.inet_pton(family, address))


def _words(packed: bytes) -> bytes:
    return b"".join(b"%08X" % word for word in struct.unpack(f"={len(packed) // 4}I", packed))


EXACT = frozenset(map(_hexadecimal, ("127.0.0.1", "::ffff:127.0.0.1")))
WILDCARDS = frozenset(map(_hexadecimal, ("0.0.0.0", "::", "::ffff:0.0.0.0")))


def listeners(port: int) -> tuple[Listener, ...] | None:
    """Return every socket that may get a connection to 127.0.0.1 at this port; None where that is unknown.

    The kernel prefers a socket bound to 127.0.0.1 itself to one bound to every address, so wildcards count only where
    there is no exact one. More than one means SO_REUSEPORT: the kernel chooses.
    """
    if not HAS_PROC:
        return _listed(port)
    known = _known(port)
    if known is None:
        return None
    for addresses in (EXACT, WILDCARDS):
        found = tuple(listener for address, listener in known if address in addresses)
        if found:
            return found
    return ()


def owners(port: int) -> set[int] | None:
    """Return the uids of all who listen on a port, at whatever address; None where that is unknown."""
    known = [(b"", each) for each in _listed(port) or ()] if not HAS_PROC else _known(port)
    return None if known is None else {listener.uid for _, listener in known}


def _known(port: int) -> list[tuple[bytes, Listener]] | None:
    try:
        return diagnosed(port)
    except OSError:  # a kernel without inet_diag
        return _read(port)


def diagnosed(port: int) -> list[tuple[bytes, Listener]]:
    """Return every listener on a port with its address, by netlink; raise OSError if the kernel reports none."""
    found = []
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, SOCK_DIAG) as kernel:
        kernel.settimeout(2.0)
        kernel.bind((0, 0))
        for family in (socket.AF_INET, socket.AF_INET6):
            wanted = (1 << TCP_LISTEN, socket.htons(port), 0, bytes(32), 0, NO_COOKIE)
            request = DIAG_REQUEST.pack(family, socket.IPPROTO_TCP, 0, 0, *wanted)
            header = HEADER.pack(HEADER.size + len(request), DIAG_BY_FAMILY, REQUEST_DUMP, family, 0)
            kernel.send(header + request)
            found += [each for message in messages(kernel) if (each := _listener(message, port))]
    return found


def messages(kernel: socket.socket) -> list[bytes]:
    """Return the payloads of all messages of one answer; raise OSError if it is incomplete."""
    found: list[bytes] = []
    while True:
        data, _, flags, _ = kernel.recvmsg(1 << 16)
        if flags & socket.MSG_TRUNC:
            raise OSError
        while len(data) >= HEADER.size:
            length, kind, flags, _, _ = HEADER.unpack_from(data)
            if kind == DONE:
                ended = data[HEADER.size : HEADER.size + 4]  # with an error number, 0 or none; see netlink(7)
                if int.from_bytes(ended, sys.byteorder, signed=True) < 0:  # of a dump that failed: no tcp_diag, say
                    raise OSError
                return found
            if kind == ERROR or length < HEADER.size or flags & INTERRUPTED:
                raise OSError
            found.append(data[HEADER.size : length])
            data = data[(length + 3) & ~3 :]


def _listener(message: bytes, port: int) -> tuple[bytes, Listener] | None:
    """Return address and owner from one `struct inet_diag_msg` (linux/inet_diag.h)."""
    if len(message) < DIAG_MESSAGE.size:
        return None
    family, state, _, _, sport, _, source, *_, uid, inode = DIAG_MESSAGE.unpack_from(message)
    if state != TCP_LISTEN or sport != socket.htons(port):
        return None
    packed = source[:4] if family == socket.AF_INET else source
    return _words(packed), Listener(uid, inode)


def _read(port: int) -> list[tuple[bytes, Listener]] | None:
    """Return the same from `/proc/net/tcp*`, None where they cannot be read."""
    try:
        rows = [row for row in _rows(port) if row[3] == LISTEN]
        return [(row[1].partition(b":")[0], Listener(int(row[7]), int(row[9]))) for row in rows]
    except (OSError, IndexError, ValueError):
        return None


def is_unused(port: int) -> bool:
    """Return whether `/proc/net/tcp*` has no listener on a port: a second source, where no listener means consent."""
    return not HAS_PROC or _read(port) == []


def accepted_by(port: int, client_port: int) -> int | None:
    """Return the uid of who has accepted the connection from that port of 127.0.0.1; None: no process yet."""
    if not HAS_PROC:
        return None
    far = b":%04X" % client_port
    try:
        ends = [row for row in _rows(port) if row[2].endswith(far) and row[2].partition(b":")[0] in EXACT]
        return next((int(row[7]) for row in ends if int(row[9])), None)
    except (OSError, IndexError, ValueError):
        return None


def _rows(port: int) -> list[list[bytes]]:
    """Return the fields of all TCP sockets whose local port this is."""
    found, wanted = [], b":%04X " % port
    for name in ("tcp", "tcp6"):
        try:
            with open(f"/proc/net/{name}", "rb") as file:
                lines = file.read().splitlines()[1:]
        except FileNotFoundError:
            if name == "tcp":
                raise
            continue  # a kernel without IPv6
        found += [line.split() for line in lines if wanted in line]
    return [row for row in found if row[1].endswith(wanted[:-1])]


def _listed(port: int) -> tuple[Listener, ...] | None:
    """Ask `lsof`, which shows every process to root and his own to a user."""
    import subprocess

    command = ["lsof", "-nP", f"-iTCP:{port}", "-sTCP:LISTEN", "-F", "pu"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=10, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    found, pid = [], 0
    for line in done.stdout.splitlines():
        if line[:1] == "p":
            pid = int(line[1:])
        elif line[:1] == "u":
            found.append(Listener(int(line[1:]), pid=pid))
    return tuple(found)


def is_held_by(listener: Listener, pid: int) -> bool:
    """Return whether a process has this socket open; False as well where its descriptors are not ours to read."""
    if listener.pid:
        return listener.pid == pid
    wanted = f"socket:[{listener.inode}]"
    try:
        with os.scandir(f"/proc/{pid}/fd") as entries:
            return any(_target(entry.path) == wanted for entry in entries)
    except OSError:
        return False


def holder(listener: Listener) -> int | None:
    """Return a process that has this socket open, None where none can be seen: another user's are not shown to us."""
    if listener.pid or not HAS_PROC:
        return listener.pid or None
    numbers = sorted((int(name) for name in os.listdir("/proc") if name.isdecimal()), reverse=True)
    return next((pid for pid in numbers if is_held_by(listener, pid)), None)


def describe(found: tuple[Listener, ...]) -> str:
    """Return who listens, for a message: the user, and the process where it can be seen."""
    if not found:
        return "no process"
    pid = holder(found[0])
    who = f"a process of {user(found[0].uid)}"
    if pid is None:
        return who
    command = "".join(each if each.isprintable() else "?" for each in " ".join(identity.arguments_of(pid)))[:80]
    return f"{who}: PID {pid}, {command}"


def user(uid: int) -> str:
    """Return a user's name with the number."""
    import pwd

    try:
        return f"user {pwd.getpwuid(uid).pw_name} (uid {uid})"
    except KeyError:
        return f"uid {uid}"


def _target(path: str) -> str:
    try:
        return os.readlink(path)
    except OSError:
        return ""


def trusted(uid: int) -> bool:
    """Return whether a listener of this user may be an engine's: root's, ours, or under sudo the caller's."""
    return uid == ROOT or uid in identity.own_uids()
