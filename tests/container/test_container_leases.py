"""Leases of the host across containers, their users, and native programs: on a SIMULATED host, in real containers."""

from __future__ import annotations

import json
import os
import pwd
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import notebook_files
import pytest
from containers import docker
from hosts import Gpu, make_host
from watching import eventually

from rocmlab.base import lease_folder
from rocmlab.devices import discover
from rocmlab.kernels.leases import Holder, Leases

pytestmark = pytest.mark.container
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


@pytest.fixture
def host() -> Iterator[Path]:
    """A simulated host with three GPUs that every user of the machine may read; its folder of leases is missing."""
    top = Path(tempfile.mkdtemp(prefix="rocmlab-test-", dir="/tmp"))
    root = make_host(top / "host", *(Gpu(number, number << 8, 127 + number) for number in (1, 2, 3)))
    for path in (top, root, *root.rglob("*")):
        path.chmod(0o755 if path.is_dir() else 0o666)
    yield root
    shutil.rmtree(top)


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


def test_containers_of_two_users_and_a_native_lab_share_no_gpu(image: str, host: Path) -> None:
    """Each gets a GPU of its own, the fourth none; every side reads the host's names of those who have them."""
    lease_folder.ensure(host / FOLDER)
    native = [sys.executable, "-c", CLAIM]
    with ExitStack() as stack:
        found = [
            stack.enter_context(claimed(in_container(image, host, 1000, "alice"))),
            stack.enter_context(claimed(in_container(image, host, 1001, "bob"))),
            stack.enter_context(claimed(native, ROCMLAB_ROOT=str(host), ROCMLAB_USER="carol")),
        ]
        refused = [
            stack.enter_context(claimed(in_container(image, host, 1002, "dave"))),
            stack.enter_context(claimed(native, ROCMLAB_ROOT=str(host))),
        ]
        gpus = [device for device in discover(host, {}) if device.backend == "rocm"]
        held = Leases.of_host(root=host).held(gpus)

    assert found == [[0], [1], [2]]
    assert [(held[gpu].owner, held[gpu].uid, held[gpu].lab) for gpu in gpus] == [
        ("alice", 1000, "lab-of-alice"),
        ("bob", 1001, "lab-of-bob"),
        ("carol", 0, None),
    ]
    for text in refused:
        assert "no GPU is free" in str(text)
        assert all(name in str(text) for name in ("alice", "bob", "carol", "lab-of-bob"))


def test_a_run_goes_around_the_gpus_of_containers(image: str, host: Path, tmp_path: Path) -> None:
    """`rocmlab run` of another user gets the third GPU; with all three taken it waits, and says for whom."""
    lease_folder.ensure(host / FOLDER)
    notebook = notebook_files.write(tmp_path / "n.ipynb", "print(1)")
    command = [sys.executable, "-m", "rocmlab", "run", str(notebook), "--kernel", "python3", "--gpus", "all"]
    command += ["--warm", "off", "--share", str(tmp_path / "s")]
    environment = {**os.environ, "ROCMLAB_ROOT": str(host), "ROCMLAB_RUNTIME": "native", "ROCMLAB_BACKEND": "cpu"}
    with claimed(in_container(image, host, 1000, "alice")), claimed(in_container(image, host, 1001, "bob")):
        subprocess.run(command, env=environment, check=True, capture_output=True, timeout=120)
        result = json.loads(next((tmp_path / "s/runs").glob("*/results.json")).read_text())
        third = next(device for device in discover(host, {}) if device.index == 2)
        lease = Leases.of_host(root=host).take([third], Holder.here("mine.ipynb"))
        assert lease
        said = tmp_path / "said"
        with said.open("w") as output, subprocess.Popen(command, env=environment, stderr=output) as waiting:
            eventually(lambda: "waiting: " in said.read_text() or waiting.poll() is not None, 60)
            lease.release()
            code = waiting.wait(timeout=120)
    line = said.read_text()

    assert [device["index"] for device in result["jobs"][0]["devices"]] == [2]
    assert "uid 1000: " in line
    assert " of alice on " in line
    assert "uid 1001: " in line
    assert " of bob on " in line
    assert code == 0


def test_a_folder_that_the_engine_has_made_is_opened_for_every_user(image: str, host: Path) -> None:
    """After a boot it is missing, and an engine that starts the lab makes it for root alone."""
    (host / FOLDER).parent.mkdir(parents=True)  # in a read-only mount the engine makes nothing
    (host / FOLDER).mkdir(mode=0o755)

    with claimed(in_container(image, host, 1001, "bob")) as found:
        pass

    status = (host / FOLDER).stat()
    assert found == [0]
    assert (status.st_uid, status.st_mode & 0o7777) == (0, 0o1777)


def test_a_link_in_the_place_of_the_folder_opens_no_folder_of_roots(image: str, host: Path) -> None:
    """Another user may put one there before the engine starts a lab again: what it leads to keeps its mode."""
    private = host.parent / "configuration"
    private.mkdir(mode=0o755)
    (host / FOLDER).mkdir(parents=True)  # where the engine mounts in the read-only host; the link's end is the source
    mounts = [f"--volume={host}:{INSIDE}:ro", f"--volume={host}/dev:{INSIDE}/dev", f"--env=ROCMLAB_ROOT={INSIDE}"]
    mounts += [f"--volume={private}:{INSIDE}/{FOLDER}"]

    subprocess.run(["docker", "run", "--rm", *mounts, image, "start.sh", "true"], capture_output=True, check=False)

    assert private.stat().st_mode & 0o7777 == 0o755


def test_owner_and_mode_of_a_folder_in_use_stay(image: str, host: Path) -> None:
    """It is the host's: the entry point changes nothing, and where the lab's user may not write it says the fix."""
    lease_folder.ensure(host / FOLDER)
    os.chown(host / FOLDER, 4321, 4321)
    with claimed(in_container(image, host, 1000, "alice")) as found:
        pass
    kept = (host / FOLDER).stat()
    (host / FOLDER).chmod(0o755)
    command = ["docker", "run", "--rm", *options(host), image, "start.sh", "true"]

    done = subprocess.run(command, capture_output=True, text=True, check=False)

    assert found == [0]
    assert (kept.st_uid, kept.st_mode & 0o7777) == (4321, 0o1777)
    assert done.returncode == 2
    assert "no GPU can be leased" in done.stderr
    assert "systemd-tmpfiles --create" in done.stderr


def test_a_container_without_the_folder_says_that_its_leases_are_its_own(image: str, host: Path) -> None:
    """As one that was started without Compose: no one is to believe that other labs see them."""
    mounts = [f"--volume={host}:{INSIDE}:ro", f"--env=ROCMLAB_ROOT={INSIDE}"]

    done = subprocess.run(
        ["docker", "run", "--rm", *mounts, image, "start.sh", "true"], capture_output=True, text=True, check=True
    )

    assert "no other lab of this host sees which GPUs are leased here" in done.stderr


def test_the_lab_of_a_clone_mounts_the_folder_of_its_host(docker_lab, host: Path) -> None:
    """`make up` makes it and mounts it, and names user and lab; `rocmlab leases` on the host reads it."""
    docker_lab.make("up", "FORCE=1", ROCMLAB_ROOT=str(host))  # kernels of earlier tests may be open
    try:
        name = docker_lab.env["COMPOSE_PROJECT_NAME"]
        container = docker("ps", "--quiet", "--filter", f"label=com.docker.compose.project={name}").strip()
        program = "import os; print(os.environ['ROCMLAB_USER'], os.environ['ROCMLAB_LAB'])"
        said = docker("exec", container, "start.sh", "/opt/rocmlab/bin/python", "-c", program)
        command = ["docker", "exec", "--interactive", container, "start.sh", "/opt/rocmlab/bin/python", "-c", CLAIM]
        with claimed(command) as found:
            shown = docker_lab.make("leases").stdout
    finally:
        docker_lab.make("up", "FORCE=1", ROCMLAB_ROOT="")

    assert (host / FOLDER).stat().st_mode & 0o7777 == 0o1777
    assert said.split() == [pwd.getpwuid(os.getuid()).pw_name, name]
    assert found == [0]
    assert f"lab {name}" in shown
