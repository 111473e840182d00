"""A container's device rules, asked of the kernel: what they deny costs one GPU, what a mode refuses costs all."""

from __future__ import annotations

import json

import pytest
from containers import docker

pytestmark = pytest.mark.container
PROGRAM = """
mkdir -p /dev/dri
mknod -m 0666 /dev/dri/renderD128 c 226 128
mknod -m 0666 /dev/dri/renderD129 c 226 129
mknod -m 0000 /dev/dri/renderD130 c 226 130
exec setpriv --reuid=1000 --regid=1000 --clear-groups python3 -c "
import json
from pathlib import Path
from rocmlab.devices import nodes, roots
tried = []
roots.on_read = tried.append
found = {node.path: node.error for node in nodes.render_nodes(Path('/'))}
print(json.dumps([found, [name for name in tried if name != '/dev/dri']]))
"
"""


def test_a_denied_node_is_told_from_a_closed_one(image: str) -> None:
    """Without a rule EPERM, by its mode EACCES; the allowed node, behind which no driver is, is not opened."""
    rules = ["--device-cgroup-rule=c 226:128 rwm", "--device-cgroup-rule=c 226:130 rwm"]
    found, tried = json.loads(
        docker("run", "--rm", "--user=0", *rules, "--entrypoint=bash", image, "-c", PROGRAM).splitlines()[-1]
    )

    assert found == {
        "/dev/dri/renderD128": None,
        "/dev/dri/renderD129": "EPERM",
        "/dev/dri/renderD130": "EACCES",
    }
    assert tried == ["/dev/dri/renderD129", "/dev/dri/renderD130"]
