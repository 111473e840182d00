"""What Docker and Podman print of a container and of an image, for stand-ins of their commands."""

from __future__ import annotations

import json
from typing import Any


def container(identity: str = "abc", **given: Any) -> str:
    """Return what `inspect` prints of a container, on one line; what is not given is as usual."""
    facts = {
        "Id": identity,
        "Image": "sha256:1",
        "RestartCount": given.get("restarts", 0),
        "State": {"Restarting": given.get("is_restarting", False)},
        "HostConfig": {"NetworkMode": given.get("network", "bridge")},
        "NetworkSettings": {"Ports": given.get("ports", {})},
        "Config": {
            "Hostname": "inside",
            "Env": given.get("env", ["ROCMLAB_HOME=/home"]),
            "Labels": given.get("labels", {}),
        },
    }
    return json.dumps([facts])


def published(port: int) -> dict[str, list[dict[str, str]]]:
    """Return the `ports` of a container whose server 127.0.0.1:port reaches."""
    return {"8888/tcp": [{"HostIp": "127.0.0.1", "HostPort": str(port)}], "9999/tcp": []}


def image(identity: str = "sha256:1", **labels: str) -> str:
    """Return what `image inspect` prints, on one line."""
    return json.dumps([{"Id": identity, "Config": {"Labels": labels}}])
