"""Jobs as tasks of Ray: how they are submitted, stopped, and what it means when one is lost."""

from __future__ import annotations

import contextlib
import hashlib
import logging
from collections.abc import AsyncIterator, Mapping
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any, cast

from rocmlab.cluster.executor import node_agent, task
from rocmlab.cluster.executor import nodes as of_nodes
from rocmlab.cluster.executor.nodes import RemoteNode
from rocmlab.cluster.executor.remote_job import RemoteJob, RemoteRun
from rocmlab.cluster.node import session

if TYPE_CHECKING:
    from rocmlab.cluster.executor.watching import NodeWatch

log = logging.getLogger("rocmlab")

NODE = "ray.io/node-id"  # a label that Ray gives each node
KEPT_NOTEBOOKS = 200  # whose content stays in Ray's store, for further jobs of the same notebook
INLINE_BYTES = 50_000  # what is shorter goes with the task


class Begun:
    """A job that Ray has, which may not have begun."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.node_id: str | None = None
        self.generator: Any = None  # of Ray, the task's
        self.is_cancelled = False
        self._agent: Any = None
        self._stop: str | None = None

    def placed(self, node_id: str, agent: Any) -> None:  # noqa: ANN401  a handle of Ray
        """Note where it has begun."""
        self.node_id, self._agent = node_id, agent
        if self._stop:
            self.stop(self._stop)

    def stop(self, why: str) -> None:
        """Have it stop: its node gets the request, or Ray forgets it if it has not begun."""
        import ray

        self._stop = why
        if self.node_id is not None and self._agent is not None:
            self._agent.stop.remote(self.number, why)
        else:
            self.is_cancelled = True
            if self.generator is not None:
                ray.cancel(self.generator)

    def force(self) -> None:
        """End the process of Ray that has it."""
        import ray

        with contextlib.suppress(Exception):
            ray.cancel(self.generator, force=True)


class Submitter:
    """Gives jobs to Ray."""

    def __init__(self, run: RemoteRun) -> None:
        """Begin with a run."""
        import ray

        self.run = run
        self.agents: dict[str, Any] = {}  # by node id
        self._gpus: dict[str, int] = {}  # of each node
        self._contents: dict[bytes, Any] = {}  # notebooks in Ray's store, by hash
        # A process of Ray takes one job after another; by itself it would end after each that has a GPU.
        self._task = ray.remote(max_calls=0)(task.execute)
        self._agent = ray.remote(node_agent.NodeAgent)

    def attend(self, nodes: Mapping[str, RemoteNode]) -> None:
        """Have an agent on each node that can be used."""
        for node_id, node in nodes.items():
            self._gpus[node_id] = len(node.gpus)
            if node_id not in self.agents and not node.problem:
                name = node_agent.agent_name(self.run.token, node_id)
                there = session.only_on(node_id)
                options = self._agent.options(name=name, num_cpus=0, max_restarts=0, scheduling_strategy=there)
                self.agents[node_id] = options.remote(self.run.token, self.run.groups)
        for node_id in [each for each in self.agents if each not in nodes]:
            del self.agents[node_id]

    def submit(self, remote: RemoteJob, begun: Begun) -> AsyncIterator[Any]:
        """Submit a job to Ray, and return references to its events."""
        assert remote.job.content is not None, "a job without one has a problem, and is not run"
        content = self._content(remote.job.content.encode())
        remote = replace(remote, job=replace(remote.job, content=None))
        options = self._task.options(**self._options(remote))
        gpus = self._gpus if remote.place.count else {}
        begun.generator = options.remote(self.run, remote, gpus, content)
        return cast("AsyncIterator[Any]", begun.generator)

    def _options(self, remote: RemoteJob) -> dict[str, Any]:
        place = remote.place
        options: dict[str, Any] = {
            "num_cpus": 0,
            "num_gpus": place.count,
            "max_retries": 0,  # the runner knows better what may be retried
            "num_returns": "streaming",
            "name": f"rocmlab {remote.job.name} of {self.run.user}",
        }
        if not place.count:
            options["resources"] = {"cpu_place": 1}
        if place.pinned:
            options["scheduling_strategy"] = session.only_on(place.pinned)
        elif place.among:
            options["label_selector"] = {NODE: f"in({','.join(place.among)})"}
        elif place.never:
            options["label_selector"] = {NODE: f"!in({','.join(place.never)})"}
        return options

    def _content(self, notebook: bytes) -> Any:  # noqa: ANN401  bytes, or a reference to them
        import ray

        if len(notebook) < INLINE_BYTES:
            return notebook
        key = hashlib.sha256(notebook).digest()
        if key not in self._contents:
            while len(self._contents) >= KEPT_NOTEBOOKS:
                del self._contents[next(iter(self._contents))]
            self._contents[key] = ray.put(notebook)
        return self._contents[key]

    def close(self, seconds: float) -> None:
        """End the agents, and with them the fork servers."""
        import ray

        closing = []
        for agent in self.agents.values():
            with contextlib.suppress(Exception):  # its node may be gone
                closing.append(agent.close.remote())
        with contextlib.suppress(Exception):
            ray.wait(closing, num_returns=len(closing), timeout=seconds)
        for agent in self.agents.values():
            with contextlib.suppress(Exception):
                ray.kill(agent)


def why_lost(err: Exception, begun: Begun, nodes: NodeWatch) -> dict[str, Any]:
    """Return, as an event, why a job has no end of its own.

    The nodes are queried again: Ray's errors do not always distinguish a node's loss from a process's.
    """
    from ray import exceptions

    if isinstance(err, exceptions.TaskCancelledError) or begun.is_cancelled:
        return {"event": "cancelled"}
    cause = err.cause if isinstance(err, exceptions.RayTaskError) else err
    text = f"{type(cause).__name__}: {str(cause).strip().splitlines()[0] if str(cause).strip() else ''}"
    if isinstance(err, exceptions.OutOfMemoryError):
        return {"event": "killed", "why": f"Ray ended it because the memory of {_where(begun, nodes)} was nearly full"}
    if isinstance(cause, ModuleNotFoundError) and begun.node_id is None:  # a machine that has just joined, perhaps
        return {"event": "refused", "problem": asdict(of_nodes.missing(cause))}
    if isinstance(err, exceptions.RayTaskError) or not isinstance(err, exceptions.RayError):
        log.debug("%s", err, exc_info=err)
        return {"event": "broken", "why": text}
    if begun.node_id is None:
        return {"event": "lost", "why": text}
    if isinstance(err, exceptions.NodeDiedError) or not nodes.is_alive(begun.node_id):
        return {"event": "lost", "why": f"node {nodes.name(begun.node_id)} was lost"}
    return {"event": "lost", "why": f"its process of Ray on node {nodes.name(begun.node_id)} was lost ({text})"}


def _where(begun: Begun, nodes: NodeWatch) -> str:
    return nodes.name(begun.node_id) if begun.node_id else "its node"
