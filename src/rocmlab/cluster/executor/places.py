"""Where the jobs of a run on a cluster may go. Which node and GPUs each gets is Ray's choice, within what is set here.

Jobs are given to Ray in a window, about twice what it can run: enough that no GPU waits for the next, and few enough
that a hundred thousand jobs are no burden. Ray does not keep GPUs free for a job that wants several of one node, so
a node is chosen for it here, and jobs that come later stay away from that node until it has begun.

Ray gives out any of a node's GPUs. So a node whose GPUs differ is given only jobs for which each of them would do.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from rocmlab.base import formatting
from rocmlab.base.errors import Problem, RocmlabError
from rocmlab.cluster.executor.node_pool import Kind, NodePool
from rocmlab.cluster.executor.nodes import RemoteNode
from rocmlab.devices import product_names
from rocmlab.runs.jobs import Resources
from rocmlab.runs.scheduling.place import Place
from rocmlab.runs.scheduling.placement import gigabytes
from rocmlab.runs.scheduling.scheduler import CPU, Demand, Group, Scheduler

WINDOW = 2  # times what can run at the same time


@dataclass(eq=False)
class RemotePlace(Place):
    """What one job gets; its devices are not known before it has begun."""

    node_id: str | None = None
    pinned: str | None = None  # the only node that it may go to
    among: tuple[str, ...] = ()  # the nodes that it may go to; empty: any
    never: tuple[str, ...] = ()  # the nodes that it may not go to


class ClusterPlaces(Scheduler):
    """The GPUs of a cluster and one place for jobs without a GPU on each node."""

    def __init__(self, nodes: Sequence[RemoteNode], gpus: str | None = None, *, is_mixed: bool = False) -> None:
        """Begin with what the cluster has now; `gpus` is `--gpus`: all (or None), none, or how many at the same time.

        Raises:
            RocmlabError: no node can be used, or the GPUs are not available.
        """
        super().__init__(is_mixed=is_mixed)
        self._limit = _limit(gpus)
        self._has_gpus = False  # it had some, at any time
        self._largest_node = 0  # how many GPUs one node had, at any time
        self._out: Counter[Group] = Counter()  # places without a GPU by `CPU`, and GPUs by 0, that were given out
        self._reserved: dict[RemotePlace, str] = {}  # nodes for jobs with several GPUs that have not begun
        self.nodes: dict[str, RemoteNode] = {}
        self.refused: dict[str, RemoteNode] = {}
        self.update(nodes)
        if not self.nodes:
            _refuse(list(self.refused.values()))
        if self._limit and self._limit > len(self.gpus):
            raise RocmlabError(
                f"--gpus {gpus} asks for {formatting.plural(self._limit, 'GPU')}",
                f"the cluster has {len(self.gpus) or 'none'}",
                "--gpus all, or join more machines: make cluster-join",
            )

    def update(self, nodes: Sequence[RemoteNode]) -> None:
        """Take what the cluster has now: nodes come and go."""
        self.nodes = {node.id: node for node in nodes if node.problem is None}
        self.refused = {node.id: node for node in nodes if node.problem is not None}
        self.gpus = () if self._limit == 0 else tuple(gpu for node in self.nodes.values() for gpu in node.gpus)
        self._has_gpus |= bool(self.gpus)
        counts = [len(node.gpus) for node in self.nodes.values()] if self.gpus else []
        self._largest_node = max([self._largest_node, *counts])
        self.count = max(1, min(self._limit or len(self.gpus), len(self.gpus)) if self.gpus else len(self.nodes))
        self._demands.clear()
        self._kinds: dict[Demand, list[Kind]] = {}
        self._pool = NodePool(self.nodes.values())
        for node in self._reserved.values():
            self._pool.keep(node)

    def begun(self, place: RemotePlace) -> None:
        """Note that a job has its GPUs: others may be given to the node that was kept for it."""
        if node := self._reserved.pop(place, None):
            self._pool.keep(node, -1)

    def release(self, place: Place) -> None:
        """Have what a job had free again."""
        if isinstance(place, RemotePlace):
            self.begun(place)
        self._out[0 if place.count else CPU] -= max(1, place.count)

    def _resolve(self, resources: Resources) -> Demand:
        count = self._count(resources)
        kinds = [number for number, kind in enumerate(self._pool.kinds) if count and kind.fits(resources, count)]
        shortage = None
        if resources.takes_gpus_from_ray:
            shortage = "Ray gives its workers GPUs"
        elif resources.min_gpus is not None and not count:
            have = formatting.plural(self._largest_node, "GPU") if self._largest_node else "none"
            shortage = f"it needs {formatting.plural(resources.min_gpus, 'GPU')} on one node, the largest has {have}"
        can_start = bool(kinds) if count else resources.gpus != "all" or shortage is not None
        problem = None if can_start else self._problem(resources, count)
        demand = Demand(resources, count, frozenset(kinds if count else [CPU]), problem, shortage)
        self._kinds[demand] = [self._pool.kinds[number] for number in kinds]
        return demand

    def _count(self, resources: Resources) -> int:
        """Return how many GPUs a job gets; 0 is a place without one. `all` are all of one node.

        Once the run has seen a GPU, its jobs wait for one where none is left: they never fall back to a processor.
        A job that needs more GPUs than a node ever had, and a notebook whose workers Ray places, begin without one.
        """
        if resources.takes_gpus_from_ray:
            return 0
        if resources.min_gpus is not None and (not self._has_gpus or self._largest_node < resources.min_gpus):
            return 0
        if resources.gpus == "all":
            fewest = resources.min_gpus or 1
            counts = (kind.gpus for kind in self._pool.kinds if kind.fits(resources, fewest))
            return max(counts, default=fewest if self._has_gpus else 0)
        return int(self._has_gpus) if resources.gpus is None else resources.gpus

    def _problem(self, resources: Resources, wanted: int) -> Problem:
        """Return why a job could never be placed on the nodes that there are."""
        if self._limit and wanted > self._limit:
            return Problem(
                f"it asks for {formatting.plural(wanted, 'GPU')}", "--gpus allows fewer", "allow more: --gpus all"
            )
        requested = "all GPUs of a node" if resources.gpus == "all" else formatting.plural(wanted, "GPU")
        if resources.vram_bytes:
            requested += f" with {gigabytes(resources.vram_bytes)} of VRAM each"
        have = "; ".join(f"{node.name}: {product_names(node.gpus) or 'no GPU'}" for node in self.nodes.values())
        return Problem(
            f"it asks for {requested}, of one product and on one node",
            f"no node has them, or one whose GPUs differ has: {formatting.short(have, 400)}",
            "ask for less, let it mix products (--mixed), or join a machine that has them: make cluster-join",
        )

    def _available(self, requested: frozenset[Resources]) -> set[Group]:
        kinds = range(len(self._pool.kinds)) if self._is_in_window(1) else ()
        return {*kinds, *((CPU,) if self._is_in_window(0) else ())}

    def _kept_for(self, demand: Demand) -> frozenset[Group]:
        """Keep the window for a job that wants more GPUs than it has room for: small ones would fill it for ever."""
        return frozenset() if self._is_in_window(demand.count) else frozenset(range(len(self._pool.kinds)))

    def _is_in_window(self, count: int) -> bool:
        if not count:
            return self._out[CPU] < WINDOW * len(self.nodes)
        most = self._limit or WINDOW * len(self.gpus)
        return not self._out[0] or self._out[0] + count <= most

    def _place(self, demand: Demand, groups: set[Group], last: Place | None) -> RemotePlace | None:
        if not self._is_in_window(demand.count):
            return None
        kinds = self._kinds[demand]
        bad = last.node_id if isinstance(last, RemotePlace) and last.node_id in self.nodes else None
        if bad and sum(len(kind.nodes) for kind in kinds or self._pool.kinds) == 1:
            bad = None  # it is better than none
        if demand.count == 1 and not self._pool.has_open(kinds, bad):
            return None  # a job that has waited longer has its turn first
        self._out[0 if demand.count else CPU] += max(1, demand.count)
        place = RemotePlace((), 1, None, demand.resources, demand.count)
        self._choose_nodes(place, kinds, bad)
        return place

    def _choose_nodes(self, place: RemotePlace, kinds: Sequence[Kind], bad: str | None) -> None:
        """Set the nodes to which a job may go."""
        closed = None
        if not place.count:
            closed = [bad] if bad else []
        elif place.count > 1:
            place.pinned = self._pool.least_kept(kinds, bad)
            self._reserved[place] = place.pinned
            self._pool.keep(place.pinned)
            return
        elif not place.resources.vram_bytes:
            closed = self._pool.closed(kinds, bad)
        if closed is None:
            place.among = tuple(self._pool.open(kinds, bad))
        else:
            place.never = (*closed, *self.refused)


def _limit(gpus: str | None) -> int | None:
    """Return how many GPUs may be used at the same time; None: all of them."""
    if gpus in (None, "all"):
        return None
    if gpus == "none":
        return 0
    if gpus and gpus.isascii() and gpus.isdecimal() and int(gpus):
        return int(gpus)
    raise RocmlabError(
        f"--gpus {gpus} with --engine ray",
        "numbers and addresses name GPUs of one machine, and a cluster has several",
        "--gpus all, none, or how many at the same time; each machine chooses its own: make cluster-join GPUS=0,2",
    )


def _refuse(nodes: Sequence[RemoteNode]) -> None:
    problems = {node.problem: node.name for node in nodes if node.problem}
    if not problems:
        raise RocmlabError("the cluster has no node that can be given jobs", "Ray lists none", "make cluster-status")
    raise RocmlabError(
        "no node of the cluster can be used",
        "\n".join(f"{name}: {problem.what}: {problem.why}" for problem, name in problems.items()),
        "\n".join(dict.fromkeys(problem.fix for problem in problems)),
    )
