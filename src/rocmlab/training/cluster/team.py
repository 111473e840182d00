"""The workers that a training can have: as many as there are GPUs of one kind in the cluster, or parts of the CPU.

Pure: the nodes are data here.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from rocmlab.base.errors import RocmlabError
from rocmlab.cluster.node.session import Node

GFX = re.compile(r"gfx[0-9a-f]+")  # the resource by which a node reports the kind of its AMD GPUs
CHOICES = ("auto", "gpu", "cpu")


@dataclass(frozen=True)
class Team:
    """How many workers a training has, and what each requests from Ray."""

    workers: int
    is_gpu: bool
    kind: str | None  # gfx of all GPUs; None: the nodes do not report it (NVIDIA), or the CPU
    hosts: tuple[str, ...]  # names of the nodes that can take part

    def resources(self) -> dict[str, float]:
        """Return what one worker requests from Ray: a GPU of the kind, or a core."""
        if not self.is_gpu:
            return {"CPU": 1}
        return {"GPU": 1, self.kind: 1} if self.kind else {"GPU": 1}

    def alone(self) -> Team:
        """Return the team of one worker on the same kind of device."""
        return replace(self, workers=1)

    def sentence(self) -> str:
        """Return the team as one line."""
        what = f"GPU ({self.kind})" if self.kind else "GPU" if self.is_gpu else "part of the CPU"
        return f"{self.workers} workers, each with a {what}, on {len(self.hosts)} node(s): {', '.join(self.hosts)}"


def team(nodes: Sequence[Node], device: str = "auto", workers: int = 2) -> Team:
    """Return the largest team of one kind that these nodes can give.

    Args:
        nodes: those that are not alive do not count.
        device: `auto`: all GPUs of one kind, or the CPU if there are fewer than two; `gpu`; `cpu`.
        workers: how many on the CPU.

    Raises:
        RocmlabError: `gpu`, and there are no two of one kind; more workers than cores; or an argument is unknown.
    """
    if device not in CHOICES:
        raise RocmlabError(f"device={device!r} is unknown", "", f"use one of: {', '.join(CHOICES)}")
    living = [node for node in nodes if node.is_alive]
    counts = kinds(living)
    kind = max(counts, key=lambda name: counts[name], default=None)
    count = counts.get(kind, 0)
    if device != "cpu" and count >= 2:
        return Team(count, True, kind, _hosts(living, kind or "GPU"))
    if device == "gpu":
        raise RocmlabError(
            f'device="gpu", but the cluster has {count} GPU(s) of one kind',
            "work is shared between two or more GPUs of one kind",
            'join more machines (make cluster-join), or use device="auto" for workers on the CPU',
        )
    cores = int(sum(node.resources.get("CPU", 0) for node in living))
    if not 1 <= workers <= cores:
        raise RocmlabError(
            f"workers={workers}, but the cluster has {cores} cores", "each worker needs one", "request fewer workers"
        )
    return Team(workers, False, None, _hosts(living, "CPU"))


def kinds(nodes: Sequence[Node]) -> dict[str | None, int]:
    """Return how many GPUs of each gfx the nodes have; under None those whose node does not report the kind."""
    counts: dict[str | None, int] = {}
    for node in nodes:
        known = {name: int(count) for name, count in node.resources.items() if GFX.fullmatch(name)}
        for name, count in known.items():
            counts[name] = counts.get(name, 0) + count
        rest = int(node.resources.get("GPU", 0)) - sum(known.values())
        if rest > 0:
            counts[None] = counts.get(None, 0) + rest
    return counts


def masks(granted: Sequence[tuple[str, Sequence[str]]]) -> list[tuple[int, ...]]:
    """Return for each worker, of its node and HIP indices, the indices of all workers on its node, ascending."""
    union: dict[str, set[int]] = {}
    for node, gpus in granted:
        union.setdefault(node, set()).update(int(gpu) for gpu in gpus)
    return [tuple(sorted(union[node])) for node, _gpus in granted]


def _hosts(nodes: Sequence[Node], resource: str) -> tuple[str, ...]:
    return tuple(node.hostname for node in nodes if node.resources.get(resource, 0) >= 1)
