"""The names and the path under which the lab answers: which `Host` headers are accepted, and where its pages begin.

A page of another site can make its own name point to 127.0.0.1 (DNS rebinding); its requests then carry that name in
the header `Host`, and a server that compares it with its own names rejects them.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Mapping

from rocmlab.base.errors import RocmlabError

SETTING = "ALLOWED_HOSTS"
BASE_URL = "LAB_BASE_URL"
BOUND = "ROCMLAB_BIND_HOSTS"  # the address of BIND and the names of this host
TLS_FOLDER, TLS_FILE = "ROCMLAB_TLS", "server.pem"  # where the native lab's key and certificates are, and their file
ROOT = "/"
EVERY = ("0.0.0.0", "::")
HUB = ("JUPYTERHUB_API_TOKEN", "JUPYTERHUB_SERVICE_PREFIX")  # what JupyterHub gives the servers that it starts
ALWAYS = ("localhost",)  # and every address of the loopback
NAME = re.compile(r"(?!-)[A-Za-z0-9_-]{1,63}(\.(?!-)[A-Za-z0-9_-]{1,63})*")
PATH = re.compile(r"(/[A-Za-z0-9_~-][A-Za-z0-9._~-]*)+")
HEADER = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[^:\[\]]+)(?::[0-9]{1,5})?")


def parse(text: str) -> tuple[str, ...]:
    """Return the host names and addresses of the setting ALLOWED_HOSTS, which are separated by commas.

    Raises:
        RocmlabError: one of them is neither a name nor an address.
    """
    found = [part.strip() for part in text.split(",") if part.strip()]
    for part in found:
        if _address(part) is None and (len(part) > 253 or not NAME.fullmatch(part)):
            raise RocmlabError(
                f"{SETTING}: {part!r} is neither a host name nor an IP address",
                "each is one name or address as a browser shows it, without https://, port or path; * is not allowed",
                f"make up {SETTING}=lab.example.org,192.168.1.20",
            )
    return tuple(str(_address(part) or part.lower()) for part in found)


def parse_base_url(text: str) -> str:
    """Return the path of the setting LAB_BASE_URL, with a slash at both ends.

    Raises:
        RocmlabError: it is not a path.
    """
    if text in ("", ROOT):
        return ROOT
    path = "/" + text.removeprefix("/").removesuffix("/")
    if not PATH.fullmatch(path):
        why = "it is the path below which the lab's pages are: letters, digits and . _ ~ - between slashes"
        raise RocmlabError(f"invalid {BASE_URL}={text!r}", why, f"make up {BASE_URL}=/lab1/")
    return f"{path}/"


def is_allowed(header: str, allowed: tuple[str, ...] = ()) -> bool:
    """Return whether the server answers this `Host` header: of the loopback, or of those that `parse` returned."""
    match = HEADER.fullmatch(header)
    if match is None:
        return False
    host = match[1]
    address = _address(host)
    if address is None:
        return host.lower() in (*ALWAYS, *allowed)
    # All addresses of the host (BIND=0.0.0.0): DNS makes a name point somewhere, never a number.
    return address.is_loopback or str(address) in allowed or any(each in allowed for each in EVERY)


def is_behind_hub(environment: Mapping[str, str]) -> bool:
    """Return whether JupyterHub has started this server; names and login are then the hub's."""
    return any(environment.get(name) for name in HUB)


def _address(text: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    """Return the address that a text is, with or without the brackets of IPv6; None if it is not an address."""
    try:
        return ipaddress.ip_address(text[1:-1] if text.startswith("[") and text.endswith("]") else text)
    except ValueError:
        return None
