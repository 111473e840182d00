"""Which nodes the cluster has, what each of them has, and whether the cluster is still reachable."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

from rocmlab.cluster.executor import nodes
from rocmlab.cluster.executor.nodes import SPOKEN, RemoteNode
from rocmlab.cluster.node import session

log = logging.getLogger("rocmlab")

EVERY_SECONDS = 2.0
ANSWER_SECONDS = 60.0  # for a node to say what it has: its first process of Ray may have to start
AGAIN_SECONDS = 10.0  # until a node is asked again that failed to say anything
PREPARE_SECONDS = 0.5  # for which a process of Ray that is ready keeps its GPU, so that the others also get ready
PREPARED_SECONDS = 20.0  # after which what has not begun is given up: GPUs that others use are for jobs when they end
SILENT_SECONDS = 20.0  # without an answer of the head, after which it is taken for gone
HANGING_SECONDS = 80.0  # the same where a question to it does not return


class NodeWatch:
    """Asks Ray for its nodes again and again, and each new node, once, for its devices."""

    def __init__(self, changed: Callable[[], None], gone: Callable[[str], None]) -> None:
        """Begin; `changed` is called in the event loop, `gone` with why the head does not answer any more."""
        self.known: dict[str, RemoteNode] = {}  # by node id; without those that are gone
        self._names: dict[str, str] = {}  # of all that ever were
        self._changed = changed
        self._gone = gone
        self._lock = threading.Lock()  # no one waits for a node while having it
        self._has_changed = False  # since it was last reported
        self._met: set[str] = set()  # nodes that were asked to get ready
        self._preparing: dict[Any, float] = {}  # since when, by reference
        self._pending: dict[str, Any] = {}  # by node, the reference to what it will say
        self._ask_again: dict[str, float] = {}  # when, of nodes that failed to say anything

    def name(self, node_id: str) -> str:
        """Return a node's host name, also of one that is gone."""
        return self._names.get(node_id, node_id[:8])

    def is_alive(self, node_id: str) -> bool:
        """Return whether Ray takes a node for alive, now."""
        self.look()
        return node_id in self.known

    def begin(self) -> None:
        """List the nodes for the first time, and wait for their answers, each no longer than a minute."""
        import ray

        self.look()
        with self._lock:
            pending = list(self._pending.values())
        if pending:
            ray.wait(pending, num_returns=len(pending), timeout=ANSWER_SECONDS)
            self.look()
        self.has_changed()

    def look(self) -> None:
        """Query Ray once, and read the answers of the nodes that were queried before."""
        import ray

        with self._lock:
            alive, gpus = {}, {}
            for node in ray.nodes():
                labels = node.get("Labels") or {}
                name = labels.get("rocmlab.hostname") or labels.get("hostname") or node["NodeManagerHostname"]
                self._names[node["NodeID"]] = name
                if node["Alive"]:
                    alive[node["NodeID"]] = name
                    gpus[node["NodeID"]] = int(node["Resources"].get("GPU", 0))
            before = set(self.known)
            self.known = {each: description for each, description in self.known.items() if each in alive}
            self._pending = {each: reference for each, reference in self._pending.items() if each in alive}
            self._prepare({each: count for each, count in gpus.items() if each not in self._met})
            self._met |= gpus.keys()
            now = time.monotonic()
            self._ask({each: name for each, name in alive.items() if not self._is_known(each, now)})
            self.known |= self._heard(alive, now)
            self._has_changed |= set(self.known) != before

    def has_changed(self) -> bool:
        """Return whether nodes have come or gone since the last call."""
        with self._lock:
            has_changed, self._has_changed = self._has_changed, False
            return has_changed

    def _is_known(self, node_id: str, now: float) -> bool:
        """Return whether a node need not be queried: it has answered, or will, or is retried later."""
        return node_id in self.known or node_id in self._pending or now < self._ask_again.get(node_id, 0.0)

    def _ask(self, new: Mapping[str, str]) -> None:
        import ray

        describe = ray.remote(nodes.describe)
        for each, name in new.items():
            options = describe.options(num_cpus=0, max_retries=0, scheduling_strategy=session.only_on(each))
            self._pending[each] = options.remote(SPOKEN, each, name)

    def _heard(self, names: Mapping[str, str], now: float) -> dict[str, RemoteNode]:
        """Return the nodes' answers, by node; a node that fails is queried again later."""
        import ray

        if not self._pending:
            return {}
        ready, _ = ray.wait(list(self._pending.values()), num_returns=len(self._pending), timeout=0)
        found: dict[str, RemoteNode] = {}
        for each in [each for each, reference in self._pending.items() if reference in ready]:
            try:
                found[each] = ray.get(self._pending.pop(each))
            except (ModuleNotFoundError, TypeError) as err:  # older code: another module, other arguments
                found[each] = RemoteNode(each, names[each], (), nodes.missing(err))
            except Exception:
                log.debug("%s does not report its resources", names[each], exc_info=True)
                self._ask_again[each] = now + AGAIN_SECONDS
        return found

    def _prepare(self, gpus: dict[str, int]) -> None:
        """Start a process of Ray for each GPU of new nodes, while the jobs are still being looked at.

        Ray has processes for tasks with a GPU, and others: these also ask for one.
        """
        import ray

        now = time.monotonic()
        prepare = ray.remote(max_calls=0)(nodes.prepare)
        for each, count in gpus.items():
            there = session.only_on(each)
            options = prepare.options(num_cpus=0, num_gpus=1, max_retries=0, scheduling_strategy=there)
            self._preparing |= {options.remote(PREPARE_SECONDS): now for _ in range(count)}
        if self._preparing:
            done, _ = ray.wait(list(self._preparing), num_returns=len(self._preparing), timeout=0)
            late = [each for each, since in self._preparing.items() if now - since > PREPARED_SECONDS]
            for reference in {*done, *late}:
                del self._preparing[reference]
            for reference in set(late) - set(done):
                ray.cancel(reference)

    def watch(self, loop: asyncio.AbstractEventLoop) -> None:
        """Look until the process ends."""
        begin = [time.monotonic()]
        threading.Thread(target=self._judge, args=(begin,), name="rocmlab-head", daemon=True).start()
        while True:
            try:
                self.look()
                begin[0] = time.monotonic()
            except Exception as err:
                log.debug("the head does not answer", exc_info=True)
                if time.monotonic() - begin[0] > SILENT_SECONDS:
                    self._gone(f"its head does not answer: {type(err).__name__}: {err}")
            if self.has_changed():
                loop.call_soon_threadsafe(self._changed)
            time.sleep(EVERY_SECONDS)

    def _judge(self, begin: list[float]) -> None:
        """Say that the head is gone when a question to it does not return."""
        while time.monotonic() - begin[0] < HANGING_SECONDS:
            time.sleep(EVERY_SECONDS)
        self._gone(f"its head has not answered for {HANGING_SECONDS:g} s")
