"""The hub's labs in real containers, on a simulated host: who they run as, what they see, and whom they reach."""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from containers import docker

sys.path.insert(0, str(Path(__file__).parents[1] / "hub"))

import hubs

from rocmlab.simulation import write_host
from rocmlab.stack import resolve

pytestmark = [pytest.mark.container, pytest.mark.long("the image with extras")]


@pytest.fixture(scope="module")
def machine(extras_image: str) -> Iterator[hubs.Machine]:
    """The hub, with two labs that have a GPU each."""
    if why := hubs.missing():
        pytest.skip(why)
    folder = Path(tempfile.mkdtemp(prefix="rocmlab-hub-", dir="/tmp"))
    folder.chmod(0o755)
    name = f"{resolve.project_name(folder / 'project')}-hub"
    found = None
    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("ROCMLAB_ROOT", "")
            host = Path(write_host(folder / "host", gpus=2))
            found = hubs.Machine(folder, host, ("ada", "bob"), extras_image)
            found.start()
            clients = [found.client(user) for user in found.users]
            for client in clients:
                client.spawn("1")
            for client in clients:
                client.ready()
            yield found
    finally:
        if found:
            found.hub.stop(print)
        for kind, options in (("container", ["--all"]), ("volume", []), ("network", [])):
            for each in docker(kind, "ls", "--quiet", *options, "--filter", f"name={name}").split():
                docker(kind, "rm", "--force", each)
        shutil.rmtree(folder, ignore_errors=True)


def inspect(machine: hubs.Machine, user: str) -> dict[str, Any]:
    """Return what the engine says of a user's container."""
    found: list[dict[str, Any]] = json.loads(docker("container", "inspect", f"{machine.found.name}-{user}"))
    return found[0]


def test_a_container_is_its_users_with_limits_and_no_way_to_the_engine(machine: hubs.Machine) -> None:
    """The account's uid, own volumes, memory, CPUs and processes; no socket of the engine, no privileges."""
    for user in machine.users:
        found = inspect(machine, user)
        host = found["HostConfig"]
        text = json.dumps(found["Mounts"])
        assert (host["Memory"], host["MemorySwap"]) == (2 << 30, 2 << 30)
        assert host["PidsLimit"] == 4096
        assert host["CpuQuota"] == 1.5 * host["CpuPeriod"]
        assert not host["Privileged"]
        assert "docker.sock" not in text
        assert f"{machine.found.name}-{user}-work" in text
        lines = docker("top", found["Id"], "-eo", "pid,uid,args").splitlines()
        assert {int(line.split()[1]) for line in lines if "jupyterhub-singleuser" in line} == {machine.uid(user)}


def test_each_lab_has_one_gpu_and_the_notebooks(machine: hubs.Machine) -> None:
    """Of two simulated ones, leased on the host under the user's name; the empty volume got the shipped notebooks."""
    shown = []
    for user in machine.users:
        client = machine.client(user).ready()
        devices = client.lab("GET", "rocmlab/api/devices").json()["devices"]
        shown += [each["pci_address"] for each in devices if each["backend"] == "rocm" and each["is_usable"]]
        work = client.lab("GET", "api/contents/work").json()["content"]
        assert "00_hello_gpu.ipynb" in {each["name"] for each in work}

    assert len(shown) == len(set(shown)) == 2
    assert sorted(holder.who() for holder in machine.holders()) == sorted(
        f"uid {machine.uid(user)} ({user})" for user in machine.users
    )


def test_containers_do_not_reach_each_other(machine: hubs.Machine) -> None:
    """They reach the hub alone; the host's proxy is the only way into a lab."""
    addresses = {
        user: inspect(machine, user)["NetworkSettings"]["Networks"][machine.found.network]["IPAddress"]
        for user in machine.users
    }
    code = "import socket, sys; socket.create_connection((sys.argv[1], int(sys.argv[2])), timeout=5)"
    name = f"{machine.found.name}-ada"
    with pytest.raises(RuntimeError, match=r"timed out|unreachable|refused"):
        docker("exec", name, "/opt/rocmlab/bin/python", "-c", code, addresses["bob"], "8888")
    docker("exec", name, "/opt/rocmlab/bin/python", "-c", code, addresses["ada"], "8888")
    hub = machine.found
    docker("exec", name, "/opt/rocmlab/bin/python", "-c", code, hub.hub_address, str(hub.hub_port))


def test_labs_run_on_without_the_hub_and_files_outlive_the_container(machine: hubs.Machine) -> None:
    """The next hub finds the same container; a stopped lab's is removed, and the next one has the user's files."""
    before = inspect(machine, "ada")["Id"]
    assert machine.hub.stop(print)
    assert inspect(machine, "ada")["State"]["Running"]
    assert machine.start()
    ada = machine.client("ada").ready()
    assert inspect(machine, "ada")["Id"] == before

    body = {"type": "file", "format": "text", "content": "kept"}
    assert ada.lab("PUT", "api/contents/work/kept.txt", body).status_code == 201
    ada.stop_lab()
    name = f"{machine.found.name}-ada"
    assert not docker("container", "ls", "--all", "--quiet", "--filter", f"name=^{name}$").strip()
    ada.spawn("cpu")
    ada.ready()
    assert ada.lab("GET", "api/contents/work/kept.txt").json()["content"] == "kept"
    assert [holder.owner for holder in machine.holders()] == ["bob"]
