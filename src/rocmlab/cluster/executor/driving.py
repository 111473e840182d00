"""The process that speaks to Ray for a run: `python -m rocmlab.cluster.executor.driving DESCRIPTOR`.

It takes the runner's orders and tells it what happens, as JSON lines; see `rocmlab.cluster.executor.cluster`. When the
runner ends, so does this process, and Ray ends the run's tasks and actors. When the cluster is lost, Ray's core may end
this process at any moment, silently; the runner knows what that means.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rocmlab.base.errors import RocmlabError
from rocmlab.cluster.executor import delivery
from rocmlab.cluster.executor.submitting import Begun, Submitter, why_lost
from rocmlab.cluster.executor.watching import NodeWatch
from rocmlab.runs.folder import RunFolder
from rocmlab.runs.workers.commands import Order, Orders

FLUSH_SECONDS = 5.0  # for the agents to end their fork servers
UNSEEN = f"not seen here as they were written within {delivery.SEEN_SECONDS:g} s, the share is slow: {{names}}"


class Driver:
    """The runner's hand in the cluster."""

    def __init__(self, orders: Orders, loop: asyncio.AbstractEventLoop) -> None:
        self.orders = orders
        self.loop = loop
        self.nodes = NodeWatch(self._nodes_changed, self._gone)
        self.submitter: Submitter | None = None
        self.folder: RunFolder | None = None
        self.begun: dict[int, Begun] = {}
        self.tasks: set[asyncio.Task[None]] = set()
        self.is_over = asyncio.Event()
        self.turn = asyncio.Lock()  # jobs reach Ray in the order in which they came

    def take(self, order: Order) -> None:
        """Take an order of the runner."""
        kind = order["do"]
        if kind == "begin":
            self.folder = RunFolder(Path(order["folder"]))
            self.submitter = Submitter(order)
            self.submitter.attend(self.nodes.known)
        elif kind == "job":
            new = self.begun[order["number"]] = Begun(order["number"])  # it may be stopped from now on
            task = self.loop.create_task(self._job(Path(order["file"]), new))
            self.tasks.add(task)
            task.add_done_callback(self.tasks.discard)
        elif kind == "stop" and (begun := self.begun.get(order["number"])):
            begun.force() if order["why"] == "force" else begun.stop(order["why"])
        elif kind == "end":
            self.is_over.set()

    async def _job(self, path: Path, begun: Begun) -> None:
        assert self.submitter is not None
        assert self.folder is not None
        receiver: delivery.Receiver | None = None
        try:
            order = json.loads(path.read_text(encoding="utf-8"))
            path.unlink()
            name = order["job"]["name"]
            receiver = delivery.Receiver(self.folder, name)
            async with self.turn:
                notebook = await asyncio.to_thread(Path(order["job"]["notebook"]).read_bytes)
                if begun.is_cancelled:
                    self._say(begun.number, {"event": "cancelled"})
                    return
                said = self.submitter.submit(order, notebook, begun)
            async for reference in said:
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
        if kind == "file":
            await asyncio.to_thread(receiver.take, event)
            return
        if kind == "left":
            target = self.folder.file(name, delivery.kind_of(event))
            await asyncio.to_thread(delivery.fetch, event["address"], target, self.submitter.run["exchange"] or "")
            return
        if kind == "placed":
            event["node"] = self.nodes.name(event["node_id"])
            begun.placed(event["node_id"], self.submitter.agents.get(event["node_id"]))
        elif kind == "ending" and event["left"]:
            left = {kind: size for kind, size in event["left"].items() if delivery.kind_of({"kind": kind})}
            unseen = await asyncio.to_thread(delivery.wait_until_seen, self.folder, name, left)
            if unseen:
                event["ending"]["warnings"].append(UNSEEN.format(names=", ".join(unseen)))
        self._say(begun.number, event)

    def _say(self, number: int, event: Mapping[str, Any]) -> None:
        self.orders.report("job", number=number, said=event)

    def _nodes_changed(self) -> None:
        if self.submitter:
            self.submitter.attend(self.nodes.known)
        described = self.nodes.described()
        for each in described:
            self.orders.report("node", **{"is": each})
        self.orders.report("nodes", ids=[each["id"] for each in described])

    def _gone(self, why: str) -> None:
        with contextlib.suppress(OSError):
            self.orders.report("gone", why=why)
        os._exit(1)

    async def serve(self) -> None:
        """Work until the runner says that the run is over."""
        await asyncio.to_thread(self.nodes.begin)
        self._nodes_changed()
        watching = threading.Thread(target=self.nodes.watch, args=(self.loop,), name="rocmlab-nodes", daemon=True)
        watching.start()
        threading.Thread(target=self._listen, name="rocmlab-listen", daemon=True).start()
        await self.is_over.wait()
        if self.submitter:
            await asyncio.to_thread(self.submitter.close, FLUSH_SECONDS)

    def _listen(self) -> None:
        for order in self.orders.stream():
            self.loop.call_soon_threadsafe(self.take, order)


async def _serve(orders: Orders, address: str | None) -> None:
    from rocmlab.cluster.node import session

    begin = time.monotonic()
    try:
        await asyncio.to_thread(session.connect, address)
        driver = Driver(orders, asyncio.get_running_loop())
        await driver.serve()
    except RocmlabError as err:
        problem = err.problem
        orders.report("problem", what=problem.what, why=problem.why, fix=problem.fix)
    finally:
        orders.report("over", seconds=round(time.monotonic() - begin, 3))


def main() -> int:
    """Serve the runner that has the other end of the socket."""
    orders = Orders(int(sys.argv[1]), lambda: None)
    asyncio.run(_serve(orders, os.environ.pop("ROCMLAB_CLUSTER", None) or None))
    sys.stdout.flush()
    os._exit(0)  # Ray's own farewell takes seconds, and nobody waits for anything


if __name__ == "__main__":
    main()
