"""The process that speaks to Ray for a run: `python -m rocmlab.cluster.executor.driving DESCRIPTOR`.

It receives the runner's commands and reports events, as JSON lines; see `rocmlab.cluster.executor.cluster`. When the
runner ends, so does this process, and Ray ends the run's tasks and actors. When the cluster is lost, Ray's core may end
this process at any moment, silently; the runner knows what that means.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import pickle
import sys
import threading
import time
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rocmlab.base import safe
from rocmlab.base.errors import RocmlabError
from rocmlab.cluster.executor import delivery
from rocmlab.cluster.executor.remote_job import RemoteJob, RemoteRun
from rocmlab.cluster.executor.submitting import Begun, Submitter, why_lost
from rocmlab.cluster.executor.watching import NodeWatch
from rocmlab.runs.folder import RunFolder
from rocmlab.runs.workers.commands import Command, Commands

log = logging.getLogger("rocmlab")

FLUSH_SECONDS = 5.0  # for the agents to end their fork servers
UNSEEN = f"not seen here as they were written within {delivery.SEEN_SECONDS:g} s, the share is slow: {{names}}"
KEPT = "{names} could not be brought into the run folder ({why}): copy them from node {node}, where they are in {path}"
LOST = "{names} could not be brought into the run folder ({why}), and its node {node} does not answer"


class Driver:
    """The runner's hand in the cluster."""

    def __init__(self, commands: Commands, loop: asyncio.AbstractEventLoop) -> None:
        self.commands = commands
        self.loop = loop
        self.nodes = NodeWatch(self._nodes_changed, self._gone)
        self.submitter: Submitter | None = None
        self.folder: RunFolder | None = None
        self.begun: dict[int, Begun] = {}
        self.tasks: set[asyncio.Task[None]] = set()
        self.is_over = asyncio.Event()
        self.turn = asyncio.Lock()  # jobs reach Ray in the order in which they came

    def take(self, command: Command) -> None:
        """Take a command of the runner."""
        kind = command["do"]
        if kind == "begin":
            run = _received(command["file"])
            assert isinstance(run, RemoteRun)
            self.folder = RunFolder(Path(run.folder))
            self.submitter = Submitter(run)
            self.submitter.attend(self.nodes.known)
        elif kind == "job":
            new = self.begun[command["number"]] = Begun(command["number"])  # it may be stopped from now on
            task = self.loop.create_task(self._job(command["file"], new))
            self.tasks.add(task)
            task.add_done_callback(self.tasks.discard)
        elif kind == "stop" and (begun := self.begun.get(command["number"])):
            begun.force() if command["why"] == "force" else begun.stop(command["why"])
        elif kind == "end":
            self.is_over.set()

    async def _job(self, file: str, begun: Begun) -> None:
        assert self.submitter is not None
        assert self.folder is not None
        receiver: delivery.Receiver | None = None
        try:
            remote = _received(file)
            assert isinstance(remote, RemoteJob)
            name = remote.job.name
            receiver = delivery.Receiver(self.folder, name, self.submitter.run.exchange)
            async with self.turn:
                if begun.is_cancelled:
                    self._say(begun.number, {"event": "cancelled"})
                    return
                references = self.submitter.submit(remote, begun)
            async for reference in references:
                await self._hear(begun, name, await reference, receiver)
        except OSError as err:
            self._say(begun.number, {"event": "broken", "why": f"{type(err).__name__}: {err}"})
        except Exception as err:
            self._say(begun.number, await asyncio.to_thread(why_lost, err, begun, self.nodes))
        finally:
            if receiver is not None:
                receiver.close()
            del self.begun[begun.number]

    async def _hear(self, begun: Begun, name: str, event: dict[str, Any], receiver: delivery.Receiver) -> None:
        assert self.submitter is not None
        assert self.folder is not None
        kind = event["event"]
        if kind in ("file", "left"):
            await asyncio.to_thread(receiver.take, event)
            return
        if kind == "placed":
            event["node"] = self.nodes.name(event["node_id"])
            begun.placed(event["node_id"], self.submitter.agents.get(event["node_id"]))
        elif kind == "ending" and event["handed"]:
            await self._settle(begun, name, event, receiver)
        elif kind == "ending" and event["left"]:
            left = {kind: size for kind, size in event["left"].items() if delivery.kind_of({"kind": kind})}
            unseen = await asyncio.to_thread(delivery.wait_until_seen, self.folder, name, left)
            if unseen:
                event["ending"]["warnings"].append(UNSEEN.format(names=", ".join(unseen)))
        self._say(begun.number, event)

    async def _settle(self, begun: Begun, name: str, event: dict[str, Any], receiver: delivery.Receiver) -> None:
        """Have a job's node remove the files that it has handed over, or keep them where one is missing here."""
        assert self.submitter is not None
        assert self.folder is not None
        missing = receiver.missing(event["handed"])
        agent: Any = self.submitter.agents.get(begun.node_id or "")
        if not missing:
            with contextlib.suppress(Exception):  # the node is gone
                await agent.delivered.remote(self.folder.path.name, name)
            return
        names = ", ".join(self.folder.file(name, kind).name for kind in missing)
        why = next((receiver.failed[kind] for kind in missing if kind in receiver.failed), "its node cannot read it")
        said = {"names": names, "why": why, "node": self.nodes.name(begun.node_id or "")}
        try:
            path = await agent.keep.remote(self.folder.path.name, name, begun.number)
            warning = KEPT.format(**said, path=safe.shown(path))
        except Exception:
            log.debug("the files of %s", name, exc_info=True)
            warning = LOST.format(**said)
        event["ending"]["warnings"].insert(0, warning)

    def _say(self, number: int, event: Mapping[str, Any]) -> None:
        self.commands.report("job", number=number, update=event)

    def _nodes_changed(self) -> None:
        if self.submitter:
            self.submitter.attend(self.nodes.known)
        known = dict(self.nodes.known)
        for each in known.values():
            self.commands.report("node", **{"is": asdict(each)})
        self.commands.report("nodes", ids=list(known))

    def _gone(self, why: str) -> None:
        with contextlib.suppress(OSError):
            self.commands.report("gone", why=why)
        os._exit(1)

    async def serve(self) -> None:
        """Work until the runner reports the end of the run."""
        await asyncio.to_thread(self.nodes.begin)
        self._nodes_changed()
        watching = threading.Thread(target=self.nodes.watch, args=(self.loop,), name="rocmlab-nodes", daemon=True)
        watching.start()
        threading.Thread(target=self._listen, name="rocmlab-listen", daemon=True).start()
        await self.is_over.wait()
        if self.submitter:
            await asyncio.to_thread(self.submitter.close, FLUSH_SECONDS)

    def _listen(self) -> None:
        for command in self.commands.stream():
            self.loop.call_soon_threadsafe(self.take, command)


def _received(file: str) -> object:
    """Return what the runner has left in a file of its own folder, and remove it."""
    path = Path(file)
    found: object = pickle.loads(path.read_bytes())
    path.unlink()
    return found


async def _serve(commands: Commands, address: str | None) -> None:
    from rocmlab.cluster.node import session

    begin = time.monotonic()
    try:
        await asyncio.to_thread(session.connect, address)
        driver = Driver(commands, asyncio.get_running_loop())
        await driver.serve()
    except RocmlabError as err:
        problem = err.problem
        commands.report("problem", what=problem.what, why=problem.why, fix=problem.fix)
    finally:
        commands.report("over", seconds=round(time.monotonic() - begin, 3))


def main() -> int:
    """Serve the runner that has the other end of the socket."""
    commands = Commands(int(sys.argv[1]), lambda: None)
    asyncio.run(_serve(commands, os.environ.pop("ROCMLAB_CLUSTER", None) or None))
    sys.stdout.flush()
    os._exit(0)  # Ray's own farewell takes seconds, and no one waits for anything


if __name__ == "__main__":
    main()
