"""The nodes of a cluster by what they have, and how many jobs each is kept for: a choice never looks at all of them."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from itertools import islice

from rocmlab.cluster.executor.nodes import RemoteNode
from rocmlab.devices import Device
from rocmlab.runs.jobs import Resources
from rocmlab.runs.scheduling.pool import kind_of

MAX_NAMED_NODES = 64  # in what is sent to Ray with one job; the longest list of a cluster of as many nodes is complete

Features = tuple[int, int, bool]  # how many GPUs, the least memory of one, whether all are of one product


class Kind:
    """Nodes that offer the same: as Ray gives out any GPU of a node, what counts is what each of its GPUs has."""

    def __init__(self, features: Features) -> None:
        self.gpus, self.memory, self.is_alike = features
        self.nodes: list[str] = []
        self.open: OrderedDict[str, None] = OrderedDict()  # kept for no job; chosen the longest time ago comes first
        self.levels = [self.open]  # nodes by the number of jobs that they are kept for

    def fits(self, resources: Resources, count: int) -> bool:
        """Return whether any of a node's GPUs would do for a job that gets this number of them."""
        is_alike = resources.is_mixed or count == 1 or self.is_alike
        return self.gpus >= max(1, count) and self.memory >= (resources.vram_bytes or 0) and is_alike


class NodePool:
    """The nodes that get jobs."""

    def __init__(self, nodes: Iterable[RemoteNode]) -> None:
        """Begin with all nodes open."""
        by_features: dict[Features, Kind] = {}
        self._kinds: dict[str, Kind] = {}  # by node
        self._kept: dict[str, int] = {}  # by node, for how many jobs
        for node in nodes:
            features = _features(node.gpus)
            kind = self._kinds[node.id] = by_features.setdefault(features, Kind(features))
            kind.nodes.append(node.id)
            kind.open[node.id] = None
        self.kinds: Sequence[Kind] = list(by_features.values())

    def keep(self, node: str, jobs: int = 1) -> None:
        """Keep a node for one more job; for one less with `jobs=-1`. A node that has left is skipped."""
        if (kind := self._kinds.get(node)) is None:
            return
        before = self._kept.get(node, 0)
        now = before + jobs
        if now == len(kind.levels):
            kind.levels.append(OrderedDict())
        del kind.levels[before][node]
        kind.levels[now][node] = None
        self._kept[node] = now
        if not now:
            del self._kept[node]

    def least_kept(self, kinds: Sequence[Kind], bad: str | None) -> str:
        """Return the node of these kinds that is kept for the fewest jobs; a bad one only if there is no other."""
        for level in range(max(len(kind.levels) for kind in kinds)):
            for kind in kinds:
                nodes = kind.levels[level] if level < len(kind.levels) else ()
                if found := next((node for node in nodes if node != bad), None):
                    return found
        assert bad is not None
        return bad

    def closed(self, kinds: Sequence[Kind], bad: str | None) -> list[str] | None:
        """Return the nodes to which a job for these kinds may not go; None if they are too many to be named."""
        others = [kind for kind in self.kinds if kind not in kinds]
        if sum(len(kind.nodes) for kind in others) + len(self._kept) >= MAX_NAMED_NODES:
            return None
        found = dict.fromkeys(node for kind in others for node in kind.nodes) | dict.fromkeys(self._kept)
        if bad is not None:
            found[bad] = None
        return list(found)

    def open(self, kinds: Sequence[Kind], bad: str | None) -> list[str]:
        """Return open nodes of these kinds, all or, of many, others each time."""
        with_open = [kind for kind in kinds if kind.open]
        total = sum(len(kind.open) for kind in with_open)
        found: list[str] = []
        for kind in with_open:
            share = len(kind.open) if total <= MAX_NAMED_NODES else max(1, MAX_NAMED_NODES // len(with_open))
            chosen = list(islice(kind.open, share))
            if share < len(kind.open):
                for node in chosen:
                    kind.open.move_to_end(node)
            found += chosen
        return [node for node in found if node != bad] if bad else found

    def has_open(self, kinds: Sequence[Kind], bad: str | None) -> bool:
        """Return whether a node of these kinds is open."""
        return any(len(kind.open) > (bad in kind.open) for kind in kinds)


def _features(gpus: Sequence[Device]) -> Features:
    return len(gpus), min((gpu.memory_bytes or 0 for gpu in gpus), default=0), len(set(map(kind_of, gpus))) == 1
