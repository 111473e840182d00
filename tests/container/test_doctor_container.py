"""The doctor inside real containers: nodes without their group, little shared memory, a lab asked from the host."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from clones import Clone
from containers import Container, docker
from hosts import Gpu, make_host

pytestmark = [pytest.mark.container, pytest.mark.labs]
GPUS = (Gpu(1, 0x0300, 128), Gpu(2, 0x0600, 129, unique_id=7))
# path in the container, minor number (of /dev/null, zero and full, which every container may open), owning group
NODES = (("/host/dev/kfd", 3, 61104), ("/host/dev/dri/renderD128", 5, 61992), ("/host/dev/dri/renderD129", 7, 61992))


def examined(image: str, *options: str, words: tuple[str, ...] = ()) -> dict[str, dict[str, Any]]:
    """Run the doctor in a container of its own, past the entry point, and return its findings by check."""
    command = ["docker", "run", "--rm", "--env=ROCMLAB_BACKEND=rocm", *options]
    command += ["--entrypoint=/opt/rocmlab/bin/rocmlab", image, "doctor", "--json", "--no-frameworks", *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode in (0, 1, 2), done.stderr
    return by_check(json.loads(done.stdout))


def by_check(report: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Return the worst finding of each check."""
    ranks = ["not applicable", "ok", "unknown", "warns", "blocks"]
    return {one["check"]: one for one in sorted(report["findings"], key=lambda one: ranks.index(one["status"]))}


@pytest.fixture(scope="module")
def simulated(image: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[str]]:
    """The options that give a container a host with two GPUs, whose nodes are real ones of odd groups."""
    root = make_host(tmp_path_factory.mktemp("doctor") / "host", *GPUS)
    for path in (root.parent, *root.rglob("*")):
        path.chmod(0o755)
    nodes = tmp_path_factory.mktemp("nodes")

    def shell(script: str) -> None:
        docker("run", "--rm", "--volume", f"{nodes}:/nodes", "--entrypoint", "bash", image, "-c", script)

    lines = [
        f"mknod -m 0660 /nodes/{n} c 1 {minor} && chown 0:{gid} /nodes/{n}" for n, (_, minor, gid) in enumerate(NODES)
    ]
    shell(" && ".join(lines))
    devices = [f"--device={nodes}/{number}:{path}" for number, (path, _, _) in enumerate(NODES)]
    # /dev of the simulated host is omitted: Docker puts the nodes there
    mounts = [f"--volume={root}/sys:/host/sys:ro", f"--volume={root}/proc:/host/proc:ro"]
    yield [*mounts, *devices, "--env=ROCMLAB_ROOT=/host"]
    shell("rm /nodes/*")


def test_nodes_without_their_group(image: str, simulated: list[str]) -> None:
    """Started manually as a user outside the groups; with --group-add, the printed fix, both checks are silent."""
    found = examined(image, *simulated, "--user=1000:100")

    assert found["dev.perm"]["status"] == found["container.gid_mismatch"]["status"] == "blocks"
    assert "/dev/kfd" in found["dev.perm"]["problem"]["what"]
    assert "group 61104, 61992" in found["container.gid_mismatch"]["problem"]["what"]
    fix = found["container.gid_mismatch"]["problem"]["fix"]
    assert "--group-add 61104 --group-add 61992" in fix

    given = fix.partition("docker run: ")[2].split()
    found = examined(image, *simulated, "--user=1000:100", *given)

    assert found["dev.perm"]["status"] == found["container.gid_mismatch"]["status"] == "ok"


def test_dockers_own_shared_memory_is_too_little_for_two_gpus(image: str, simulated: list[str]) -> None:
    """64 MB, which no one asked for; --shm-size, the printed fix, makes it silent."""
    groups = ("--user=1000:100", "--group-add=61104", "--group-add=61992")
    little = examined(image, *simulated, *groups)["shm"]
    enough = examined(image, *simulated, *groups, "--shm-size=8g")["shm"]

    assert little["status"] == "blocks"
    assert "/dev/shm: 67108864 bytes" in little["evidence"]
    assert "--shm-size 8g" in little["problem"]["fix"]
    assert enough["status"] == "ok"


def test_one_of_two_nodes_was_not_passed(image: str, simulated: list[str]) -> None:
    """GPUs that are not here are no GPUs of this lab, and no fault of it."""
    options = [option for option in simulated if not option.endswith("renderD129")]

    found = examined(image, *options, "--user=1000:100", "--group-add=61104", "--group-add=61992")

    assert found["dev.perm"]["status"] == "ok"
    assert found["shm"]["status"] == "warns"  # one GPU: a warning only


def test_a_lab_for_gpus_without_any(image: str) -> None:
    """Without /dev/kfd the finding says that it is the host's to fix."""
    found = examined(image)

    assert found["dev.kfd.exists"]["status"] == "blocks"
    assert found["dev.kfd.exists"]["about"] == "host"


@pytest.mark.long
def test_the_frameworks_compute_in_the_lab(lab: Container) -> None:
    """Both multiply right, on the CPU, and report it; nothing of it blocks."""
    command = ["docker", "exec", lab.id, "start.sh", "rocmlab", "doctor", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)

    found = by_check(json.loads(done.stdout))
    for framework in ("tensorflow", "torch"):
        result = found[f"compute.{framework}"]
        assert result["status"] == "ok", result
        assert any("numbers right" in line for line in result["evidence"])
        assert "computed on cpu" in result["evidence"]
    assert found["tf.clobbered"]["status"] == found["torch.clobbered"]["status"] == "ok"
    assert found["jupyter.env"]["status"] == "ok"
    assert done.returncode in (0, 1), done.stdout


def test_a_wrong_torch_is_found_where_it_is(image: str, tmp_path: Path) -> None:
    """A CUDA build that `pip install` put over AMD's: seen from its files, in the lab's own PyTorch environment."""
    find = "import importlib.util; print(importlib.util.find_spec('torch').submodule_search_locations[0])"
    package = docker("run", "--rm", "--entrypoint=/opt/torch/bin/python", image, "-c", find).strip()
    version = tmp_path / "version.py"
    tmp_path.chmod(0o755)
    version.write_text("__version__ = '2.13.0'\ncuda = '12.6'\nhip = None\n")

    wrong = examined(image, f"--volume={version}:{package}/version.py:ro")["torch.clobbered"]
    version.write_text("__version__ = '2.13.0+rocm7.2'\ncuda = None\nhip = '7.2.1'\n")
    right = examined(image, f"--volume={version}:{package}/version.py:ro")["torch.clobbered"]

    assert "is a CUDA build" in wrong["problem"]["what"]
    assert right["status"] == "ok"


@pytest.mark.long
def test_the_host_asks_the_running_lab(docker_lab: Clone) -> None:
    """`make up`, then `make doctor`: both sides in one report, and the screen reports it."""
    docker_lab.make("up")
    command = ["scripts/rocmlab", "doctor", "--no-frameworks"]

    def doctor(*words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*command, *words],
            cwd=docker_lab.folder,
            env=docker_lab.environment,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )

    told, shown = doctor("--json"), doctor()

    report = json.loads(told.stdout)
    assert report["lab"] == "asked", told.stdout
    assert {one["side"] for one in report["findings"]} == {"host", "container"}
    assert by_check(report)["lab.answers"]["status"] == "ok"
    assert "this host and its running lab" in shown.stdout
    assert told.returncode == shown.returncode == report["exit_code"]
    assert report["exit_code"] < 2, shown.stdout
