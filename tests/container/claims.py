"""Claims to GPUs of one SIMULATED host from containers and native programs of several users."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from hosts import Gpu, make_host

from rocmlab.base import lease_folder
from rocmlab.simulation import Live

INSIDE = "/opt/simulated-host"
FOLDER = lease_folder.USUAL.lstrip("/")
# What a kernel's start does, without a kernel.
CLAIM = """
import json, os, sys
from rocmlab.base.errors import RocmlabError
from rocmlab.kernels import ownership
try:
    owned = ownership.claim(1, "work/a.ipynb", os.environ, "PyTorch")
except RocmlabError as err:
    print(json.dumps(str(err)), flush=True)
else:
    print(json.dumps([device.index for device in owned.devices]), flush=True)
sys.stdin.read()
"""


@contextmanager
def simulated(gpus: int = 3) -> Iterator[Path]:
    """A simulated host that every user of the machine may read; its folder of leases is missing."""
    top = Path(tempfile.mkdtemp(prefix="rocmlab-test-", dir="/tmp"))
    root = make_host(top / "host", *(Gpu(number, number << 8, 127 + number) for number in range(1, gpus + 1)))
    for path in (top, root, *root.rglob("*")):
        path.chmod(0o755 if path.is_dir() else 0o666)
    try:
        yield root
    finally:
        shutil.rmtree(top)


@contextmanager
def simulated_live(gpus: int) -> Iterator[Live]:
    """The same, which a test moves, with no process on a GPU."""
    with tempfile.TemporaryDirectory(prefix="rocmlab-test-", dir="/tmp") as top:
        Path(top).chmod(0o755)
        yield Live(Path(top, "host"), gpus=gpus, processes=())


def options(host: Path, uid: int = 1000, user: str = "alice") -> list[str]:
    """Return what compose.yaml and its overlay for simulated hosts give a container."""
    mounts = (f"{host}:{INSIDE}:ro", f"{host}/dev:{INSIDE}/dev", f"{host}/{FOLDER}:{INSIDE}/{FOLDER}")
    variables = (f"NB_UID={uid}", f"ROCMLAB_ROOT={INSIDE}", f"ROCMLAB_USER={user}", f"ROCMLAB_LAB=lab-of-{user}")
    return [*(f"--volume={mount}" for mount in mounts), *(f"--env={each}" for each in variables)]


@contextmanager
def claimed(command: list[str], **environment: str) -> Iterator[object]:
    """A process that claims a GPU: what it got, or why it got none; it has it until the block ends."""
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env={**os.environ, **environment}
    ) as process:
        assert process.stdin
        assert process.stdout
        try:
            yield json.loads(process.stdout.readline())
        finally:
            process.stdin.close()


def in_container(image: str, host: Path, uid: int, user: str) -> list[str]:
    """Return what claims a GPU in a container of a lab of its own."""
    python = ["start.sh", "/opt/rocmlab/bin/python", "-c", CLAIM]
    return ["docker", "run", "--rm", "--interactive", *options(host, uid, user), image, *python]
