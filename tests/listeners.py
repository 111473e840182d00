"""Which sockets wait for others: read from /proc/net, with the process that has each. Standard library only.

A test watches while something runs (`Watch`), or looks once (`waiting`). The text of this file also runs as a program
inside a container, which has none of the tests: `python3 -c TEXT SECONDS` watches for that long, or until its input is
closed, and prints what it saw as JSON.
"""

from __future__ import annotations

import functools
import ipaddress
import json
import os
import socket
import struct
import sys
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType

PROC = Path("/proc")
OWN = PROC / "self/net"
TABLES = ("tcp", "tcp6", "udp", "udp6")
LISTEN, UNCONNECTED = "0A", "07"  # include/net/tcp_states.h; 07 is TCP_CLOSE: a UDP socket without a peer
# The kernel's answer to `ss`: it walks the listening sockets only, in a fortieth of the time of /proc/net, which walks
# all. Source: include/uapi/linux/{netlink,sock_diag,inet_diag}.h
NETLINK_SOCK_DIAG, SOCK_DIAG_BY_FAMILY, DUMP = 4, 20, 0x301  # 0x301: NLM_F_REQUEST | NLM_F_DUMP
HEADER, REQUEST = struct.Struct("=IHHII"), struct.Struct("=BBBxI48x")  # nlmsghdr; inet_diag_req_v2
NLMSG_ERROR, NLMSG_DONE = 2, 3
KINDS = (
    ("tcp", socket.AF_INET, socket.IPPROTO_TCP, int(LISTEN, 16)),
    ("tcp6", socket.AF_INET6, socket.IPPROTO_TCP, int(LISTEN, 16)),
    ("udp", socket.AF_INET, socket.IPPROTO_UDP, int(UNCONNECTED, 16)),
    ("udp6", socket.AF_INET6, socket.IPPROTO_UDP, int(UNCONNECTED, 16)),
)
SECONDS_BETWEEN = 0.02
VARIABLE = "ROCMLAB_TEST_WATCHED"  # carried by every process of what is watched


@dataclass(frozen=True)
class Listener:
    """A socket that takes what others send."""

    protocol: str  # tcp, tcp6, udp, udp6
    address: str
    port: int
    inode: int
    uid: int  # of who opened it
    pid: int | None  # None: its process had exited before it was found, or belongs to another user
    command: str

    @property
    def is_loopback(self) -> bool:
        """Return whether only this machine can reach it."""
        return _is_loopback(self.address)

    def __str__(self) -> str:
        return (
            f"{self.protocol} {self.address}:{self.port} of process {self.pid} ({self.command[:120]}), uid {self.uid}"
        )


@functools.cache  # `Watch` asks for the same few addresses 50 times a second
def _is_loopback(address: str) -> bool:
    found = ipaddress.ip_address(address)
    mapped = getattr(found, "ipv4_mapped", None)
    return (mapped or found).is_loopback


def pause() -> None:
    """Wait between two looks."""
    time.sleep(SECONDS_BETWEEN)


def waiting(
    pids: Iterable[int] | None = None, *, everywhere: bool = True, between: Callable[[], None] = pause
) -> list[Listener]:
    """Return the listening TCP sockets and the bound UDP sockets of these processes, in their network namespaces.

    It looks twice, as `Watch` does: see `Watch._lasting`.

    Args:
        pids: None: every socket of this namespace, anyone who has it.
        everywhere: False: omit those on the loopback.
        between: called between the two looks.
    """
    chosen = None if pids is None else set(pids)
    nets = [PROC / one / "net" for one in _one_of_each_namespace(chosen)]
    rows = {row.inode: row for net in nets for row in _rows(net) if everywhere or not row.is_loopback}
    if any(row.protocol.startswith("udp") for row in rows.values()):
        between()
        lasting = {row.inode for net in nets for row in _rows(net)}
        rows = {inode: row for inode, row in rows.items() if row.protocol.startswith("tcp") or inode in lasting}
    owners = _owners(set(rows), chosen)
    found = [_owned(row, owners.get(inode)) for inode, row in rows.items()]
    return [one for one in found if chosen is None or one.pid is not None]


def family(*roots: int, variable: str = "") -> set[int]:
    """Return these processes, all that descend from them, and all with `variable` (NAME=value) in their environment.

    A descendant whose parent has exited is found by the variable alone.
    """
    children: dict[int, list[int]] = {}
    found = set(roots)
    for entry in PROC.iterdir():
        if not entry.name.isdigit():
            continue
        try:
            parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            if variable and variable.encode() in (entry / "environ").read_bytes().split(b"\0"):
                found.add(int(entry.name))
        except (OSError, ValueError, IndexError):
            continue
        children.setdefault(parent, []).append(int(entry.name))
    left = list(found)
    while left:
        fresh = [child for child in children.get(left.pop(), []) if child not in found]
        found.update(fresh)
        left += fresh
    return found


class Watch:
    """Look often, in a `with` block, which sockets of some processes wait for others; `found` has all that did.

    Args:
        roots: processes whose descendants are watched.
        variable: NAME=value that others of them have in their environment.
        everyone: watch every socket of this namespace instead, anyone who has it.
        everywhere: also those on the loopback.
    """

    def __init__(
        self, *roots: int, variable: str = "", everyone: bool = False, everywhere: bool = False, root: Path = PROC
    ) -> None:
        self.found: dict[int, Listener] = {}  # by inode
        self.looks = 0
        self._roots, self._variable, self._everyone, self._everywhere = roots, variable, everyone, everywhere
        self._net = root / "self/net"
        self._others: set[int] = set()  # inodes that are known to be other processes'
        self._new_udp: set[int] = set()  # inodes that the look before saw first
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> Watch:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._ended.set()
        self._thread.join()

    def outside(self, allowed: Iterable[int] = ()) -> list[str]:
        """Return the sockets that were seen outside the loopback, but for those on these ports, in words."""
        ports = set(allowed)
        return sorted(str(one) for one in self.found.values() if not one.is_loopback and one.port not in ports)

    def look(self) -> None:
        """Look once."""
        self.looks += 1
        known = self._others | set(self.found)
        try:
            rows = answered_by_kernel() if self._net == OWN else _rows(self._net)
        except OSError:  # this kernel, or this container, does not answer
            rows = _rows(self._net)
        fresh = self._lasting(
            [row for row in rows if row.inode not in known and (self._everywhere or not row.is_loopback)]
        )
        if not fresh:
            return
        # Who has a socket that was seen just now is found among processes that are looked for afterwards.
        watched = None if self._everyone else family(*self._roots, variable=self._variable)
        owners = _owners({row.inode for row in fresh}, watched)
        for row in fresh:
            if self._everyone or row.inode in owners:
                self.found[row.inode] = _owned(row, owners.get(row.inode))
            else:
                self._others.add(row.inode)

    def _lasting(self, rows: list[Listener]) -> list[Listener]:
        """Omit UDP sockets that no look before this one saw.

        One that connects, as for a name's address, has a port on every address until it has its peer.
        Source: inet_dgram_connect() in net/ipv4/af_inet.c.
        """
        udp = {row.inode for row in rows if row.protocol.startswith("udp")}
        lasting = [row for row in rows if row.inode not in udp or row.inode in self._new_udp]
        self._new_udp = udp
        return lasting

    def _watch(self) -> None:
        while not self._ended.wait(SECONDS_BETWEEN):
            self.look()


def _one_of_each_namespace(pids: set[int] | None) -> list[str]:
    if pids is None:
        return ["self"]
    spaces: dict[str, str] = {}
    for pid in pids:
        try:
            spaces.setdefault(os.readlink(PROC / str(pid) / "ns/net"), str(pid))
        except OSError:
            continue  # it has exited, or belongs to another user
    return list(spaces.values())


def _rows(net: Path) -> list[Listener]:
    """Return the sockets of a namespace that wait. Source: /proc/net/tcp and its like (Documentation/networking)."""
    found = []
    for table in TABLES:
        try:
            lines = (net / table).read_text().splitlines()[1:]
        except OSError:
            continue  # no IPv6 here, or the process has exited
        for line in lines:
            fields = line.split()
            if fields[3] == (LISTEN if table.startswith("tcp") else UNCONNECTED):
                address, _, port = fields[1].partition(":")
                row = Listener(table, _address(address), int(port, 16), int(fields[9]), int(fields[7]), None, "")
                found.append(row)
    return found


def answered_by_kernel() -> list[Listener]:
    """Return the same of this process's namespace, from the kernel's answers.

    Raises:
        OSError: it gives none.
    """
    found = []
    for name, family_, protocol, state in KINDS:
        for body in _dump(family_, protocol, 1 << state):
            (port,) = struct.unpack_from("!H", body, 4)
            uid, inode = struct.unpack_from("=II", body, 64)
            size = 4 if family_ == socket.AF_INET else 16
            address = socket.inet_ntop(family_, body[8 : 8 + size])
            if inode:  # 0: a connection that was not accepted yet
                found.append(Listener(name, address, port, inode, uid, None, ""))
    return found


def _dump(family_: int, protocol: int, states: int) -> list[bytes]:
    """Return an inet_diag_msg for each socket of a kind that is in one of these states."""
    found = []
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, NETLINK_SOCK_DIAG) as kernel:
        request = REQUEST.pack(family_, protocol, 0, states)
        kernel.send(HEADER.pack(HEADER.size + len(request), SOCK_DIAG_BY_FAMILY, DUMP, 1, 0) + request)
        while True:
            data = kernel.recv(1 << 16)
            while data:
                length, kind, *_ = HEADER.unpack_from(data)
                if kind == NLMSG_DONE:
                    return found
                if kind == NLMSG_ERROR:
                    raise OSError(-struct.unpack_from("=i", data, HEADER.size)[0], "the kernel lists no sockets")
                found.append(data[HEADER.size : length])
                data = data[(length + 3) & ~3 :]


def _address(text: str) -> str:
    """Return an address of /proc/net, whose words of 32 bits are in the machine's own order."""
    words = [bytes.fromhex(text[place : place + 8]) for place in range(0, len(text), 8)]
    packed = b"".join(word[::-1] if sys.byteorder == "little" else word for word in words)
    return socket.inet_ntop(socket.AF_INET if len(packed) == 4 else socket.AF_INET6, packed)


def _owners(inodes: set[int], pids: set[int] | None) -> dict[int, int]:
    """Return which process has each of these sockets, as far as this user may see it."""
    wanted = {f"socket:[{inode}]": inode for inode in inodes}
    found: dict[int, int] = {}
    names = [entry.name for entry in PROC.iterdir() if entry.name.isdigit()] if pids is None else list(map(str, pids))
    for name in names:
        if len(found) == len(wanted):
            break
        try:
            opened = list((PROC / name / "fd").iterdir())
        except OSError:
            continue
        for one in opened:
            try:
                target = os.readlink(one)
            except OSError:
                continue
            if target in wanted:
                found.setdefault(wanted[target], int(name))
    return found


def _owned(row: Listener, pid: int | None) -> Listener:
    try:
        command = (PROC / str(pid) / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
    except OSError:
        command = "?"
    return Listener(row.protocol, row.address, row.port, row.inode, row.uid, pid, command)


def main() -> None:
    """Watch every socket outside the loopback until the input is closed, at most so long; print them as JSON."""
    with Watch(everyone=True) as watch:
        end = time.monotonic() + float(sys.argv[1])
        closed = threading.Event()
        threading.Thread(target=lambda: (sys.stdin.read(), closed.set()), daemon=True).start()
        closed.wait(max(0.0, end - time.monotonic()))
    sys.stdout.write(json.dumps({"looks": watch.looks, "found": [asdict(one) for one in watch.found.values()]}) + "\n")


if __name__ == "__main__":
    main()
