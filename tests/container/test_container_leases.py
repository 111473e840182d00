"""Leases of the host across containers, their users, and native programs: on a SIMULATED host, in real containers."""

from __future__ import annotations

import json
import os
import pwd
import random
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import lease_chaos
import notebook_files
import podmans
import pytest
from claims import CLAIM, FOLDER, INSIDE, claimed, in_container, options, simulated
from containers import docker
from lease_chaos import AGENT, AS_USER, Chaos
from watching import eventually

from rocmlab.base import lease_folder
from rocmlab.devices import discover
from rocmlab.kernels.leases import Holder, Leases

pytestmark = [pytest.mark.container, pytest.mark.labs]
KILLS = int(os.environ.get("LEASE_KILLS", "30"))


@pytest.fixture
def host() -> Iterator[Path]:
    """A simulated host with three GPUs."""
    with simulated() as root:
        yield root


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


@pytest.mark.long
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


@pytest.mark.long
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


def test_random_kills_in_containers_and_outside_lose_no_lease_waiter_or_place(image: str) -> None:
    """Two containers of users 1000 and 1001, a native program of a third: as `test_host_leases.py` has it natively."""
    with simulated(4) as root, ExitStack() as stack:
        lease_folder.ensure(root / FOLDER)
        gpus = [device for device in discover(root, {}) if device.backend == "rocm"]
        texts = json.dumps([gpu.as_dict() for gpu in gpus])
        agents = []
        for uid, user in ((1000, "alice"), (1001, "bob")):
            python = [f"--env=GPUS_OF_TEST={texts}", image, "start.sh", "/opt/rocmlab/bin/python", "-c", AGENT]
            command = ["docker", "run", "--rm", "--interactive", *options(root, uid, user), *python]
            agents.append(stack.enter_context(lease_chaos.started(command, os.environ)))
        native = {"SEARCHED": json.dumps(sys.path), "AS": "4321", "GPUS_OF_TEST": texts, "ROCMLAB_ROOT": str(root)}
        command = [sys.executable, "-c", AS_USER + AGENT]
        agents.append(stack.enter_context(lease_chaos.started(command, native)))
        leases = Leases.of_host(root=root)
        chaos = Chaos(leases, gpus, agents, random.Random(22))

        chaos.run(KILLS)

        assert chaos.waited > KILLS / 10
        assert leases.held(gpus) == {}
        assert leases.waiting() == []


# A user's program outside of containers.
NATIVE = """
gpus = [Device(**each) for each in json.loads(os.environ["GPUS_OF_TEST"])]
lease = Leases.of_host().pick(gpus, 1, Holder.here("n.ipynb"))
print(json.dumps([gpu.index for gpu in lease.devices]), flush=True)
sys.stdin.read()
"""


@pytest.mark.podman
def test_docker_podman_a_native_program_and_a_run_share_no_gpu(image: str, base_image: str, tmp_path: Path) -> None:
    """Four users by real uids, without any setting; Podman runs the claim from the source, and no lab of its own."""
    with simulated(4) as root, ExitStack() as stack:
        lease_folder.ensure(root / FOLDER)
        gpus = [gpu for gpu in discover(root, {}) if gpu.backend == "rocm"]
        texts = json.dumps([gpu.as_dict() for gpu in gpus])
        podman = stack.enter_context(podmans.rootful(base_image))
        stack.enter_context(podman.lent(base_image))
        source = [f"--volume={podman.lab.folder}/src:/src:ro", "--env=PYTHONPATH=/src", "--entrypoint=python3"]
        started = ["podman", "run", "--rm", "--interactive", "--network=none", "--user=1002", *source]
        in_podman = ["env", "--unset=DOCKER_CONFIG", *started, *options(root, 1002, "dora"), base_image, "-c", CLAIM]
        own = {"SEARCHED": json.dumps(sys.path), "AS": "4321", "GPUS_OF_TEST": texts, "ROCMLAB_ROOT": str(root)}
        found = [
            stack.enter_context(claimed(in_container(image, root, 1000, "alice"))),
            stack.enter_context(claimed(in_podman, **podman.lab.environment)),
            stack.enter_context(claimed([sys.executable, "-c", AS_USER + NATIVE], **own)),
        ]
        held = Leases.of_host(root=root).held(gpus)
        notebook = notebook_files.write(tmp_path / "n.ipynb", "print(1)")
        command = [sys.executable, "-m", "rocmlab", "run", str(notebook), "--kernel", "python3", "--gpus", "all"]
        environment = {**os.environ, "ROCMLAB_ROOT": str(root), "ROCMLAB_RUNTIME": "native", "ROCMLAB_BACKEND": "cpu"}
        subprocess.run(
            [*command, "--warm", "off", "--share", str(tmp_path / "s")],
            env=environment,
            check=True,
            capture_output=True,
            timeout=120,
        )
        result = json.loads(next((tmp_path / "s/runs").glob("*/results.json")).read_text())

    assert found == [[0], [1], [2]]
    assert [held[gpu].uid for gpu in gpus[:3]] == [1000, 1002, 4321]
    assert [device["index"] for device in result["jobs"][0]["devices"]] == [3]
