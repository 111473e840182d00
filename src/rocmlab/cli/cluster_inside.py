"""What `rocmlab cluster` does inside the lab, where Ray is: node, wait, busy, and status."""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from rocmlab.base.errors import RocmlabError

WAIT_SECONDS = 180.0


def main(chosen: argparse.Namespace) -> int:
    """Run one command inside the lab."""
    if chosen.what in ("wait", "busy"):
        return _answer(_ready if chosen.what == "wait" else _running)
    return (_node if chosen.what == "node" else _status)(chosen)


def _node(chosen: argparse.Namespace) -> int:
    from rocmlab.cluster.node import ray_node, serving

    wanted = ray_node.plan(os.environ, folder=chosen.folder, cpus=chosen.cpus, store_bytes=chosen.store_bytes)
    return serving.serve(wanted, os.environ, _say)


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _answer(work: Any) -> int:  # noqa: ANN401
    """Print what `work` returns, or the error, as one line of JSON: the host's command shows it, and takes no other."""
    try:
        print(json.dumps(work()))
    except RocmlabError as err:
        print(json.dumps(err.problem.as_dict()))
    return 0


def _ready() -> dict[str, Any]:
    """Return the record of the lab's node when it is up; raise RocmlabError if it does not come up."""
    from rocmlab.cluster.node import ports, ray_node, record

    folder = ray_node.usual_folder(ports.parse(os.environ.get("CLUSTER_PORT") or str(ports.FIRST)))
    deadline = time.monotonic() + WAIT_SECONDS
    while time.monotonic() < deadline:
        found = record.read(folder / "node.json")
        if found and found.failure:
            raise RocmlabError.of(found.failure)
        if found and found.state == record.READY and found.is_alive:
            return asdict(found)
        time.sleep(0.2)
    raise RocmlabError(
        "this machine's Ray node is not up",
        f"it did not report within {WAIT_SECONDS:g} s",
        "make logs shows what it does",
    )


def _running() -> list[str]:
    """Return what would be lost if this node left; nothing where the cluster is gone already."""
    from rocmlab.cluster.node import overview, record

    found = record.here()
    if found is None:
        return []
    try:
        seen = overview.look(os.environ.get("ROCMLAB_SHARE"))
    except RocmlabError:
        return []
    nodes = [node for node in seen["nodes"] if found[0].is_head or node["address"] == found[0].address]
    return overview.busy(nodes)


def _status(chosen: argparse.Namespace) -> int:
    """Print the nodes; exit code 0 if all answer, 1 if one does not."""
    from rocmlab.cluster.node import overview

    seen = overview.look(os.environ.get("ROCMLAB_SHARE"))
    print(json.dumps(seen, indent=1) if chosen.json else "\n".join(lines(seen)))
    return 1 if any(node["problem"] for node in seen["nodes"]) else 0


def lines(seen: Mapping[str, Any]) -> list[str]:
    """Return the cluster as text."""
    nodes = seen["nodes"]
    gpus = sum(node["gpus"] for node in nodes)
    found = ["SIMULATED: not the GPUs of these machines"] if seen["simulated"] else []
    count = f"{len(nodes)} node{'s' * (len(nodes) != 1)}, {gpus} GPU{'s' * (gpus != 1)}"
    found.append(f"cluster at {seen['head']}: {count}")
    for node in nodes:
        found += ["", *_node_lines(node)]
    for warning in seen["warnings"]:
        found += ["", f"warning: {warning}"]
    return found


def _node_lines(node: Mapping[str, Any]) -> list[str]:
    versions = node["versions"] or {}
    named = {"rocmlab": "rocmlab", "ray": "Ray", "python": "Python", "rocm": "ROCm", "driver": ""}
    listed = "  ".join(f"{shown} {versions[name]}".strip() for name, shown in named.items() if versions.get(name))
    found = [f"{node['hostname']}  {node['address']}{'  (head)' * node['is_head']}", f"  {listed}"] if listed else []
    found = found or [f"{node['hostname']}  {node['address']}{'  (head)' * node['is_head']}"]
    if problem := node["problem"]:
        return [*found, f"  {problem['what']}", f"    why: {problem['why']}", f"    fix: {problem['fix']}"]
    held = {(each["pci_address"], each["partition"]): each for each in node["leases"] or ()}
    for gpu in node["devices"] or ():
        if gpu["backend"] != "cpu":
            found.append(f"  {_gpu_line(gpu, held.get((gpu['pci_address'], gpu['partition'])))}")
    found += [] if node["gpus"] else [f"  no GPU; {node['cpus']} CPUs"]
    found += [f"  runs {task}" for task in node["tasks"] or ()]
    if node["clock_offset_seconds"] is not None:
        found.append(f"  clock {node['clock_offset_seconds']:+.3f} s, ±{node['clock_uncertainty_seconds']:.3f}")
    return [*found, *(f"  not known: {problem}" for problem in node["problems"] or ())]


def _gpu_line(gpu: Mapping[str, Any], state: Mapping[str, Any] | None) -> str:
    number = "-" if gpu["index"] is None else gpu["index"]
    parts = [f"GPU {number}", gpu["gfx"], gpu["name"]]
    if not gpu["is_usable"]:
        parts.append(f"not used: {gpu['why_not']}")
    elif state and state["lease"]:
        lease = state["lease"]
        parts.append(
            f"leased to {lease['notebook'] or 'an unknown notebook'} ({lease['owner']}, process {lease['pid']})"
        )
    elif state and state["foreign"]:
        parts.append(
            "used without a lease by " + ", ".join(f"{each['name']} ({each['pid']})" for each in state["foreign"])
        )
    elif state:
        parts.append("free")
    return "  ".join(str(part) for part in parts if part)
