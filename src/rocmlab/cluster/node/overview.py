"""An overview of the cluster: its nodes, their descriptions, and what does not fit together."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from typing import Any

from rocmlab.base.errors import RocmlabError
from rocmlab.cluster.node import probe, record, session
from rocmlab.devices import is_simulated, system_root

LOOK_SECONDS = 60.0
CLOCK_SECONDS = 5.0  # for one node's answer
MAX_OFFSET_SECONDS = 1.0  # then times in journals and logs of different nodes cannot be compared
MUST_FIT = {"rocmlab": "rocmlab", "rocm": "ROCm", "python": "Python"}
Facts = dict[str, Any]


def look(share: str | None = None, timeout_seconds: float = LOOK_SECONDS) -> Facts:
    """Ask all nodes and return what there is to know, ready for JSON.

    Raises:
        RocmlabError: there is no cluster; see `session.connect`.
    """
    session.connect()
    answers = probe.on_every_node(probe.facts, share, timeout_seconds=timeout_seconds)
    queried = [node for node in session.nodes() if node.is_alive or node.id in answers]
    clocks = probe.clocks([node for node in queried if isinstance(answers.get(node.id), dict)], CLOCK_SECONDS)
    nodes = [_node(node, answers.get(node.id), clocks.get(node.id)) for node in queried]
    found = record.here()
    return {
        "head": found[0].head if found else os.environ.get("RAY_ADDRESS"),
        "is_head": bool(found and found[0].is_head),
        "simulated": is_simulated(system_root()) or any(node["simulated"] for node in nodes),
        "time_seconds": time.time(),
        "nodes": nodes,
        "warnings": warnings(nodes),
    }


def _node(node: session.Node, told: object, clock: tuple[float, float] | None) -> Facts:
    """Return one node; what it did not report is None."""
    facts: Mapping[str, Any] = told if isinstance(told, dict) else {}
    problem = told.problem if isinstance(told, RocmlabError) else None
    names = ("devices", "leases", "tasks", "versions", "share", "free_bytes", "problems")
    return {
        "id": node.id,
        "hostname": node.labels.get("rocmlab.hostname") or node.hostname,
        "address": node.address,
        "is_head": node.is_head,
        "is_alive": node.is_alive,
        "gpus": node.gpus,
        "cpus": node.cpus,
        "resources": dict(node.resources),
        "labels": dict(node.labels),
        "simulated": node.labels.get("rocmlab.simulated") == "true",
        **{name: facts.get(name) for name in names},
        "clock_offset_seconds": clock and clock[0],  # how far its clock is ahead of this machine's
        "clock_uncertainty_seconds": clock and clock[1],
        "problem": problem and dict(vars(problem)),
    }


def warnings(nodes: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return what does not fit from node to node, a sentence each."""
    found = []
    for name, shown in MUST_FIT.items():
        where: dict[str, list[str]] = {}
        for node in nodes:
            if (version := (node["versions"] or {}).get(name)) is not None:
                where.setdefault(version, []).append(f"{node['hostname']} ({node['address']})")
        if len(where) > 1:
            listed = "; ".join(f"{version} on {', '.join(hosts)}" for version, hosts in sorted(where.items()))
            found.append(f"{shown} differs: {listed}: the same notebook may give other results")
    for node in nodes:
        offset, exact = node["clock_offset_seconds"], node["clock_uncertainty_seconds"]
        if offset is not None and abs(offset) - exact > MAX_OFFSET_SECONDS:
            way = "ahead of" if offset > 0 else "behind"
            found.append(
                f"the clock of {node['hostname']} ({node['address']}) is {abs(offset):.1f} s {way} this machine's: "
                "timedatectl set-ntp true, there or here"
            )
    return found


def busy(nodes: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return what runs on these nodes, a line each: Ray's tasks, and notebooks that hold a GPU.

    A node that did not answer may run anything, so it also has a line.
    """
    lines = []
    for node in nodes:
        where = f"{node['hostname']} ({node['address']})"
        if node["is_alive"] and node["problem"]:
            lines.append(f"what {where} runs is not known: {node['problem']['what']}")
        lines += [f"{task} on {where}" for task in node["tasks"] or ()]
        for gpu in node["leases"] or ():
            if lease := gpu["lease"]:
                lines.append(f"{lease['notebook'] or 'an unknown notebook'} on GPU {gpu['index']} of {where}")
    return lines
