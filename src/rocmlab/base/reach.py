"""Whether a TCP port can be reached, and if not, why: nothing listens there, or a firewall drops the packets."""

from __future__ import annotations

import errno
import socket
from dataclasses import dataclass

from rocmlab.base import addresses

OPEN, REFUSED, SILENT, NO_ROUTE, NO_NAME = "open", "refused", "silent", "no route", "no name"


@dataclass(frozen=True)
class Reach:
    """What came of one connection."""

    status: str  # open, refused, silent, no route, no name
    limit_seconds: float = 0.0
    detail: str = ""  # by the system, where neither of the common ones

    @property
    def is_open(self) -> bool:
        """Return whether a program listens there and can be reached."""
        return self.status == OPEN

    def sentence(self, host: str, port: int) -> str:
        """Say what it means."""
        where = f"{host}:{port}"
        return {
            OPEN: f"{where} can be reached",
            REFUSED: f"{where} refuses: the machine is there, and nothing listens on that port",
            SILENT: f"{where} did not answer within {self.limit_seconds:g} s: the machine is off, or a firewall drops "
            "the packets",
            NO_ROUTE: f"{where} cannot be reached: {self.detail}",
            NO_NAME: f"{host} has no address: {self.detail}",
        }[self.status]


def tcp(host: str, port: int, limit_seconds: float) -> Reach:
    """Connect, and return the result; looking up a name is not included in the limit."""
    try:
        with socket.create_connection((host, port), limit_seconds):
            return Reach(OPEN)
    except socket.gaierror as err:
        return Reach(NO_NAME, detail=err.strerror or str(err))
    except TimeoutError:
        return Reach(SILENT, limit_seconds)
    except OSError as err:
        if err.errno == errno.ECONNREFUSED:
            return Reach(REFUSED)
        if err.errno == errno.ETIMEDOUT:
            return Reach(SILENT, limit_seconds)
        return Reach(NO_ROUTE, detail=err.strerror or str(err))


def is_free(address: str, port: int) -> bool:
    """Return whether a server could listen on this port of an address of this machine."""
    return addresses.refusal(address, port) is None
