"""Where the jobs of a run on a cluster may go. Which node and GPUs each gets is Ray's choice, within what is said here.

Jobs are given to Ray in a window, about twice what it can run at once: enough that no GPU waits for the next, and few
enough that a hundred thousand jobs are no burden. Ray does not keep GPUs free for a job that wants several of one node,
so a node is chosen for it here, and jobs that come later stay away from that node until it has begun.

Ray gives out any of a node's GPUs. So a node whose GPUs differ is given only jobs for which each of them would do.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from rocmlab.base import formatting
from rocmlab.base.errors import Problem, RocmlabError
from rocmlab.cluster.executor.nodes import RemoteNode
from rocmlab.devices import Device, product_names
from rocmlab.runs.jobs import Job
from rocmlab.runs.scheduling.outlook import Ask, Waiting
from rocmlab.runs.scheduling.placement import Place, Slots, gigabytes
from rocmlab.runs.scheduling.pool import Demand, memory_bytes

WINDOW = 2  # times what can run at once


@dataclass(eq=False)
class RemotePlace(Place):
    """What one job gets; its devices are not known before it has begun."""

    node_id: str | None = None
    pinned: str | None = None  # the only node that it may go to
    among: tuple[str, ...] = ()  # the nodes that it may go to; empty: any
    never: tuple[str, ...] = ()  # the nodes that it may not go to


class ClusterPlaces(Slots):
    """The GPUs of a cluster and one place for jobs without a GPU on each node."""

    def __init__(self, nodes: Sequence[RemoteNode], gpus: str | None = None, *, is_mixed: bool = False) -> None:
        """Begin with what the cluster has now.

        Args:
            nodes: of the cluster.
            gpus: `--gpus`: all (or None), none, or how many at once.
            is_mixed: whether every job may get GPUs of different products.

        Raises:
            RocmlabError: no node can be used, or the GPUs cannot be had.
        """
        self._limit = _limit(gpus)
        self._has_gpus = False  # it had some, at any time
        self._largest_node = 0  # how many GPUs one node had, at any time
        self._is_mixed_run = is_mixed
        self._out: Counter[str] = Counter()  # GPUs, and places without one, that were given out
        self._reserved: dict[RemotePlace, str] = {}  # nodes for jobs with several GPUs that have not begun
        self._last: dict[str, RemotePlace] = {}  # by job, the place of its last attempt
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
        gpus = [] if self._limit == 0 else [gpu for node in self.nodes.values() for gpu in node.gpus]
        self._has_gpus |= bool(gpus)
        counts = [len(node.gpus) for node in self.nodes.values()] if gpus else []
        self._largest_node = max([self._largest_node, *counts])
        cpu = next((node.cpu for node in self.nodes.values()), Device("cpu", 0, "a processor", True))
        super().__init__(gpus, cpu, cores=1, is_mixed=self._is_mixed_run)
        self.count = max(1, min(self._limit or len(gpus), len(gpus)) if gpus else len(self.nodes))

    def wanted(self, job: Job) -> int:
        """Return how many GPUs a job gets; 0 is a place without one. `all` are all of one node.

        Once the run has seen a GPU, its jobs wait for one where none is left: they never fall back to a processor.
        A job that needs more GPUs than a node ever had, and a notebook whose workers Ray places, begin without one.
        """
        if job.takes_gpus_from_ray:
            return 0
        if job.min_gpus is not None and (not self._has_gpus or self._largest_node < job.min_gpus):
            return 0
        if job.gpus == "all":
            fewest = job.min_gpus or 1
            counts = (len(node.gpus) for node in self._fitting(job, fewest))
            return max(counts, default=fewest if self._has_gpus else 0)
        return int(self._has_gpus) if job.gpus is None else job.gpus

    def shortage(self, job: Job) -> str | None:
        """Return why a job that requests all GPUs of a node gets a place without one; else None."""
        if job.takes_gpus_from_ray:
            return "Ray gives its workers GPUs"
        if job.min_gpus is None or self.wanted(job):
            return None
        have = formatting.plural(self._largest_node, "GPU") if self._largest_node else "none"
        return f"it needs {formatting.plural(job.min_gpus, 'GPU')} on one node, the largest has {have}"

    def problem(self, job: Job) -> Problem | None:
        """Return why a job could never be placed on the nodes that there are."""
        wanted = self.wanted(job)
        if (not wanted and (job.gpus != "all" or self.shortage(job))) or (wanted and self._fitting(job, wanted)):
            return None
        if self._limit and wanted > self._limit:
            return Problem(
                f"it asks for {formatting.plural(wanted, 'GPU')}", "--gpus allows fewer", "allow more: --gpus all"
            )
        asked = "all GPUs of a node" if job.gpus == "all" else formatting.plural(wanted, "GPU")
        if job.vram_bytes:
            asked += f" with {gigabytes(job.vram_bytes)} of VRAM each"
        have = "; ".join(f"{node.name}: {product_names(node.gpus) or 'no GPU'}" for node in self.nodes.values())
        return Problem(
            f"it asks for {asked}, of one product and on one node",
            f"no node has them, or one whose GPUs differ has: {formatting.short(have, 400)}",
            "ask for less, let it mix products (--mixed), or join a machine that has them: make cluster-join",
        )

    def take_one(
        self,
        waiting: Iterable[Waiting],
        asks: frozenset[Ask],
        avoid: Mapping[str, Collection[Device]],
    ) -> tuple[Job, Place] | None:
        """Return the next job that Ray should have, and its place; None if Ray has enough to do."""
        for _, job, _ in waiting:
            count = self.wanted(job)
            if not self._is_in_window(count):
                continue
            if place := self._place(job, count, is_again=job.name in avoid):
                self._out["gpu" if count else "cpu"] += max(1, count)
                self._last[job.name] = place
                return job, place
        return None

    def begun(self, place: RemotePlace) -> None:
        """Note that a job has its GPUs: others may be given to the node that was kept for it."""
        self._reserved.pop(place, None)

    def give_back(self, place: Place) -> None:
        """Take back what a job was lent."""
        if isinstance(place, RemotePlace):
            self._reserved.pop(place, None)
        self._out["gpu" if place.count else "cpu"] -= max(1, place.count)

    def _is_in_window(self, count: int) -> bool:
        if not count:
            return self._out["cpu"] < WINDOW * len(self.nodes)
        most = self._limit or WINDOW * len(self.gpus)
        return not self._out["gpu"] or self._out["gpu"] + count <= most

    def _place(self, job: Job, count: int, *, is_again: bool) -> RemotePlace | None:
        fitting = [node.id for node in (self._fitting(job, count) if count else self.nodes.values())]
        bad = self._last[job.name].node_id if is_again and job.name in self._last else None
        elsewhere = [each for each in fitting if each != bad] or fitting
        demand = Demand(job.vram_bytes, self._is_mixed_run or job.is_mixed)
        place = RemotePlace((), 1, None, demand, count)
        reserved = Counter(self._reserved.values())
        if count > 1:
            if not elsewhere:
                return None
            place.pinned = min(elsewhere, key=lambda each: reserved[each])
            self._reserved[place] = place.pinned
            return place
        open_ = [each for each in elsewhere if not (count and reserved[each])]
        if not open_:
            return None  # a job that has waited longer has its turn first
        if job.vram_bytes and count:
            place.among = tuple(open_)
        else:
            place.never = tuple(each for each in (*self.nodes, *self.refused) if each not in open_)
        return place

    def _fitting(self, job: Job, count: int) -> list[RemoteNode]:
        """Return the nodes of which any GPUs would do for a job."""
        is_mixed = self._is_mixed_run or job.is_mixed
        found = []
        for node in self.nodes.values():
            is_large = not job.vram_bytes or all((memory_bytes(gpu) or 0) >= job.vram_bytes for gpu in node.gpus)
            is_alike = is_mixed or count == 1 or len({_product(gpu) for gpu in node.gpus}) == 1
            if len(node.gpus) >= max(1, count) and is_large and is_alike:
                found.append(node)
        return found


def _product(gpu: Device) -> Hashable:
    return gpu.backend, gpu.gfx, gpu.name, gpu.vram_bytes


def _limit(gpus: str | None) -> int | None:
    """Return how many GPUs may be used at once; None: all of them."""
    if gpus in (None, "all"):
        return None
    if gpus == "none":
        return 0
    if gpus and gpus.isascii() and gpus.isdecimal() and int(gpus):
        return int(gpus)
    raise RocmlabError(
        f"--gpus {gpus} with --engine ray",
        "numbers and addresses name GPUs of one machine, and a cluster has several",
        "--gpus all, none, or how many at once; each machine chooses its own: make cluster-join GPUS=0,2",
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
