"""IP addresses of this machine: which one others reach it by, and whether a server could listen there."""

from __future__ import annotations

import ipaddress
import socket

OUTSIDE = "192.0.2.1"  # an address without a machine (RFC 5737): looking up the route to it sends nothing
OUTSIDE_IPV6 = "2001:db8::1"  # the same (RFC 3849)


def is_address(text: str) -> bool:
    """Return whether a text is an IPv4 or IPv6 address, without brackets."""
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True


def own(towards: str = OUTSIDE) -> str:
    """Return the address of this machine on the way to a host, or to any other; raise OSError if there is no way."""
    kind, *_, where = socket.getaddrinfo(towards, 9, type=socket.SOCK_DGRAM)[0]
    with socket.socket(kind, socket.SOCK_DGRAM) as probe:
        probe.connect(where)
        return str(probe.getsockname()[0])


def refusal(address: str, port: int) -> OSError | None:
    """Return why no server could listen on a port of an address; port 0 is any; None: one could."""
    is_ipv6 = ":" in address
    with socket.socket(socket.AF_INET6 if is_ipv6 else socket.AF_INET) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if is_ipv6:
            probe.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        try:
            probe.bind((address, port))
        except OSError as err:
            return err
    return None
