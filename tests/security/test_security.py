"""An attack on a native lab, a lab in a container and a cluster of two nodes: nothing of it may succeed.

What is tried is in attempts_*.py. The table of what was tried is printed at the end of the session.
"""

from __future__ import annotations

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
from cluster_nodes import cluster
from raw_http import canary
from targets import Target, reachable

pytestmark = pytest.mark.attack
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
MIN_ATTEMPTS = 300


def groups(target: str) -> list[Group]:
    """Return what is tried against a target."""
    return [group for module in MODULES for group in module.GROUPS if target in group.targets]


def attacked(lab: Clone, name: str, port: int = 0, page: str = "") -> Iterator[Target]:
    """Start a lab, and end what the attack has started in it; an application of its user listens on a port."""
    if why := strangers.missing():
        pytest.skip(why)
    lab.make("up")
    target = Target(name, lab, page or canary(), port)
    with reachable(lab.folder):
        target.wait_until_up()
        yield target
        if target.as_user("/api/status").status == 200:
            target.finish()


@pytest.fixture(scope="module")
def native(native_lab: Clone) -> Iterator[Target]:
    """The native lab of this session with all extras, whole: the first `make up` leaves some to the background."""
    native_lab.make("build", timeout_seconds=2400)
    page = canary()
    with application(page) as port:
        yield from attacked(native_lab, "native", port, page)


@pytest.fixture(scope="module")
def container(docker_lab: Clone) -> Iterator[Target]:
    """The lab in a container of this session."""
    yield from attacked(docker_lab, "container")


@pytest.fixture(scope="module")
def nodes() -> Iterator[ClusterTarget]:
    """Two nodes on this machine."""
    if why := strangers.missing():
        pytest.skip(why)
    with cluster() as made:
        made.start().wait()
        made.start("instinct").wait()
        with reachable(made.folder):
            target = ClusterTarget(made)
            yield target
        target.end_actors()


def check(group: Group, target: Target | ClusterTarget) -> None:
    """Try it all; what succeeds is the failure."""
    row = attack(group, target)
    assert not row.succeeded, f"{group.success}:\n" + "\n".join(row.succeeded)


@pytest.mark.native
@pytest.mark.parametrize("group", groups("native"), ids=str)
def test_nothing_succeeds_against_a_native_lab(native: Target, group: Group) -> None:
    """Each group tries one kind of attack; its control proves that a success would be seen."""
    check(group, native)


@pytest.mark.container
@pytest.mark.parametrize("group", groups("container"), ids=str)
def test_nothing_succeeds_against_a_container(container: Target, group: Group) -> None:
    """The same from outside, and what a notebook or another user in the container could do."""
    check(group, container)


@pytest.mark.cluster
@pytest.mark.parametrize("group", groups("cluster"), ids=str)
def test_nothing_succeeds_against_a_cluster(nodes: ClusterTarget, group: Group) -> None:
    """Someone in its network, and a second user of a node, without the token."""
    check(group, nodes)


@pytest.mark.cluster
def test_enough_was_tried() -> None:
    """At least 300 attempts in all, where this session attacked all three."""
    if TALLY.targets != {"native", "container", "cluster"}:
        pytest.skip("one of the three targets was not attacked in this session: make test TESTS=tests/security")

    assert TALLY.tried >= MIN_ATTEMPTS
