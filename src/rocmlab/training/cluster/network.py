"""Which network interface has an address: gloo and RCCL are told the one over which Ray's nodes reach each other.

Without it gloo takes that of the host's name, which in a container or on Debian is often the loopback.
"""

from __future__ import annotations

import socket
import struct

SIOCGIFADDR = 0x8915  # source: linux/sockios.h


def interface(address: str) -> str | None:
    """Return the name of the interface with this IPv4 address; None where none has it, or the system does not tell."""
    try:
        import fcntl
    except ImportError:
        return None
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asker:
        for _number, name in socket.if_nameindex():
            try:
                answer = fcntl.ioctl(asker, SIOCGIFADDR, struct.pack("256s", name.encode()[:15]))
            except OSError:
                continue  # it has no IPv4 address
            if socket.inet_ntoa(answer[20:24]) == address:
                return name
    return None
