"""This machine as a node of a cluster: token, address, ports, the way to the head, and the Ray node itself."""

from __future__ import annotations

from ipaddress import ip_address

from rocmlab.base.reach import SILENT
from rocmlab.doctor.cluster import HEAD, Membership, cluster_seen, membership, table_spans
from rocmlab.doctor.model import CONTAINER, WARNS, Verdict, check, ok, skip, warns
from rocmlab.doctor.situation import Situation

NO_CLUSTER = "CLUSTER is off"
MIN_TOKEN_CHARACTERS = 32  # characters; the head makes 64, which are 256 bits


@check(
    "cluster.token",
    "the cluster's token exists, and no other user can read it",
    looks_at="CLUSTER_TOKEN in `.env` and the mode of that file; in the lab the file that the node reads",
    why="Anyone who has the token can run programs on every node as the lab's user; without one no node starts.",
    fix="`make cluster-up` makes one; a worker gets it with `make cluster-join HEAD=… CLUSTER_TOKEN=…`",
)
def token(s: Situation) -> Verdict:
    """Look at its length and at who may read it; never at what it is."""
    member = membership(s)
    if member is None:
        return skip(NO_CLUSTER)
    found = member.token
    mode = "" if found.mode is None else f", mode {found.mode:04o}"
    seen = f"{found.place}: {found.length} characters{mode}"
    if not found.length:
        return warns(
            f"no cluster token found in {found.place}",
            "Ray's nodes accept only connections with the token, so this one cannot start",
            "make cluster-up"
            if member.role == HEAD
            else f"make cluster-join HEAD={member.head} CLUSTER_TOKEN=…      # `make cluster-up` on the head prints it",
            seen,
        )
    if found.mode is not None and found.mode & 0o077:
        return warns(
            f"other users of this machine can read the cluster token in {found.place}",
            f"its mode is {found.mode:04o}, and anyone who has the token can run programs on every node",
            f"chmod 600 {found.place}",
            seen,
        )
    if found.length < MIN_TOKEN_CHARACTERS:
        return warns(
            f"the cluster token has {found.length} characters",
            "it can be guessed; the one that `make cluster-up` makes has 256 bits",
            "remove CLUSTER_TOKEN from .env on the head, then: make cluster-up      # and join the workers again",
            seen,
        )
    return ok(seen)


@check(
    "cluster.address",
    "other machines can reach this one by the address that it gives them",
    looks_at="CLUSTER_ADDRESS against the addresses of this machine's interfaces",
    why="Each node announces one address to the others. With 127.0.0.1, or one that it no longer has, it joins, and "
    "nothing reaches it.",
    fix="`CLUSTER_ADDRESS=` the address of the network that all nodes share",
)
def address(s: Situation) -> Verdict:
    """Look at what kind it is, and whether this machine has it."""
    member = membership(s)
    if member is None:
        return skip(NO_CLUSTER)
    if not member.address:
        return skip("CLUSTER_ADDRESS is chosen when the node starts")
    fix = f"ip -brief address      # then: make {_again(member)} CLUSTER_ADDRESS=…"
    try:
        found = ip_address(member.address)
    except ValueError:
        return warns(
            f"CLUSTER_ADDRESS={member.address} is not an IP address", "Ray's nodes know each other by one", fix
        )
    if found.is_loopback or found.is_unspecified or found.is_link_local:
        return warns(
            f"CLUSTER_ADDRESS={found} reaches no other machine",
            f"it is {_kind(found.is_loopback, found.is_unspecified)}, so the other nodes would find themselves",
            fix,
        )
    if member.has_address is None:
        return skip(f"the node has a network of its own ({member.network}); checked inside the lab")
    if not member.has_address:
        return warns(
            f"no interface of this machine has CLUSTER_ADDRESS={found}",
            "it was another one when the cluster was set up (DHCP), or it is another machine's",
            fix,
        )
    return ok(f"{found} is this machine's")


def _kind(is_loopback: bool, is_unspecified: bool) -> str:
    return "the loopback" if is_loopback else "no address" if is_unspecified else "for one link only"


def _again(member: Membership) -> str:
    return "cluster-up" if member.role == HEAD else f"cluster-join HEAD={member.head}"


@check(
    "cluster.ports",
    "the node's ports are free, or the node's own",
    looks_at="a listener on each port of docs/cluster.md's table, on this machine's own address",
    why="A node needs its ports; where another program has one, Ray's message names neither. A node that should run "
    "and listens nowhere has ended.",
    fix="end the other program, or `CLUSTER_PORT=` another one; `make cluster-up`",
)
def ports(s: Situation) -> Verdict:
    """Before the start all are free, after it all are taken."""
    member = membership(s)
    if member is None:
        return skip(NO_CLUSTER)
    if not member.ports:
        return skip(f"the node has a network of its own ({member.network}); checked inside the lab")
    seen = [f"{port.number} {port.what}: {_state(port.listens, port.is_free)}" for port in member.ports]
    if not member.is_up:
        taken = [port for port in member.ports if not port.is_free]
        if not taken:
            return ok(*seen)
        return warns(
            f"port {taken[0].number}, which the cluster needs for {taken[0].what}, is taken",
            "another program listens there, or an earlier node that was not ended",
            f"sudo ss -ltnp 'sport = :{taken[0].number}'      # who it is; an earlier node: make cluster-down",
            *seen,
        )
    closed = [port for port in member.ports if not port.listens]
    if not closed:
        return ok(*seen)
    return warns(
        f"nothing listens on port {closed[0].number}, {closed[0].what} of this node",
        "the lab runs and its Ray node does not, or not with these settings",
        "make cluster-status; then: make logs",
        *seen,
    )


def _state(listens: bool, is_free: bool) -> str:
    return "taken" if listens else "free" if is_free else "taken, and does not answer"


@check(
    "cluster.head",
    "this machine reaches the head",
    looks_at="a TCP connection to the head's port, with a limit of 3 s",
    why="If the connection is refused, nothing listens there; without an answer, a firewall drops the packets.",
    fix="`make cluster-up` on the head, or its firewall opened for this machine",
)
def head(s: Situation) -> Verdict:
    """Connect."""
    member = membership(s)
    if member is None:
        return skip(NO_CLUSTER)
    found = member.head_reach
    if found is None:
        return skip(f"the node has a network of its own ({member.network}); checked inside the lab")
    if member.role == HEAD and not member.is_up:
        return skip("this machine is the head, and its lab does not run")
    host, port = member.head_host, member.head_port
    if found.is_open:
        return ok(found.sentence(host, port))
    what = f"the head of the cluster at {member.head} cannot be reached"
    if found.status == SILENT:
        return warns(what, found.sentence(host, port), firewall(port, member.address, "the head"))
    fix = "on the head: make cluster-status; then: make cluster-up"
    return warns(what, found.sentence(host, port), fix if found.status == "refused" else f"ping -c 3 {host}; {fix}")


def firewall(first: int, source: str, where: str) -> str:
    """Return what opens the firewall of a machine (`where`, whose CLUSTER_PORT is `first`) for an address."""
    source = source or "ADDRESS-OF-THIS-MACHINE"
    spans = [f"{low}-{high}" for low, high in table_spans(first)]
    family = "ipv6" if ":" in source else "ipv4"
    ports = ",".join(span.replace("-", ":") for span in spans)
    rules = " ".join(
        f'--add-rich-rule=\'rule family="{family}" source address="{source}" port port="{span}" protocol="tcp" accept\''
        for span in spans
    )
    return (
        f"# on {where}, one of:\n"
        f"sudo ufw allow from {source} to any port {ports} proto tcp\n"
        f"sudo firewall-cmd --permanent {rules} && sudo firewall-cmd --reload"
    )


@check(
    "cluster.node",
    "this lab's Ray node is alive in the cluster",
    sides=(CONTAINER,),
    looks_at="the nodes that Ray's head lists, asked in a child process with a time limit",
    why="A lab keeps running without its node: jobs then never come here, and nothing reports this.",
    fix="what the finding suggests, mostly `make logs`, then `make cluster-up` or `make cluster-join`",
)
def node(s: Situation) -> Verdict:
    """Look for this machine among the living."""
    member = membership(s)
    if member is None:
        return skip(NO_CLUSTER)
    if member.failure:
        return Verdict(WARNS, (), member.failure)
    found = s.once(cluster_seen)
    if problem := found.get("problem"):
        return warns(problem["what"], problem["why"], problem["fix"])
    seen = [
        f"{each['hostname']} {each['address']}: {'alive' if each['is_alive'] else 'lost'}" for each in found["nodes"]
    ]
    if any(each["is_here"] and each["is_alive"] for each in found["nodes"]):
        return ok(*seen)
    return warns(
        "this lab's Ray node is not among the living nodes of the cluster",
        "it never joined, it has exited, or the head has declared it dead",
        f"make logs; then: make {_again(member)}",
        *seen,
    )
