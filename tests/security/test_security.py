"""An attack on a native lab, a lab in a container and a cluster of two nodes: nothing of it may succeed.

Each is attacked in the session whose other tests have such a target (scripts/test). What is tried is in
attempts_*.py. The table of what was tried is printed at the end of the session.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator

import attempts_browsers
import attempts_cluster
import attempts_extras
import attempts_files
import attempts_folders
import attempts_inside
import attempts_names
import attempts_paths
import attempts_ports
import attempts_requests
import attempts_run_folder
import attempts_sockets
import attempts_tmp
import pytest
import strangers
from applications import application
from attempts import TALLY, Group, attack
from attempts_cluster import ClusterTarget
from clones import Clone
from cluster_nodes import Cluster
from raw_http import canary
from targets import Target, reachable

from rocmlab.base import installation

pytestmark = pytest.mark.skipif(bool(strangers.missing()), reason=strangers.missing())
MODULES = (
    attempts_requests,
    attempts_browsers,
    attempts_paths,
    attempts_extras,
    attempts_files,
    attempts_sockets,
    attempts_inside,
    attempts_names,
    attempts_folders,
    attempts_run_folder,
    attempts_tmp,
    attempts_cluster,
    attempts_ports,  # last: it stops the lab
)
MIN_ATTEMPTS = {"native": 2400, "container": 1400, "cluster": 420}  # a little fewer than there are
MARKS = {
    "native": [pytest.mark.native],
    "container": [pytest.mark.container, pytest.mark.labs],
    "cluster": [pytest.mark.cluster],
}


def groups(target: str) -> list[Group]:
    """Return what is tried against a target."""
    return [group for module in MODULES for group in module.GROUPS if target in group.targets]


def attacked(lab: Clone, name: str, port: int = 0, page: str = "") -> Iterator[Target]:
    """Restart a lab, and remove what the attack has left in it; an application of its user listens on a port."""
    lab.make("down", "FORCE=1", succeeds=False)  # with whatever earlier tests have left running in it
    lab.make("up", WARM_KERNELS="on")  # a fork server has sockets that can be attacked
    target = Target(name, lab, page or canary(), port)
    with reachable(lab.folder):
        target.wait_until_up()
        yield target
        if target.as_user("/api/status").status == 200:
            target.finish()
    for path in (lab.folder / "notebooks").glob("attack*"):
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink()


@pytest.fixture(scope="module")
def native(native_lab: Clone) -> Iterator[Target]:
    """The native lab of this session with all extras, whole: the first `make up` leaves some to the background."""
    if not (native_lab.folder / ".venv" / installation.WHOLE).is_file():
        native_lab.make("build", timeout_seconds=2400)
    page = canary()
    with application(page) as port:
        yield from attacked(native_lab, "native", port, page)


@pytest.fixture(scope="module")
def container(docker_lab: Clone) -> Iterator[Target]:
    """The lab in a container of this session."""
    yield from attacked(docker_lab, "container")


@pytest.fixture(scope="module")
def attacked_cluster(shared_cluster: Cluster) -> Iterator[ClusterTarget]:
    """The two nodes of this session."""
    target = ClusterTarget(shared_cluster)
    with reachable(shared_cluster.folder):
        yield target
    target.end_actors()


def check(group: Group, target: Target | ClusterTarget) -> None:
    """Try it all; what succeeds is the failure."""
    folder = target.cluster.folder if isinstance(target, ClusterTarget) else target.lab.folder
    with reachable(folder):  # again: pytest closes the folder above all of its runs whenever one of them begins
        row = attack(group, target)
    assert not row.succeeded, f"{group.success}:\n" + "\n".join(row.succeeded)


@pytest.mark.native
@pytest.mark.parametrize("group", groups("native"), ids=str)
def test_nothing_succeeds_against_a_native_lab(native: Target, group: Group) -> None:
    """Each group tries one kind of attack; its control proves that a success would be seen."""
    check(group, native)


@pytest.mark.container
@pytest.mark.labs
@pytest.mark.parametrize("group", groups("container"), ids=str)
def test_nothing_succeeds_against_a_container(container: Target, group: Group) -> None:
    """The same from outside, and what a notebook or another user in the container could do."""
    check(group, container)


@pytest.mark.cluster
@pytest.mark.parametrize("group", groups("cluster"), ids=str)
def test_nothing_succeeds_against_a_cluster(attacked_cluster: ClusterTarget, group: Group) -> None:
    """Someone in its network, and a second user of a node, without the token."""
    check(group, attacked_cluster)


@pytest.mark.parametrize("target", [pytest.param(name, marks=MARKS[name]) for name in MIN_ATTEMPTS])
def test_enough_was_tried(target: str) -> None:
    """Nearly all the attempts that there are, where this session had all groups of a target."""
    rows = TALLY.against(target)
    if {row.area for row in rows} != {group.area for group in groups(target)}:
        pytest.skip(f"not every group has attacked the {target} target: make test TESTS=tests/security")

    assert sum(row.tried for row in rows) >= MIN_ATTEMPTS[target]
