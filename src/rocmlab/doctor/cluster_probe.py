"""Describe all nodes of a cluster as one line of JSON; the lab's doctor runs `python -m rocmlab.doctor.cluster_probe`.

A process of its own, because Ray's client hangs, and ends its process, when the head is gone.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from rocmlab.base import reach
from rocmlab.base.errors import RocmlabError

ASK_SECONDS = 30.0  # for the first question; each node starts a process for it
CLOCK_SECONDS = 10.0
CLOCK_ROUNDS = 3
LINK_SECONDS = 3.0
LEFT = (1, 4)  # of NodeDeathInfo in Ray's gcs.proto: it was stopped, or drained; others died
HEAD = "node:__internal_head__"  # Ray's resource of the head alone

Row = dict[str, Any]
Target = tuple[str, int, str]  # host, port, what listens there


def main() -> int:
    """Ask, and print."""
    told = os.dup(1)
    os.dup2(2, 1)  # whatever Ray prints is not the answer
    try:
        found = look(os.environ)
    except RocmlabError as err:
        found = {"problem": err.problem.as_dict()}
    except Exception as err:
        why = f"{type(err).__name__}: {err}"
        found = {"problem": {"what": "the cluster cannot be queried", "why": why, "fix": "make cluster-status"}}
    os.write(told, f"{json.dumps(found)}\n".encode())
    os._exit(0)  # Ray's client may take seconds to end, and is needed no more


def look(environment: Mapping[str, str]) -> Row:
    """Return every node with its answer.

    Raises:
        RocmlabError: there is no cluster that answers.
    """
    from rocmlab.cluster.node import probe, session

    session.connect()
    import ray

    listed = ray.nodes()
    here = ray.get_runtime_context().get_node_id()
    share = environment.get("ROCMLAB_SHARE", "")
    with _nonce(share) as name:
        answers = probe.on_every_node(answer, share or None, name or None, targets(listed), timeout_seconds=ASK_SECONDS)
    clocks = [_round(probe.on_every_node) for _ in range(CLOCK_ROUNDS)]
    return {"share": share, "nodes": [node(one, answers, clocks, here) for one in listed]}


@contextlib.contextmanager
def _nonce(share: str) -> Iterator[str]:
    """Write a file into the share, if there is one, and take it away again."""
    name = f".rocmlab-doctor-{secrets.token_hex(8)}"
    path = Path(share) / name
    if not share or not path.parent.is_dir():
        yield ""
        return
    try:
        path.write_text(name, encoding="ascii")
        yield name
    except OSError:
        yield ""
    finally:
        with contextlib.suppress(OSError):
            path.unlink(missing_ok=True)


def targets(listed: Sequence[Row]) -> list[Target]:
    """Return what every node has to reach of the living ones."""
    return [
        (one["NodeManagerAddress"], one[key], what)
        for one in listed
        if one["Alive"]
        for key, what in (("NodeManagerPort", "node manager"), ("ObjectManagerPort", "object manager"))
    ]


def answer(share: str | None, nonce: str | None, to_reach: Sequence[Target]) -> Row:
    """Return the description of one node and the nodes that it does not reach; runs on that node."""
    from rocmlab.cluster.node import probe

    found: list[Row] = []

    def one(host: str, port: int, what: str) -> None:
        got = reach.tcp(host, port, LINK_SECONDS)
        if not got.is_open:
            link = {"host": host, "port": port, "what": what}
            found.append({**link, "status": got.status, "said": got.sentence(host, port)})

    threads = [threading.Thread(target=one, args=each, daemon=True) for each in to_reach]
    for thread in threads:
        thread.start()
    facts = dict(probe.facts(share, nonce))
    for thread in threads:
        thread.join(LINK_SECONDS + 1)
    return {**facts, "unreachable": sorted(found, key=lambda each: (each["host"], each["port"]))}


def clock_seconds() -> float:
    """Return the time; runs on each node."""
    return time.time()


def _round(on_every_node: Any) -> Row:  # noqa: ANN401
    """Return every node's clock, and this one's before and after."""
    before = time.time()
    answers = on_every_node(clock_seconds, timeout_seconds=CLOCK_SECONDS)
    return {"before": before, "after": time.time(), "answers": answers}


def offset(rounds: Sequence[Row], id: str) -> Row | None:
    """Return by how many seconds a node's clock is ahead of this one's, at least and at most; None if unknown."""
    known = [each for each in rounds if isinstance(each["answers"].get(id), float)]
    if not known:
        return None
    least = max(each["answers"][id] - each["after"] for each in known)
    most = min(each["answers"][id] - each["before"] for each in known)
    return {"least": min(least, most), "most": max(least, most)}  # a clock that was set meanwhile crosses them


def node(one: Row, answers: Mapping[str, Any], clocks: Sequence[Row], here: str) -> Row:
    """Return one node as the checks read it."""
    id, is_alive = one["NodeID"], bool(one["Alive"])
    answer = answers.get(id)
    facts = answer if isinstance(answer, dict) else {}
    return {
        "id": id,
        "hostname": one["NodeManagerHostname"],
        "address": one["NodeManagerAddress"],
        "port": one["NodeManagerPort"],
        "is_alive": is_alive,
        "is_head": HEAD in one["Resources"],
        "is_here": id == here,
        "has_left": not is_alive and one.get("DeathReason") in LEFT,
        "death": "" if is_alive else str(one.get("DeathReasonMessage") or ""),
        "problem": _problem(answer) if is_alive and not facts else None,
        "clock": offset(clocks, id),
        "versions": facts.get("versions", {}),
        "sees_share": facts.get("share_is_shared"),
        "free_bytes": facts.get("free_bytes"),
        "devices": [device for device in facts.get("devices") or [] if device.get("backend") != "cpu"],
        "unreachable": facts.get("unreachable", []),
    }


def _problem(answer: object) -> Row:
    if isinstance(answer, RocmlabError):
        return answer.problem.as_dict()
    return {"what": "it was not queried", "why": "it joined a moment ago", "fix": "make doctor      # again"}


if __name__ == "__main__":
    sys.exit(main())
