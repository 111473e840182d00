"""One job on its node: a task of Ray, which runs it as a local run does, and sends back its events and files.

A process of Ray takes one such task after another. What these share (workers, the reading of devices) is kept as long
as the process lives; it belongs to one run, since Ray never gives a process to two drivers.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import os
import queue
import shutil
import socket
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, cast

from rocmlab.base import private
from rocmlab.base.cores import count as count_cores
from rocmlab.base.errors import RocmlabError
from rocmlab.cluster.executor import delivery
from rocmlab.cluster.executor.node_agent import agent_name, scratch
from rocmlab.cluster.executor.nodes import masked
from rocmlab.cluster.executor.remote_job import RemoteJob, RemoteRun
from rocmlab.cluster.node import session
from rocmlab.devices import Device, discover
from rocmlab.kernels import holders, kernelspec
from rocmlab.kernels.recipes import Recipe
from rocmlab.notebook import notebooks
from rocmlab.notebook.outcome import Outcome
from rocmlab.runs.scheduling.place import Place
from rocmlab.runs.scheduling.pool import kind_of
from rocmlab.runs.scheduling.usage import Meters
from rocmlab.runs.workers.forking import Group, JobForkServers
from rocmlab.runs.workers.supervisor import Event, Supervisor
from rocmlab.runs.workers.workers import Workers

Tell = Callable[[Event], None]

AGENT_TIMEOUT_SECONDS = 60.0  # until the agent of this node is there
LOOK_SECONDS = 0.5  # how soon a request of Ray's to leave is heard
FLUSH_SECONDS = 2.0  # for the job's last readings to be written; a device that hangs holds no one up for longer
LEAVE_SECONDS = 10.0  # for the end of what a job has started, when Ray ends the task
# What a notebook needs to use the cluster itself, next to RAY_AUTH_*.
PASSED_ON = ("RAY_ADDRESS", "RAY_NAMESPACE", "RAY_USAGE_STATS_ENABLED", "RAY_DEFAULT_PYTHON_VERSION_MATCH_LEVEL")
RAYS_OWN = ("PYTHONBREAKPOINT", "SPT_NOENV")  # what Ray sets in its processes, next to RAY_*


class _WorkerState:
    """What the tasks of this process share."""

    def __init__(self, run: str) -> None:
        self.run = run
        self.meters = Meters()
        self.loop = asyncio.new_event_loop()
        self.devices = discover()
        self._workers: Workers | None = None
        threading.Thread(target=self.loop.run_forever, name="rocmlab-jobs", daemon=True).start()

    @functools.cached_property
    def agent(self) -> Any:  # noqa: ANN401  a handle of Ray
        """The run's agent on this node; of a node that has just joined it may not be there yet."""
        import ray

        end = time.monotonic() + AGENT_TIMEOUT_SECONDS
        while True:
            try:
                return ray.get_actor(agent_name(self.run, ray.get_runtime_context().get_node_id()))
            except ValueError:
                if time.monotonic() > end:
                    raise
                time.sleep(0.1)

    def workers(self, warm: str) -> Workers:
        """Return the workers, which are made for the first job."""
        if self._workers is None:
            environment, fork_servers = own_environment(_first_environment()), _NodeForkServers(self.agent)
            # The runner converts.
            self._workers = Workers(environment, warm=warm, fork_servers=fork_servers, converts=False)
        return self._workers


class _NodeForkServers(JobForkServers):
    """The fork servers that the node's agent has."""

    def __init__(self, agent: Any) -> None:  # noqa: ANN401  a handle of Ray
        super().__init__()
        self._agent = agent

    def address(self, group: Group, recipe: Recipe) -> tuple[str | None, str | None]:
        """Ask the agent."""
        import ray

        return cast("tuple[str | None, str | None]", ray.get(self._agent.fork_server.remote(group, recipe), timeout=30))


_state_of = functools.cache(_WorkerState)  # by run


def _first_environment() -> dict[str, str]:
    """Return the environment in which this process began: a task's has Ray's OMP_NUM_THREADS and masks in it.

    Source: /proc/self/environ; where there is none, what there is now, without that number of threads.
    """
    try:
        pairs = (each.partition(b"=") for each in Path("/proc/self/environ").read_bytes().split(b"\0") if b"=" in each)
        return {os.fsdecode(name): os.fsdecode(value) for name, _, value in pairs}
    except OSError:
        return {name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"}


def own_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """Return what a node's processes have in their environment, without what Ray adds for its own.

    A notebook can use the cluster: where it is and the token stay.
    """
    kept = {
        name: value
        for name, value in environment.items()
        if name not in RAYS_OWN and (not name.startswith("RAY_") or name in PASSED_ON or name.startswith("RAY_AUTH_"))
    }
    return {**kept, "ROCMLAB_ENGINE": "rocmlab"}


def execute(run: RemoteRun, remote: RemoteJob, gpus: Mapping[str, int], notebook: bytes) -> Iterator[Event]:
    """Run a job on the GPUs that Ray has given this task; yield what happens, and at last its end.

    `gpus` is how many each node has; it is empty for a job without one.
    """
    import ray

    session.restore_signals()
    os.environ[holders.USER] = run.user  # whom its leases name; a process of Ray takes jobs of one user after another's
    state = _state_of(run.token)
    events: queue.SimpleQueue[Event | None] = queue.SimpleQueue()
    node_id = str(ray.get_runtime_context().get_node_id())
    job = _Job(run, remote, notebook, state, events.put)
    try:
        place = job.place(gpus, node_id)
    except RocmlabError as err:
        yield {"event": "refused", "problem": asdict(err.problem)}
        return
    yield {
        "event": "placed",
        "node_id": node_id,
        "pid": os.getpid(),
        "devices": [device.as_dict() for device in place.devices],
        "threads": place.threads,
    }
    running = asyncio.run_coroutine_threadsafe(job.run(place), state.loop)
    try:
        yield from _events(events, running)
        yield from job.results(running.result())
    finally:
        job.leave(running)


def _events(events: queue.SimpleQueue[Event | None], running: Future[Outcome]) -> Iterator[Event]:
    """Yield a job's events, until it has ended. The wait is short: Ray asks a task to leave between two of them."""
    running.add_done_callback(lambda _: events.put(None))
    while True:
        try:
            event = events.get(timeout=LOOK_SECONDS)
        except queue.Empty:
            continue
        if event is None:
            return
        yield event


class _Job:
    """One job here."""

    def __init__(self, run: RemoteRun, remote: RemoteJob, notebook: bytes, state: _WorkerState, tell: Tell) -> None:
        self.remote_run = run
        self.remote = remote
        self.job = replace(remote.job, content=notebook.decode())
        self.state = state
        self.agent = state.agent
        self.tell = tell
        self.supervisor: Supervisor | None = None
        self.is_shared = delivery.is_shared(run.folder, run.nonce)
        own = os.environ.get("ROCMLAB_SHARE")
        fallback = Path(run.folder).parent.parent if self.is_shared else Path(tempfile.gettempdir(), "rocmlab")
        share = Path(own) if own else fallback
        path = Path(run.folder) if self.is_shared else scratch(run.token) / Path(run.folder).name
        self.folder = delivery.NodeFolder(path, share, tell)
        self._unclean: Path | None = None
        self._is_handed_over = False

    def place(self, gpus_of_node: Mapping[str, int], node_id: str) -> Place:
        """Return the GPUs that Ray has given this task.

        Raises:
            RocmlabError: they are not what the job wants, or are not available.
        """
        if problem := masked(os.environ):
            raise RocmlabError(problem.what, problem.why, problem.fix)
        count = self.remote.place.count
        if not count:
            return Place((self.state.devices[-1],), count_cores(), node=socket.gethostname())
        gpus = session.granted()
        self._check(gpus, count)
        cores, total = count_cores(), max(1, gpus_of_node.get(node_id, len(gpus)))
        return Place(tuple(gpus), max(1, cores * count // total), count=count, node=socket.gethostname())

    def _check(self, gpus: tuple[Device, ...], count: int) -> None:
        needed = self.job.vram_bytes
        small = [gpu for gpu in gpus if (gpu.memory_bytes or 0) < (needed or 0)]
        is_mixed = len(set(map(kind_of, gpus))) > 1 and not self.remote.place.resources.is_mixed
        if len(gpus) == count and not small and not is_mixed:
            return
        have = ", ".join(f"{gpu.name} ({gpu.pci_address})" for gpu in gpus) or "none"
        raise RocmlabError(
            f"Ray gave {self.job.name} GPUs that it cannot use",
            f"it wants {count} of one product and large enough, and got: {have}",
            "give the machines of one cluster GPUs of one product each: make cluster-join GPUS=…",
        )

    async def run(self, place: Place) -> Outcome:
        """Run it; its files are in the folder afterwards."""
        path = await asyncio.to_thread(self._notebook)
        self.folder.path.mkdir(mode=private.folder_mode(), parents=True, exist_ok=True)
        try:
            spec = kernelspec.find(str(self.job.kernel))
        except Exception as err:
            return Outcome("failed", f"its kernel {self.job.kernel!r} cannot be used on this node: {err}")
        if why := kernelspec.absence(spec.specification):
            return Outcome("failed", f"its kernel {self.job.kernel!r} cannot be used on this node: {why}")
        job = replace(self.job, notebook=str(path), kernelspec=spec)
        workers, limits = self.state.workers(self.remote_run.warm), self.remote.limits
        self.supervisor = Supervisor(job, place, self.folder, limits, self.tell, workers, self.state.meters)
        self._listen()
        try:
            return await self.supervisor.run()
        finally:
            self.agent.done.remote(self.remote.number)

    def _listen(self, heard: str | None = None) -> None:
        """Wait until the run stops this job, or, after that, kills it."""
        loop = asyncio.get_running_loop()
        future = self.agent.watch.remote(self.remote.number, heard).future()
        future.add_done_callback(lambda done: loop.call_soon_threadsafe(self._heard, done))

    def _heard(self, done: Future[str]) -> None:
        if self.supervisor is None:
            return
        why = "kill" if done.exception() else done.result()  # without its agent the run, or its part here, is gone
        if why == "kill":
            self.supervisor.kill()
        elif why:
            self._listen(why)  # it may become impatient
            self.supervisor.stop("interrupted")

    def _notebook(self) -> Path:
        """Return where the notebook is on this node: where it was, if it is the same here, else a copy."""
        original = Path(self.job.notebook)
        assert self.job.content is not None, "the run sent it"
        with contextlib.suppress(OSError, ValueError):
            if notebooks.without_outputs(original.read_text(encoding="utf-8")) == self.job.content:
                return original
        self.tell({"event": "away"})
        folder = scratch(self.remote_run.token) / "notebooks" / f"{self.remote.number}"
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._unclean = folder
        path = folder / original.name
        path.write_text(self.job.content, encoding="utf-8")
        return path

    def results(self, ending: Outcome) -> Iterator[Event]:
        """Yield the files that must be copied back, and at last how it ended.

        These stay here until the runner has them; the node's agent then removes them.
        """
        name, left, handed = self.job.name, {}, []
        self.state.meters.flush(FLUSH_SECONDS)
        if self.is_shared:
            left = delivery.sizes(self.folder, name)
        else:
            self._is_handed_over = True
            handed = [*self.folder.files(name)]
            yield from delivery.hand_over(self.folder, name, self.remote_run.exchange, ending.warnings)
        yield {"event": "ending", "ending": asdict(ending), "left": left, "handed": handed}

    def leave(self, running: Future[Outcome]) -> None:
        """Leave nothing behind, also when Ray ends the task early."""
        if not running.done():
            if self.supervisor is not None:
                self.state.loop.call_soon_threadsafe(self.supervisor.kill)
            with contextlib.suppress(Exception):
                running.result(LEAVE_SECONDS)
        if self._unclean:
            shutil.rmtree(self._unclean, ignore_errors=True)
        if not self.is_shared and not self._is_handed_over:
            for name in self.folder.files(self.job.name).values():
                (self.folder.path / name).unlink(missing_ok=True)
