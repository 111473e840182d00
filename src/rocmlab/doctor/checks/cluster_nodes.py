"""All nodes of a cluster, compared: who died, who reaches whom, clocks, versions, the share, disks, GPUs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from rocmlab.base.reach import SILENT
from rocmlab.doctor.checks.cluster import NO_CLUSTER, firewall
from rocmlab.doctor.cluster import cluster_seen, first_port, membership
from rocmlab.doctor.model import CONTAINER, Check, Verdict, check, note, ok, skip, unknown, warns
from rocmlab.doctor.situation import Situation

CLOCK_SECONDS = 1.0
SPARE_BYTES = 5e9
VERSIONS = ("rocmlab", "ray", "python", "rocm")  # the driver is each machine's own

Node = Mapping[str, Any]


def of_nodes(
    id: str, title: str, *, looks_at: str, why: str, fix: str
) -> Callable[[Callable[[Sequence[Node]], Verdict]], Check]:
    """Make a check of what compares the nodes; why they cannot be queried is reported by `cluster.node`."""

    def made(compare: Callable[[Sequence[Node]], Verdict]) -> Check:
        def probe(s: Situation) -> Verdict:
            if membership(s) is None:
                return skip(NO_CLUSTER)
            found = s.once(cluster_seen)
            return (
                skip("the cluster could not be queried, see cluster.node")
                if "nodes" not in found
                else compare(found["nodes"])
            )

        return check(id, title, sides=(CONTAINER,), looks_at=looks_at, why=why, fix=fix)(probe)

    return made


def _answering(nodes: Sequence[Node]) -> list[Node]:
    """Return the nodes that have answered."""
    return [node for node in nodes if node["is_alive"] and not node["problem"]]


def _name(node: Node) -> str:
    return f"{node['hostname']} ({node['address']})"


def _place(node: Node) -> tuple[str, int]:
    """Return what a machine's node has again when it is back: its address, and its port by CLUSTER_PORT."""
    return node["address"], node["port"]


@of_nodes(
    "cluster.lost",
    "every node that joined is alive and answers",
    looks_at="Ray's list of nodes, with the reason of each death, and each living node's answer to a small task",
    why="What ran on a lost node runs elsewhere or has failed; until it is back there are fewer GPUs than you think.",
    fix="on that machine: `make cluster-status`, `make logs`, `make cluster-join`",
)
def lost(nodes: Sequence[Node]) -> Verdict:
    """Look for nodes that are dead and not replaced, or do not answer; one that left by `cluster-down` is not lost."""
    alive = {_place(node) for node in nodes if node["is_alive"]}
    back = [node for node in nodes if not node["is_alive"] and _place(node) in alive]
    dead = [node for node in nodes if not node["is_alive"] and _place(node) not in alive and not node["has_left"]]
    silent = [node for node in nodes if node["is_alive"] and node["problem"]]
    seen = [f"{_name(node)}: alive" for node in _answering(nodes)]
    seen += [f"{_name(node)}: lost: {node['death'] or 'no reason is known'}" for node in dead]
    seen += [f"{_name(node)}: {node['problem']['what']}: {node['problem']['why']}" for node in silent]
    if dead:
        return warns(
            f"the node {_name(dead[0])} was lost" + (f", and {len(dead) - 1} more" if len(dead) > 1 else ""),
            dead[0]["death"] or "the head gets no heartbeat from it, and reports no reason",
            f"on {dead[0]['hostname']}: make cluster-status; make logs; then: make cluster-join HEAD=… CLUSTER_TOKEN=…",
            *seen,
        )
    if silent:
        problem = silent[0]["problem"]
        return warns(
            f"the node {_name(silent[0])} does not answer",
            f"{problem['what']}: {problem['why']}",
            problem["fix"],
            *seen,
        )
    return ok(*seen, *(f"{_name(node)}: an earlier node of a machine that is back" for node in back))


@of_nodes(
    "cluster.links",
    "every node reaches every other",
    looks_at="from each node a TCP connection to the node's and the object store's port of every other, with a limit",
    why="Joining needs only the connection to the head; results, arguments and gradients go from node to node. Where a "
    "firewall separates two nodes, jobs on them hang, or Ray declares a node dead.",
    fix="the firewall of the machine that cannot be reached, opened for the other one",
)
def links(nodes: Sequence[Node]) -> Verdict:
    """Go through what could not be reached."""
    answering = _answering(nodes)
    broken = [(node, link) for node in answering for link in node["unreachable"]]
    if not broken:
        return ok(
            *(
                f"{_name(node)} reaches {len(nodes) and sum(n['is_alive'] for n in nodes) - 1} others"
                for node in answering
            )
        )
    node, link = broken[0]
    fix = firewall(first_port(link["what"], link["port"]), node["address"], link["host"])
    return warns(
        f"the node {_name(node)} does not reach {link['host']}:{link['port']} ({link['what']})",
        link["said"],
        fix if link["status"] == SILENT else f"on {link['host']}: make cluster-status; then: make cluster-join",
        *(f"{_name(one)} → {each['what']}: {each['said']}" for one, each in broken),
    )


@of_nodes(
    "cluster.clock",
    "the nodes' clocks agree",
    looks_at="each node's clock against this one's, asked several times; corrected for the network delay",
    why="Certificates, leases and the times of files are compared between machines: with clocks a second apart a fresh "
    "file looks old, and a lease or journal entry from the future.",
    fix="`sudo timedatectl set-ntp true`, or chrony, on the machine that is off",
)
def clock(nodes: Sequence[Node]) -> Verdict:
    """Warn where the clock is off by more than a second, whatever the way took."""
    known = [node for node in _answering(nodes) if node["clock"]]
    seen = [f"{_name(node)}: {_offset(node['clock'])}" for node in known]
    off = [node for node in known if node["clock"]["least"] > CLOCK_SECONDS or node["clock"]["most"] < -CLOCK_SECONDS]
    if not off:
        return ok(*seen) if known else unknown("no node reported its time")
    first = off[0]["clock"]
    by = abs(first["least"] + first["most"]) / 2
    where = "ahead of" if first["least"] > 0 else "behind"
    return warns(
        f"the clock of {_name(off[0])} is {by:.1f} s {where} this machine's",
        "one of the two is not kept by a time server; certificates, leases and file times are compared between them",
        "timedatectl      # on both; on the one that is off: sudo timedatectl set-ntp true\n"
        "sudo apt-get install -y chrony && sudo chronyc makestep      # where there is no time service",
        *seen,
    )


def _offset(clock: Mapping[str, float]) -> str:
    middle = (clock["least"] + clock["most"]) / 2
    return f"{middle:+.3f} s ± {(clock['most'] - clock['least']) / 2:.3f} s"


@of_nodes(
    "cluster.versions",
    "all nodes have the same versions",
    looks_at="the versions of rocmlab, Ray, Python and ROCm that each node reports",
    why="Ray refuses nodes of another Ray or Python minor version; another rocmlab or ROCm runs, and the same notebook "
    "then gives other numbers, or fails, depending on the node.",
    fix="the same checkout and image on each: `git pull && make build && make cluster-join …`",
)
def versions(nodes: Sequence[Node]) -> Verdict:
    """Name each node that differs from the head, or from most."""
    answering = _answering(nodes)
    seen = [
        f"{_name(node)}: " + ", ".join(f"{name} {node['versions'].get(name) or 'none'}" for name in VERSIONS)
        for node in answering
    ]
    for name in VERSIONS:
        found = {node["versions"].get(name) for node in answering} - {None}
        if len(found) > 1:
            listed = "; ".join(f"{_name(node)} {node['versions'].get(name) or 'none'}" for node in answering)
            return warns(
                f"the nodes have different versions of {name}: {', '.join(sorted(found))}",
                listed,
                "git pull && make build      # on those that differ; then: make cluster-down, and up or join again",
                *seen,
            )
    return ok(*seen)


@of_nodes(
    "cluster.share",
    "the share is the same on every node",
    looks_at="a file that is written into this lab's share, and looked for in every node's",
    why="Without a common share results come back to the run folder through Ray, which works; data sets and caches are "
    "then each node's own, and what a notebook itself writes into the share stays on the node that ran it.",
    fix="none needed; or an NFS, CephFS or other common folder as `SHARE=` on every node",
)
def share(nodes: Sequence[Node]) -> Verdict:
    """Say which nodes have another share."""
    answering = _answering(nodes)
    words = {True: "the same", False: "its own", None: "none"}
    seen = [f"{_name(node)}: {words[node['sees_share']]}" for node in answering]
    other = [node for node in answering if not node["sees_share"]]
    if not other:
        return ok(*seen)
    names = ", ".join(_name(node) for node in other)
    return note(
        f"the share is not common: {names} has its own. Results come back through Ray; what notebooks themselves write "
        "into the share stays on the node that ran them. A common folder: SHARE=… on every node",
        *seen,
    )


@of_nodes(
    "cluster.disk",
    "every node has enough disk space",
    looks_at="the free space where each node keeps its share",
    why="Ray spills objects, and jobs write their results, to the node's disk; a full one fails jobs there only.",
    fix="free space on that machine: `docker system prune`, or remove old runs from the share",
)
def disk(nodes: Sequence[Node]) -> Verdict:
    """Look for disks that are nearly full."""
    known = [node for node in _answering(nodes) if node["free_bytes"] is not None]
    seen = [f"{_name(node)}: {node['free_bytes'] / 1e9:.1f} GB free" for node in known]
    full = [node for node in known if node["free_bytes"] < SPARE_BYTES]
    if not full:
        return ok(*seen) if known else unknown("no node reported how much is free")
    return warns(
        f"the node {_name(full[0])} has {full[0]['free_bytes'] / 1e9:.1f} GB free",
        "the next results, checkpoint or spilled object may not fit there",
        f"on {full[0]['hostname']}: docker system prune; du -sh share/* | sort -h",
        *seen,
    )


@of_nodes(
    "cluster.gfx",
    "the GPUs of all nodes are of one kind",
    looks_at="the gfx target of each node's GPUs",
    why="Jobs are placed by the number of GPUs unless they ask for a kind, so the same notebook meets different GPUs; "
    "training over all of them is as fast as the slowest.",
    fix="none needed; a job can ask for its kind, and training can be kept to like nodes",
)
def gfx(nodes: Sequence[Node]) -> Verdict:
    """Compare."""
    answering = _answering(nodes)
    kinds = {_name(node): sorted({str(gpu["gfx"] or "unknown") for gpu in node["devices"]}) for node in answering}
    seen = [f"{name}: {', '.join(found) or 'no GPU'}" for name, found in kinds.items()]
    every = {kind for found in kinds.values() for kind in found}
    if len(every) < 2:
        return ok(*seen) if every else skip("no node has a GPU", *seen)
    listed = "; ".join(seen)
    return note(f"the GPUs differ: {listed}. A job that needs one kind has to ask for it", *seen)
