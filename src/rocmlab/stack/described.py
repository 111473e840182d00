"""What an engine reports of a container or an image: Docker's and Podman's `inspect` have it under the same names.

Both print an array without `--format`; with `{{json .}}` Podman before 4.4 does so as well, and others an object.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Described:
    """One container, as it was when the engine was asked."""

    id: str
    image: str  # its id
    labels: dict[str, str]
    variables: tuple[str, ...]  # NAME=value, given when it was made
    hostname: str
    network: str  # "host", where it is in the host's own
    published: frozenset[tuple[str, int]]  # addresses and ports of the host
    restarts: int  # by the engine itself
    is_restarting: bool  # False of Podman 4 at all times


def container(text: str) -> Described | None:
    """Return what `inspect` printed of one container; None if that is nothing of the kind."""
    found = single(text)
    try:
        config, state, ports = found["Config"], found["State"], (found.get("NetworkSettings") or {}).get("Ports") or {}
        bound = [each for addresses in ports.values() for each in addresses or () if each.get("HostPort")]
        return Described(
            id=found["Id"],
            image=found["Image"],
            labels=config.get("Labels") or {},
            variables=tuple(config.get("Env") or ()),
            hostname=config["Hostname"],
            network=found["HostConfig"]["NetworkMode"],
            published=frozenset((each.get("HostIp", ""), int(each["HostPort"])) for each in bound),
            restarts=int(found["RestartCount"]),
            is_restarting=bool(state.get("Restarting")),
        )
    except (ValueError, TypeError, KeyError, AttributeError):
        return None


def single(text: str) -> dict[str, Any]:
    """Return the one object of the array that `inspect` printed; empty if that is nothing of the kind."""
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    return found[0] if isinstance(found, list) and len(found) == 1 and isinstance(found[0], dict) else {}
