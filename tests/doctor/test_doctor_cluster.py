"""A cluster: this machine as a node of it, and all nodes compared. Situations are data; the last asks a real one."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from situations import Looker, fires, silent, skipped

from rocmlab.base import reach
from rocmlab.base.errors import Problem, RocmlabError
from rocmlab.base.reach import NO_ROUTE, OPEN, REFUSED, SILENT, Reach
from rocmlab.doctor import checks, cluster, cluster_probe
from rocmlab.doctor.checks.cluster import firewall
from rocmlab.doctor.cluster import Membership, Port, Token
from rocmlab.doctor.model import OK, UNKNOWN, Finding
from rocmlab.doctor.report import Screen
from rocmlab.doctor.situation import Situation

HERE, THERE = "192.0.2.10", "192.0.2.11"
TAKEN, FREE = Port(6379, "head", True, False), Port(6379, "head", False, True)
HEAD = Membership(
    "head",
    f"{HERE}:6379",
    HERE,
    token=Token(".env", 64, 0o600),
    has_address=True,
    ports=(TAKEN,),
    is_up=True,
    head_reach=Reach(OPEN),
)
WORKER = replace(HEAD, role="worker", address=THERE)
CLUSTER = [check for check in checks.ALL if check.id.startswith("cluster.")]


def node(hostname: str, address: str, **changes: Any) -> dict[str, Any]:
    """A node that is as it should be."""
    return {
        "id": hostname * 8,
        "hostname": hostname,
        "address": address,
        "port": 6380,
        "is_alive": True,
        "is_head": address == HERE,
        "is_here": address == HERE,
        "has_left": False,
        "death": "",
        "problem": None,
        "clock": {"least": -0.02, "most": 0.03},
        "versions": {"rocmlab": "0.7.0", "ray": "2.60.0", "python": "3.11.2", "rocm": "7.2.0"},
        "sees_share": True,
        "free_bytes": 200_000_000_000,
        "devices": [{"gfx": "gfx942"}],
        "unreachable": [],
        **changes,
    }


@pytest.fixture
def seen(inside: Looker) -> Any:
    """Looks from inside the head's lab at two nodes, of which the second is as a test says."""

    def look(**changes: Any) -> Situation:
        nodes = [node("alpha", HERE), {**node("beta", THERE), **changes}]
        return inside(given={"cluster": HEAD, "cluster_seen": {"share": "/share", "nodes": nodes}})

    return look


def noted(situation: Situation, id: str) -> Finding:
    """Assert that a check notes something without warning, and return the finding."""
    found = silent(situation, id)
    assert found.reason
    return found


@pytest.mark.parametrize("side", ["look", "inside"])
def test_without_a_cluster_nothing_is_looked_at(
    request: pytest.FixtureRequest, side: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """CLUSTER is off: no port is tried, no process is started, on neither side."""

    def forbidden(*_: object, **__: object) -> None:
        raise AssertionError("something was looked at")

    for module, name in ((reach, "tcp"), (reach, "is_free"), (cluster, "ask"), (cluster, "look")):
        monkeypatch.setattr(module, name, forbidden)
    situation = request.getfixturevalue(side)()

    for check in CLUSTER:
        assert skipped(situation, check.id)


def test_a_token_is_there_and_private(look: Looker) -> None:
    """None, a short one, and one that others may read are each named; never the token itself."""
    token = HEAD.token

    fix = fires(look(given={"cluster": replace(HEAD, token=replace(token, length=0))}), "cluster.token").problem.fix
    assert fix == "make cluster-up"
    lacking = replace(WORKER, token=replace(token, length=0))
    assert f"HEAD={HERE}:6379" in fires(look(given={"cluster": lacking}), "cluster.token").problem.fix
    open_to_all = replace(HEAD, token=replace(token, mode=0o644))
    assert fires(look(given={"cluster": open_to_all}), "cluster.token").problem.fix == "chmod 600 .env"
    fires(look(given={"cluster": replace(HEAD, token=replace(token, length=12))}), "cluster.token")

    silent(look(given={"cluster": HEAD}), "cluster.token")


@pytest.mark.slow
def test_the_token_of_a_real_env_file(look: Looker) -> None:
    """Its mode is that of `.env`, and the token's text is in no finding."""
    text = "f00d" * 16
    look.env_file(CLUSTER=f"{HERE}:6379", CLUSTER_TOKEN=text, CLUSTER_ADDRESS="127.0.0.1", CLUSTER_PORT="23979")
    (look.folder / ".env").chmod(0o640)

    found = fires(look(), "cluster.token")
    assert found.problem.fix == f"chmod 600 {look.folder / '.env'}"
    assert text not in str(found)

    (look.folder / ".env").chmod(0o600)
    silent(look(), "cluster.token")


@pytest.mark.parametrize("wrong", ["127.0.0.1", "0.0.0.0", "169.254.3.4", "::1", "alpha"])
def test_an_address_that_reaches_nobody(look: Looker, wrong: str) -> None:
    """The loopback, none, one for a single link, and a name are rejected."""
    fires(look(given={"cluster": replace(HEAD, address=wrong)}), "cluster.address")


def test_an_address_of_this_machine(look: Looker) -> None:
    """It has to be on an interface; in a network of the container's own it is looked at inside."""
    found = fires(look(given={"cluster": replace(HEAD, has_address=False)}), "cluster.address")
    assert HERE in found.problem.what

    silent(look(given={"cluster": HEAD}), "cluster.address")
    assert "bridge" in skipped(
        look(given={"cluster": replace(HEAD, has_address=None, network="bridge")}), "cluster.address"
    )


def test_ports_before_the_start(look: Looker) -> None:
    """All are free, or another program is named by what it took."""
    before = replace(HEAD, is_up=False)

    found = fires(look(given={"cluster": before}), "cluster.ports")
    assert "port 6379" in found.problem.what
    assert "sport = :6379" in found.problem.fix

    silent(look(given={"cluster": replace(before, ports=(FREE,))}), "cluster.ports")


def test_ports_after_the_start(look: Looker) -> None:
    """Something listens on each."""
    found = fires(look(given={"cluster": replace(HEAD, ports=(TAKEN, replace(FREE, number=6380)))}), "cluster.ports")
    assert "nothing listens on port 6380" in found.problem.what

    silent(look(given={"cluster": HEAD}), "cluster.ports")


def test_the_way_to_the_head(look: Looker) -> None:
    """A refusal, silence and no way at all have different fixes: only silence is a firewall's."""
    refused = fires(look(given={"cluster": replace(WORKER, head_reach=Reach(REFUSED))}), "cluster.head").problem
    dropped = fires(look(given={"cluster": replace(WORKER, head_reach=Reach(SILENT, 3.0))}), "cluster.head").problem
    away = Reach(NO_ROUTE, detail="No route to host")
    lost = fires(look(given={"cluster": replace(WORKER, head_reach=away)}), "cluster.head").problem

    assert "nothing listens" in refused.why
    assert "ufw" not in refused.fix
    assert "a firewall drops" in dropped.why
    assert f"sudo ufw allow from {THERE} to any port 6379:6384,10002:11001 proto tcp" in dropped.fix
    assert f'rule family="ipv4" source address="{THERE}" port port="10002-11001" protocol="tcp" accept' in dropped.fix
    assert "No route" in lost.why
    assert lost.fix.startswith(f"ping -c 3 {HERE}")
    silent(look(given={"cluster": WORKER}), "cluster.head")


def test_the_firewall_of_ipv6_and_of_a_machine_without_an_address() -> None:
    """The rule says its family; what is not known is to be filled in."""
    assert 'family="ipv6" source address="fd00::2"' in firewall(6379, "fd00::2", "the head")
    assert "from ADDRESS-OF-THIS-MACHINE" in firewall(6379, "", "the head")


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    """A port with someone who never accepts."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        found.listen(0)
        yield found


def test_a_port_is_open_refuses_or_is_silent(listener: socket.socket) -> None:
    """Real connections: to a listener, to no one, to one whose queue is full, and to a name that is none."""
    port = listener.getsockname()[1]

    assert reach.tcp("127.0.0.1", port, 5.0).is_open
    assert not reach.is_free("127.0.0.1", port)
    waiting = []
    while (found := reach.tcp("127.0.0.1", port, 0.3)).is_open:  # Linux drops what the queue has no room for
        one = socket.socket()
        one.setblocking(False)
        one.connect_ex(("127.0.0.1", port))
        waiting.append(one)
        assert len(waiting) < 100
    assert found == Reach(SILENT, 0.3)
    for one in waiting:
        one.close()
    listener.close()
    assert reach.tcp("127.0.0.1", port, 5.0).status == REFUSED
    assert reach.is_free("127.0.0.1", port)
    assert reach.tcp("no-such-name.invalid", port, 5.0).status == reach.NO_NAME


def test_this_machine_as_its_settings_say(look: Looker) -> None:
    """A worker's role, head and ports come from `.env`; a head that no one is refuses."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    look.env_file(CLUSTER=f"127.0.0.1:{port}", CLUSTER_TOKEN="t" * 64, CLUSTER_PORT="23979")

    found = cluster.membership(look())

    assert found is not None
    assert (found.role, found.head_host, found.head_port) == ("worker", "127.0.0.1", port)
    assert found.head_reach == Reach(REFUSED)
    assert [each.number for each in found.ports] == [23980, 23981, 23982, 23983, 23984]  # not the head's own two
    assert "nothing listens" in fires(look(), "cluster.head").problem.why


def test_this_labs_node(inside: Looker) -> None:
    """It is among the living; else, and where Ray cannot be queried, it is said why."""
    alive, other = node("alpha", HERE), node("beta", THERE)
    silent(inside(given={"cluster": HEAD, "cluster_seen": {"nodes": [alive, other]}}), "cluster.node")

    gone = inside(given={"cluster": HEAD, "cluster_seen": {"nodes": [{**alive, "is_alive": False}, other]}})
    assert "make cluster-up" in fires(gone, "cluster.node").problem.fix
    failed = replace(HEAD, failure=Problem("port 6379 is taken", "another Ray", "end it"))
    assert fires(inside(given={"cluster": failed}), "cluster.node").problem == failed.failure
    problem = {"what": "Ray is not installed", "why": "no extra", "fix": "make cluster-up"}
    assert (
        fires(inside(given={"cluster": HEAD, "cluster_seen": {"problem": problem}}), "cluster.node").problem.what
        in problem["what"]
    )


def test_what_cannot_be_asked_is_said_once(inside: Looker) -> None:
    """`cluster.node` says why; the comparisons refer to it."""
    situation = inside(given={"cluster": HEAD, "cluster_seen": {"problem": {"what": "a", "why": "b", "fix": "c"}}})

    for id in ("lost", "links", "clock", "versions", "share", "disk", "gfx"):
        assert "see cluster.node" in skipped(situation, f"cluster.{id}")


def test_a_lost_node(seen: Any) -> None:
    """It is named with its reason; one that left, and one that is back, are none."""
    found = fires(seen(is_alive=False, death="health check failed"), "cluster.lost")
    assert found.problem.what == f"the node beta ({THERE}) was lost"
    assert found.problem.why == "health check failed"

    silent(seen(), "cluster.lost")
    silent(seen(is_alive=False, has_left=True), "cluster.lost")
    silent(seen(address=HERE, is_alive=False, death="an earlier one"), "cluster.lost")
    slow = {"what": "no answer within 30 s", "why": "it hangs", "fix": "make logs"}
    assert "does not answer" in fires(seen(problem=slow), "cluster.lost").problem.what


def test_a_link_that_a_firewall_cuts(seen: Any) -> None:
    """Which of the two to open, for whom; a refusal is not a firewall's."""
    link = {"host": HERE, "port": 6381, "what": "object manager", "said": "no answer"}

    found = fires(seen(unreachable=[{**link, "status": SILENT}]), "cluster.links").problem
    assert f"beta ({THERE}) does not reach {HERE}:6381" in found.what
    assert found.fix.startswith(f"# on {HERE}, one of:")
    assert (
        f"from {THERE} to any port 6379:6384," in found.fix
    )  # of that machine's CLUSTER_PORT, by its object manager's
    assert "ufw" not in fires(seen(unreachable=[{**link, "status": REFUSED}]), "cluster.links").problem.fix

    assert "reaches 1 other" in silent(seen(), "cluster.links").evidence[0]


@pytest.mark.parametrize(
    ("least", "most", "word"), [(4.9, 5.1, "5.0 s ahead of"), (-90.0, -89.0, "89.5 s behind"), (1.001, 9.0, "ahead")]
)
def test_a_clock_that_is_off(seen: Any, least: float, most: float, word: str) -> None:
    """By more than a second, whatever the way took."""
    assert word in fires(seen(clock={"least": least, "most": most}), "cluster.clock").problem.what


@pytest.mark.parametrize(("least", "most"), [(-0.4, 0.6), (0.9, 1.5), (-30.0, 30.0)])
def test_a_clock_that_may_be_right(seen: Any, least: float, most: float) -> None:
    """A slow answer is not proof."""
    silent(seen(clock={"least": least, "most": most}), "cluster.clock")


def test_nobody_told_the_time(inside: Looker) -> None:
    """Then nothing is known."""
    situation = inside(
        given={"cluster": HEAD, "cluster_seen": {"nodes": [node("alpha", HERE, clock=None, free_bytes=None)]}}
    )

    for id in ("cluster.clock", "cluster.disk"):
        assert [one.status for one in checks.BY_ID[id].run(situation)] == [UNKNOWN]


def test_offsets_are_narrowed_by_each_round() -> None:
    """A slow first answer does not spoil the others; who never told the time is unknown."""
    rounds = [
        {"before": 100.0, "after": 104.0, "answers": {"a": 105.0, "b": RocmlabError("no", "no", "no")}},
        {"before": 110.0, "after": 110.2, "answers": {"a": 113.1}},
    ]

    found = cluster_probe.offset(rounds, "a")

    assert found is not None
    assert (found["least"], found["most"]) == pytest.approx((2.9, 3.1))
    assert cluster_probe.offset(rounds, "b") is None


@pytest.mark.parametrize("name", ["rocmlab", "ray", "python", "rocm"])
def test_versions_differ(seen: Any, name: str) -> None:
    """Each node is named with what it has."""
    versions = {**node("x", "y")["versions"], name: "0.1"}

    found = fires(seen(versions=versions), "cluster.versions").problem
    assert f"versions of {name}: 0.1" in found.what
    assert f"beta ({THERE}) 0.1" in found.why


def test_the_same_versions(seen: Any) -> None:
    """A node without ROCm next to one with it is no difference: it has no AMD GPU."""
    silent(seen(), "cluster.versions")
    silent(seen(versions={**node("x", "y")["versions"], "rocm": None}), "cluster.versions")


def test_a_share_of_its_own_is_noted(seen: Any, inside: Looker) -> None:
    """It is not an error, and the screen says what it means; a common one is not worth a word."""
    assert "beta" in noted(seen(sees_share=False), "cluster.share").reason
    assert silent(seen(), "cluster.share").reason == ""

    from rocmlab.doctor.examine import Report

    situation = seen(sees_share=False)
    report = Report(situation, tuple(checks.BY_ID["cluster.share"].run(situation)))
    assert "Note: cluster.share (in the lab): the share is not common" in " ".join(Screen(300).lines(report))


def test_a_nodes_disk_is_nearly_full(seen: Any) -> None:
    """Which node, and how much."""
    assert f"beta ({THERE}) has 1.0 GB free" in fires(seen(free_bytes=1_000_000_000), "cluster.disk").problem.what
    silent(seen(), "cluster.disk")


def test_different_gpus_are_noted(seen: Any) -> None:
    """Node by node."""
    assert f"beta ({THERE}): gfx1100" in noted(seen(devices=[{"gfx": "gfx1100"}]), "cluster.gfx").reason
    assert silent(seen(), "cluster.gfx").reason == ""
    assert silent(seen(devices=[]), "cluster.gfx").status == OK


@pytest.mark.slow
def test_a_probe_that_hangs_or_dies_is_a_finding(monkeypatch: pytest.MonkeyPatch, inside: Looker) -> None:
    """Its time limit is kept; what it says without an answer is its exit code."""
    script = inside.folder.parent / "slow"
    script.write_text("#!/bin/sh\nexec sleep 60\n")
    script.chmod(0o755)
    monkeypatch.setattr("sys.executable", str(script))

    begin = time.monotonic()
    assert "within 0.5 s" in cluster.ask({}, 0.5)["problem"]["why"]
    assert time.monotonic() - begin < 30

    script.write_text("#!/bin/sh\nexit 7\n")
    assert "code 7" in cluster.ask({}, 30)["problem"]["why"]
