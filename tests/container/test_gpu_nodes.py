"""The lab opens exactly the GPU nodes that were passed; character devices with odd groups stand in for GPUs."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from containers import Container, docker

pytestmark = pytest.mark.container
# path in the container, minor number (of /dev/null, zero and full, which every container may open), owning group
NODES = (
    ("/dev/kfd", 3, 61104),
    ("/dev/dri/renderD128", 5, 61992),
    ("/dev/dri/renderD129", 7, 61993),
    ("/dev/dri/card0", 3, 44),
)
GROUPS = {"61104", "61992", "61993", "44"}
OPEN = f"""
import os
for node in {[node for node, _, _ in NODES]}:
    os.close(os.open(node, os.O_RDWR))
print("opened", os.getuid(), sorted(os.getgroups()))
"""


# No GPU stands behind these nodes, so a kernel of this backend would refuse to start; a job of a run starts all the
# same, for its runner has chosen.
ROCM = ("--env=ROCMLAB_BACKEND=rocm", "--env=ROCMLAB_LEASED=1")


@pytest.fixture(scope="module")
def make_nodes(image: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator:
    """Return a function that makes device nodes, by default of mode 0660, and gives the options that pass them."""
    folders: list[Path] = []

    def shell(folder: Path, script: str) -> None:
        docker("run", "--rm", "--volume", f"{folder}:/nodes", "--entrypoint", "bash", image, "-c", script)

    def make(nodes=NODES, mode: str = "0660") -> list[str]:
        folder = tmp_path_factory.mktemp("nodes")
        folders.append(folder)
        lines = []
        for number, (_, minor, gid) in enumerate(nodes):
            lines.append(f"mknod -m {mode} /nodes/{number} c 1 {minor} && chown 0:{gid} /nodes/{number}")
        shell(folder, " && ".join(lines))
        return [f"--device={folder}/{number}:{node}" for number, (node, _, _) in enumerate(nodes)]

    yield make
    for folder in folders:
        shell(folder, "rm /nodes/*")


@pytest.fixture(scope="module")
def nodes(make_nodes) -> list[str]:
    """The usual nodes: kfd and the render nodes owned by different groups, one of them without a name."""
    return [*make_nodes(), *ROCM]


def test_notebook_opens_every_node(image: str, nodes: list[str]) -> None:
    """The kernel's process is in the group of each node, though the image knows none of them, and opens them all."""
    with Container(image, *nodes) as container:
        container.wait_for_server()
        printed = container.execute("tensorflow", OPEN)
        groups = container.server_status()["Groups"].split()
        exec_groups = container.as_lab_user("id", "-G").split()
        by_name = docker("exec", "--user", "jovyan", container.id, "id", "-G").split()

    assert printed == f"opened 1000 {sorted(map(int, GROUPS | {'100'}))}\n"
    assert set(groups) == set(exec_groups) == set(by_name) == GROUPS | {"100"}


@pytest.mark.long
def test_other_user_ids_keep_the_groups(image: str, nodes: list[str]) -> None:
    """NB_UID and NB_GID, which cost docker-stacks' users the GPU, do not; given groups stay too, root's does not."""
    ids = ["--env=NB_UID=4321", "--env=NB_GID=61500", "--group-add=61777"]
    with Container(image, *nodes, *ids) as container:
        container.wait_for_server()
        printed = container.execute("torch", OPEN)
        exec_groups = set(container.as_lab_user("id", "-G").split())

    assert exec_groups == GROUPS | {"100", "61500", "61777"}
    assert printed == f"opened 4321 {sorted(map(int, GROUPS | {'100', '61777'}))}\n"


def test_without_the_group_the_lab_refuses(image: str, nodes: list[str]) -> None:
    """Started as a user outside the groups, nothing can open the nodes: the lab says which group it needs."""
    with Container(image, *nodes, "--user=1000:100") as container:
        assert container.wait() == 2
        log = container.logs()

    assert "error: /dev/kfd cannot be opened read-write by uid 1000: Permission denied" in log
    assert "group 61104 with mode 660" in log
    assert "--group-add 61104" in log
    assert "Jupyter Server" not in log


@pytest.mark.long
def test_without_root_given_groups_are_enough(image: str, nodes: list[str]) -> None:
    """Started as a user with --group-add, as under rootless engines, the lab works without switching."""
    given = [f"--group-add={gid}" for gid in sorted(GROUPS)]
    with Container(image, *nodes, "--user=4321:100", *given) as container:
        container.wait_for_server()
        printed = container.execute("torch", OPEN)

    assert printed.startswith("opened 4321 ")


@pytest.mark.long
def test_a_host_without_a_render_group_works(image: str, make_nodes) -> None:
    """Udev then leaves the nodes to root's group, which the lab's user joins for them, and otherwise never."""
    given = make_nodes((("/dev/kfd", 3, 0), ("/dev/dri/renderD128", 5, 0)))
    program = (
        "import os; [os.open(node, os.O_RDWR) for node in ('/dev/kfd', '/dev/dri/renderD128')]; print(os.getgroups())"
    )
    with Container(image, *given, *ROCM) as container:
        container.wait_for_server()
        printed = container.execute("torch", program)
    with Container(image) as container:
        container.wait_for_server()
        without = container.execute("torch", "import os; print(os.getuid(), os.getgroups())")

    assert sorted(json.loads(printed)) == [0, 100]
    assert without.strip() == "1000 [100]"


def test_a_node_that_its_group_may_not_open_is_refused(image: str, make_nodes) -> None:
    """Mode 0600 helps no group; the message says what to type on the host."""
    given = make_nodes((("/dev/kfd", 3, 61104), ("/dev/dri/renderD128", 5, 61992)), mode="0600")
    with Container(image, *given, "--env=ROCMLAB_BACKEND=rocm") as container:
        assert container.wait() == 2
        log = container.logs()

    assert "/dev/kfd cannot be opened" in log
    assert "sudo chmod g+rw /dev/kfd" in log


def test_missing_kfd_is_refused(image: str) -> None:
    """A ROCm lab without any GPU passed does not fall back to the CPU."""
    with Container(image, "--env=ROCMLAB_BACKEND=rocm") as container:
        assert container.wait() == 2
        assert "this container has no /dev/kfd" in container.logs()


@pytest.mark.long
def test_caches_are_kept_by_rocm_version_and_target(image: str, nodes: list[str], tmp_path: Path) -> None:
    """Compiled kernels lie below a folder named after what they were compiled for; hidden GPUs do not count.

    Weights are for any GPU: those that an earlier version kept there are moved, and not fetched again.
    """
    share, kept = tmp_path / "share", "rocm7.2.0-gfx1100+gfx90a"
    (share / "cache" / kept / "huggingface/hub").mkdir(parents=True)
    (share / "cache" / kept / "huggingface/hub/weights").write_text("100 GB")
    for path in (share, *share.rglob("*")):
        os.chown(path, 1000, 100)
    version = tmp_path / "version"
    version.write_text("7.2.0-43\n")
    topology = tmp_path / "nodes"
    for number, (target, minor) in enumerate([(0, 0), (90010, 128), (110000, 129), (120001, 130)]):
        folder = topology / str(number)
        folder.mkdir(parents=True)
        (folder / "properties").write_text(f"simd_count 4\ngfx_target_version {target}\ndrm_render_minor {minor}\n")
    # /sys/class is not to be mounted over: a root of its own has this topology and the same nodes
    mounts = [
        f"--volume={topology}:/host/sys/class/kfd/kfd/topology/nodes:ro",
        f"--volume={version}:/opt/rocm/.info/version:ro",
        f"--volume={share}:/home/jovyan/share",
    ]
    moved = [option.replace(":/dev/", ":/host/dev/") for option in nodes]
    for path in (tmp_path, topology):
        path.chmod(0o755)
    with Container(image, *moved, *mounts, "--env=ROCMLAB_ROOT=/host") as container:
        container.wait_for_server()
        code = "import json, os; print(json.dumps({k: v for k, v in os.environ.items() if '/share/cache/' in v}))"
        caches = json.loads(container.execute("torch", code))

    compilers = {"MIOPEN_USER_DB_PATH", "MIOPEN_CUSTOM_CACHE_DIR", "TRITON_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR"}
    assert caches.pop("HF_HOME") == "/home/jovyan/share/cache/huggingface"
    assert caches.pop("KERAS_HOME") == "/home/jovyan/share/cache/keras"
    assert (share / "cache/huggingface/hub/weights").read_text() == "100 GB"
    assert set(caches) >= compilers | {"MPLCONFIGDIR", "XDG_CACHE_HOME"}
    assert all(path.startswith(f"/home/jovyan/share/cache/{kept}") for path in caches.values()), caches
