"""A run's cluster as the runner sees it: a child process that speaks to Ray, the places there, and the jobs' ends.

Commands to the child are short lines; a job's description is a file that the child removes. The child's
events of a job go to that job's `RemoteSupervisor`. When the child ends, the cluster counts as lost, and so does every
job that has not ended.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import pickle
import secrets
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from rocmlab.base import files
from rocmlab.base.errors import RocmlabError
from rocmlab.cluster.executor import delivery
from rocmlab.cluster.executor.nodes import RemoteNode
from rocmlab.cluster.executor.places import ClusterPlaces, RemotePlace
from rocmlab.cluster.executor.remote_job import RemoteJob, RemoteRun
from rocmlab.cluster.executor.supervising import RemoteSupervisor
from rocmlab.kernels.holders import Holder
from rocmlab.runs.folder import RunFolder
from rocmlab.runs.jobs import Job
from rocmlab.runs.scheduling.place import Place
from rocmlab.runs.workers.channel import Event, Link
from rocmlab.runs.workers.forking import group_of
from rocmlab.runs.workers.supervisor import Limits

log = logging.getLogger("rocmlab")

DRIVER = "rocmlab.cluster.executor.driving"
ADDRESS = "ROCMLAB_CLUSTER"  # in the child's environment
NODES_TIMEOUT_SECONDS = 120.0  # until the cluster has reported its nodes: a node may have to start a process first
SEND_SECONDS = 30.0  # for a command to be taken
CLOSE_TIMEOUT_SECONDS = 8.0  # for the end of the fork servers
GONE = "the Ray driver process has ended"


class Cluster:
    """Where the jobs of a run go that a Ray cluster runs."""

    def __init__(self, address: str | None, environment: Mapping[str, str], exchange: str | None = None) -> None:
        """Start the child, which begins to connect.

        Args:
            address: of the cluster's head, HOST:PORT; None: the one that this machine belongs to.
            environment: of the child.
            exchange: where files of nodes that do not have the run folder are left; None: Ray itself brings them.

        Raises:
            RocmlabError: the exchange cannot be used.
        """
        if exchange:
            delivery.check(exchange)
        self.exchange = exchange
        self.places: ClusterPlaces | None = None
        self.folder: RunFolder | None = None
        self.gone: str | None = None  # why the cluster is
        self._numbers = itertools.count(1)
        self._turn = asyncio.Lock()  # jobs are handed over in the order in which they were taken
        self._supervisors: dict[int, RemoteSupervisor] = {}
        self._nodes: dict[str, RemoteNode] = {}
        self._reported: set[str] = set()  # nodes that cannot be used, for which this was reported
        self._changed: Callable[[str | None], None] = lambda why: None
        self._pump: asyncio.Task[None] | None = None
        self._post = tempfile.TemporaryDirectory(prefix="rocmlab-commands-", ignore_cleanup_errors=True)
        own = {ADDRESS: address} if address else {}
        try:
            self._link = Link(DRIVER, {**environment, **own})
        except BaseException:
            self._post.cleanup()
            raise

    def find_places(self, gpus: str | None, *, is_mixed: bool = False) -> ClusterPlaces:
        """Wait until the cluster has reported its nodes, and return its places.

        Raises:
            RocmlabError: there is no cluster, no Ray, or nothing there that can be used.
        """
        end = time.monotonic() + NODES_TIMEOUT_SECONDS
        while True:
            event = self._link.first(end - time.monotonic())
            if event is None:
                raise self._no_cluster()
            if event["event"] == "problem":
                raise RocmlabError(event["what"], event["why"], event["fix"])
            if self._take_nodes(event):
                break
        self.places = ClusterPlaces(list(self._nodes.values()), gpus, is_mixed=is_mixed)
        self._say_refused()
        return self.places

    @property
    def nodes(self) -> list[RemoteNode]:
        """Return the nodes that get jobs."""
        return list(self.places.nodes.values()) if self.places else []

    def _no_cluster(self) -> RocmlabError:
        output = self._link.last_output().strip()
        if self._link.is_alive:
            why = f"no answer within {NODES_TIMEOUT_SECONDS:g} s"
        else:
            why = output.splitlines()[-1] if output else f"{GONE} with {self._link.process.returncode}"
        log.debug("output of the Ray driver process: %s", output)
        return RocmlabError("the cluster cannot be reached", why, "make cluster-status shows its nodes")

    def _take_nodes(self, event: Event) -> bool:
        """Handle the report of one node, or the end of the list."""
        if event["event"] == "node":
            node = RemoteNode.read(event["is"])
            self._nodes[node.id] = node
        elif event["event"] == "nodes":
            self._nodes = {each: self._nodes[each] for each in event["ids"] if each in self._nodes}
            return True
        return False

    def _say_refused(self) -> None:
        assert self.places is not None
        for node in self.places.refused.values():
            if node.problem and node.id not in self._reported:
                self._reported.add(node.id)
                log.warning("node %s gets no job: %s (%s)", node.name, node.problem.what, node.problem.fix)

    async def open(
        self, jobs: Sequence[Job], folder: RunFolder, warm: str, changed: Callable[[str | None], None]
    ) -> None:
        """Begin a run; nodes that share its folder recognise it by a nonce written there.

        `changed` is called when nodes have come or gone, with why the cluster is gone if it is.
        """
        self.folder, self._changed = folder, changed
        nonce = secrets.token_hex(16)
        files.write_text(folder.path / delivery.NONCE, nonce)
        groups = Counter(map(group_of, jobs))
        user = Holder.here("").owner or "an unknown user"
        run = RemoteRun(secrets.token_hex(6), str(folder.path), nonce, self.exchange, warm, groups, user)
        await self.send({"do": "begin", "file": await asyncio.to_thread(self._leave, "run", run)})
        self._pump = asyncio.create_task(self._hear_all())

    def lack(self, job: Job) -> str:
        """Return what a job waits for when nothing runs and it cannot start."""
        return f"the cluster has a node for {job.name}"

    def supervise(self, job: Job, place: Place, limits: Limits, see: Callable[[Event], None]) -> RemoteSupervisor:
        """Return what runs a job at a place of the cluster."""
        assert isinstance(place, RemotePlace)
        return RemoteSupervisor(job, place, limits, see, self)

    async def submit(self, supervisor: RemoteSupervisor) -> int:
        """Give a job to the cluster, and return the number by which it is known there."""
        number = next(self._numbers)
        self._supervisors[number] = supervisor
        job = replace(supervisor.job, kernelspec=None, request=None)  # the node has a kernelspec of its own
        remote = RemoteJob(number, job, supervisor.limits, supervisor.place)
        async with self._turn:
            file = await asyncio.to_thread(self._leave, str(number), remote)
            await self.send({"do": "job", "number": number, "file": file})
        return number

    def _leave(self, name: str, content: RemoteRun | RemoteJob) -> str:
        """Write something for the child, which removes it; return where."""
        path = Path(self._post.name, name)
        path.write_bytes(pickle.dumps(content))
        return str(path)

    def forget(self, number: int) -> None:
        """Hear no more of a job."""
        self._supervisors.pop(number, None)

    async def send(self, command: Mapping[str, Any]) -> None:
        """Give the child a command, as soon as it takes it."""
        end = time.monotonic() + SEND_SECONDS
        while self.gone is None and not self._link.send(command):
            if not self._link.is_alive or time.monotonic() > end:
                self._lose(GONE if not self._link.is_alive else "the Ray driver process accepts no commands")
                return
            await asyncio.sleep(0.01)

    async def _hear_all(self) -> None:
        try:
            await self._listen()
        except Exception as err:  # else no one would hear anything any more, and every job would wait
            log.debug("the cluster's answer cannot be read", exc_info=True)
            self._lose(f"its answer cannot be read: {type(err).__name__}: {err}")

    async def _listen(self) -> None:
        while (event := await self._link.event()) is not None:
            kind = event["event"]
            if kind == "job":
                if supervisor := self._supervisors.get(event["number"]):
                    supervisor.handle(event["update"])
            elif kind == "gone":
                self._lose(event["why"])
            elif self._take_nodes(event):
                assert self.places is not None
                self.places.update(list(self._nodes.values()))
                self._say_refused()
                self._changed(None)
        code = await self._link.exit_code()
        output = self._link.last_output().strip()
        log.debug("the Ray driver process ended with %s: %s", code, output)
        self._lose(self._link.fault or f"its head was lost ({GONE} with {code})")

    def _lose(self, why: str) -> None:
        if self.gone is not None:
            return
        self.gone = why
        for supervisor in list(self._supervisors.values()):
            supervisor.handle({"event": "gone", "why": why})
        self._changed(why)

    async def close(self) -> None:
        """End the run's part in the cluster: its fork servers and, with the child, all that Ray still has of it."""
        if self._pump is not None:
            self._changed = lambda why: None
            if self.gone is None and self._link.send({"do": "end"}):
                with contextlib.suppress(asyncio.TimeoutError):
                    await asyncio.wait_for(asyncio.shield(self._pump), CLOSE_TIMEOUT_SECONDS)
            self._pump.cancel()
            await asyncio.gather(self._pump, return_exceptions=True)
        if self.folder is not None:
            (self.folder.path / delivery.NONCE).unlink(missing_ok=True)
        await self._link.close()
        self._post.cleanup()

    def shut(self) -> None:
        """End the child, if no run has done so."""
        self._link.process.kill()
        self._link.process.wait()
        self._post.cleanup()
