"""What an engine reports of a container: Docker's and Podman's `inspect` have these under the same names."""

from __future__ import annotations

import json
from dataclasses import dataclass

FORMAT = "{{json .}}"  # of `inspect` and `image inspect`


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
    started_at: str
    restarts: int  # by the engine, since it was made
    is_restarting: bool


def parse(text: str) -> Described | None:
    """Return what `inspect` printed of one container; None if that is nothing of the kind."""
    try:
        found = json.loads(text)
        config, state, ports = found["Config"], found["State"], found["NetworkSettings"].get("Ports") or {}
        bound = [each for addresses in ports.values() for each in addresses or () if each.get("HostPort")]
        return Described(
            id=found["Id"],
            image=found["Image"],
            labels=config.get("Labels") or {},
            variables=tuple(config.get("Env") or ()),
            hostname=config.get("Hostname", ""),
            network=found["HostConfig"]["NetworkMode"],
            published=frozenset((each.get("HostIp", ""), int(each["HostPort"])) for each in bound),
            started_at=str(state["StartedAt"]),
            restarts=int(found["RestartCount"]),
            is_restarting=bool(state.get("Restarting")),
        )
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return None
