"""What Docker and Podman print of a container and of an image, for stand-ins of their commands."""

from __future__ import annotations

import json
from typing import Any


def container(identity: str = "abc", **given: Any) -> str:
    """Return the line that `inspect --format '{{json .}}'` prints of a container; what is not given is as usual."""
    return json.dumps(
        {
            "Id": identity,
            "Image": given.get("image", "sha256:1"),
            "RestartCount": given.get("restarts", 0),
            "State": {"StartedAt": given.get("started", "1"), "Restarting": given.get("is_restarting", False)},
            "HostConfig": {"NetworkMode": given.get("network", "bridge")},
            "NetworkSettings": {"Ports": given.get("ports", {})},
            "Config": {
                "Hostname": given.get("hostname", "inside"),
                "Env": given.get("env", ["ROCMLAB_HOME=/home"]),
                "Labels": given.get("labels", {}),
            },
        }
    )


def published(port: int) -> dict[str, list[dict[str, str]]]:
    """Return the `ports` of a container whose server 127.0.0.1:port reaches."""
    return {"8888/tcp": [{"HostIp": "127.0.0.1", "HostPort": str(port)}], "9999/tcp": []}


def image(identity: str = "sha256:1", **labels: str) -> str:
    """Return the line that `image inspect --format '{{json .}}'` prints."""
    return json.dumps({"Id": identity, "Config": {"Labels": labels}})
