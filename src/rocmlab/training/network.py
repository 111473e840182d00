"""Which network interface gloo and RCCL (NCCL) may use: the loopback on one machine, the cluster's between several.

Both listen for the other ranks on the interface that they are given. Without one, gloo takes that of the host's name
and NCCL every one that it finds.
"""

from __future__ import annotations

import contextlib
import ipaddress
import secrets
import socket
import struct
import sys
from collections.abc import Callable
from pathlib import Path

LOOPBACK = "127.0.0.1"
# The request for an interface's IPv4 address. Source: linux/sockios.h; sys/sockio.h of macOS.
SIOCGIFADDR = 0xC0206921 if sys.platform == "darwin" else 0x8915
IPV6 = Path("/proc/net/if_inet6")


def on_this_machine(number: str = "") -> dict[str, str]:
    """Return what keeps the sockets of gloo and NCCL on the loopback, where all ranks are on this machine.

    Args:
        number: `handshake_number` of the job; empty: a new one, for a single process or one that hands it to all ranks.
    """
    name = loopback()
    return {"GLOO_SOCKET_IFNAME": name, "NCCL_SOCKET_IFNAME": f"={name}", **closed_to_others(number)}


def closed_to_others(number: str = "") -> dict[str, str]:
    """Return what keeps other programs away from NCCL's sockets, on every interface.

    NCCL_RAS_ENABLE: its own monitor listens on port 28028 without a password (NCCL 2.24 and newer).
    NCCL_SOCKET_MAGIC: its data sockets drop peers that do not begin with this number (by default a constant); versions
    before 2026 do not read it. Source: NCCL's src/misc/socket.cc.
    """
    return {"NCCL_RAS_ENABLE": "0", "NCCL_SOCKET_MAGIC": number or handshake_number()}


def handshake_number() -> str:
    """Return an unpredictable number of 64 bits, as NCCL reads it; every rank of a job needs the same."""
    return f"0x{secrets.randbits(64):016x}"


def loopback() -> str:
    """Return the name of the loopback interface: `lo` on Linux, `lo0` on macOS."""
    return interface(LOOPBACK) or ("lo0" if sys.platform == "darwin" else "lo")


def interface(address: str) -> str | None:
    """Return the name of the interface with this IPv4 or IPv6 address; None where none has it, or it is not known."""
    wanted = ipaddress.ip_address(address)
    if wanted.version == 6:
        return _of_ipv6(wanted.packed.hex())
    try:
        import fcntl
    except ImportError:
        return None
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asker:
        names = (name for _number, name in socket.if_nameindex())
        return next((name for name in names if _address(asker, name, fcntl.ioctl) == address), None)


def _address(asker: socket.socket, name: str, ioctl: Callable[..., bytes]) -> str | None:
    with contextlib.suppress(OSError):  # it has no IPv4 address
        answer = ioctl(asker, SIOCGIFADDR, struct.pack("256s", name.encode()[:15]))
        return socket.inet_ntoa(answer[20:24])
    return None


def _of_ipv6(wanted: str) -> str | None:
    """Return the name of the interface with an address of 32 hexadecimal digits. Source: /proc/net/if_inet6."""
    with contextlib.suppress(OSError):
        for line in IPV6.read_text(encoding="ascii").splitlines():
            fields = line.split()
            if fields[0] == wanted:
                return fields[5]
    return None
