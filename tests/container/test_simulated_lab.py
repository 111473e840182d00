"""`make up ROCMLAB_ROOT=…`: the lab on a simulated host, in a real container."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from clones import Clone
from containers import docker
from hosts import Gpu, make_host

pytestmark = [pytest.mark.container, pytest.mark.labs]


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A simulated host with three GPUs, readable for everybody as `rocmlab simulate` writes it."""
    root = make_host(
        tmp_path_factory.mktemp("simulated"), *(Gpu(number, number << 8, 127 + number) for number in (1, 2, 3))
    )
    for path in (root, *root.parents[:2], *root.rglob("*")):
        path.chmod(0o755 if path.is_dir() else 0o666)
    return root


@pytest.fixture(scope="module")
def printed(docker_lab: Clone, host: Path) -> str:
    """What `make up` prints for two of the GPUs."""
    return docker_lab.make("up", ROCMLAB_ROOT=str(host), GPUS="0,2").stdout


def container(lab: Clone) -> str:
    """Return the lab's container."""
    return docker(
        "ps", "--quiet", "--filter", f"label=com.docker.compose.project={lab.env['COMPOSE_PROJECT_NAME']}"
    ).strip()


def test_everything_says_simulated(printed: str, host: Path) -> None:
    """The choice and each device do, so that no one takes them for hardware; the CPU computes."""
    assert f"backend cpu, runtime docker (SIMULATED host {host}" in printed
    devices = [line for line in printed.splitlines() if "HIP" in line]
    assert len(devices) == 3
    assert all("SIMULATED" in line for line in devices)


def test_the_lab_sees_the_hosts_gpus_and_no_other(docker_lab: Clone, printed: str) -> None:
    """`rocmlab devices --json` inside: two usable, one hidden by the mask, all simulated; no node of this machine."""
    found = json.loads(docker("exec", container(docker_lab), "start.sh", "rocmlab", "devices", "--json"))
    host = json.loads(docker("inspect", "--format", "{{json .HostConfig}}", container(docker_lab)))

    gpus = [device for device in found["devices"] if device["backend"] == "rocm"]
    assert found["simulated"]
    assert all(device["simulated"] for device in found["devices"])
    assert sorted(device["index"] for device in gpus if device["is_usable"]) == [0, 2]
    assert [device["why_not"] for device in gpus if not device["is_usable"]] == ["hidden by HIP_VISIBLE_DEVICES=0,2"]
    assert not host["Devices"]
    assert host["SecurityOpt"] == ["label=disable"]  # where SELinux labels containers it could open none of our folders


def test_the_tree_cannot_be_changed_from_inside(docker_lab: Clone, printed: str) -> None:
    """It is mounted read-only."""
    program = "touch /opt/simulated-host/sys/changed 2>/dev/null || echo refused"

    assert docker("exec", container(docker_lab), "bash", "-c", program) == "refused\n"


@pytest.mark.long
def test_it_is_remembered_and_taken_back(docker_lab: Clone, printed: str, host: Path) -> None:
    """The next `make up` is on the simulated host still; an empty value returns to this machine."""
    again = docker_lab.make("up").stdout
    remembered = docker_lab.env.get("ROCMLAB_ROOT")

    back = docker_lab.make("up", ROCMLAB_ROOT="", GPUS="all").stdout

    assert "SIMULATED" in again
    assert remembered == str(host)
    assert "SIMULATED" not in back
    assert "ROCMLAB_ROOT" not in docker_lab.env


def test_a_folder_that_is_no_host_is_refused(docker_lab: Clone, tmp_path: Path) -> None:
    """The error says how to write one, and how to leave the simulation."""
    done = docker_lab.make("up", ROCMLAB_ROOT=str(tmp_path), succeeds=False)

    assert f"error: ROCMLAB_ROOT={tmp_path} is not a simulated host" in done.stdout
    assert "rocmlab simulate" in done.stdout
