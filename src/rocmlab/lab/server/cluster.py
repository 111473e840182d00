"""The cluster that this lab is a node of, for the panel: queried in a process of its own, only while a page shows it.

Ray's client hangs, and ends its process, when the head is gone. So it lives in a child (`cluster_reader`) that answers
one line of JSON to each line it gets; what does not answer in time is ended, and the last answer is shown as old.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any

from rocmlab.base import reach
from rocmlab.base.errors import Problem, RocmlabError
from rocmlab.cluster.node import ports, ray_node, record
from rocmlab.lab.server.shared_reader import SharedReader
from rocmlab.lab.server.wire import problem_json

Row = dict[str, Any]

# -P: nothing is imported from the current folder, which is the notebooks'; Python 3.10 does not know the option.
READER = (*(("-P",) if sys.version_info >= (3, 11) else ()), "-m", "rocmlab.lab.server.cluster_reader")
LOOK_SECONDS = 4.0  # between two looks, however many watch
ANSWER_SECONDS = 20.0  # for one look
LATE_SECONDS = 4.0  # then the head's port is tried
START_SECONDS = 60.0  # for the first one: Ray's client is imported and connects
RETRY_SECONDS = 10.0  # after a failure
WAIT_SECONDS = 1.5  # that a request waits for a look that is under way
UNUSED_SECONDS = 120.0  # then the reader ends
HEAD_SECONDS = 3.0  # to reach the head's port
LINE_BYTES = 16 << 20  # of one answer; a thousand nodes have some 5 MB
NOT_A_MEMBER = Problem(
    "this lab is not a node of a cluster",
    "CLUSTER is off, which is how a lab starts",
    "make cluster-up      # or, to join one: make cluster-join HEAD=host:port CLUSTER_TOKEN=…",
)


def head(environment: Mapping[str, str] = os.environ) -> str:
    """Return HOST:PORT of the head; empty where this machine is to be it and its node does not run."""
    address = environment.get("CLUSTER", "")
    if environment.get("RAY_ADDRESS"):
        return environment["RAY_ADDRESS"]
    if address != ray_node.HEAD:
        return address
    here = record.here(environment)
    return here[0].head if here else ""


class Cluster:
    """What is known of the other nodes; nothing is started before the first request."""

    def __init__(self, environment: Mapping[str, str] = os.environ, command: Sequence[str] | None = None) -> None:
        """Prepare; `environment` says whether this lab is a node of a cluster, `command` starts the reader."""
        self.is_member = ray_node.is_wanted(environment)
        self.address = ""  # of the head
        self._environment = environment
        self._command = list(command or (sys.executable, *READER))
        self._reader: asyncio.subprocess.Process | None = None
        self._ended: list[asyncio.subprocess.Process] = []  # readers, of which the last may not be quite gone
        self._look: asyncio.Task[None] | None = None
        self._ending: asyncio.TimerHandle | None = None
        self._nodes: list[Row] = []
        self._problem: Row | None = None
        self._answered: float | None = None  # monotonic
        self._again = 0.0  # when the next look may begin
        self._is_closed = False
        seconds = HEAD_SECONDS + 2  # looking up its name included
        self._reaching: SharedReader[reach.Reach] = SharedReader("the head's port", seconds)

    async def now(self) -> Row:
        """Return the nodes, and what is wrong; begins a look where the last one is old, and waits a moment for it."""
        loop = asyncio.get_running_loop()
        if not self._is_closed and (self._look is None or self._look.done()) and loop.time() >= self._again:
            self._look = asyncio.ensure_future(self._ask())
        if self._ending:
            self._ending.cancel()
        self._ending = loop.call_later(UNUSED_SECONDS, self._end)
        if self._look and not self._look.done():
            await asyncio.wait([self._look], timeout=WAIT_SECONDS)
        return self._told()

    def _told(self) -> Row:
        age = None if self._answered is None else round(time.monotonic() - self._answered, 1)
        state = "lost" if self._problem else "starting" if age is None else "alive"
        return {
            "state": state,
            "address": self.address,
            "age_seconds": age,
            "simulated": any(each["simulated"] for each in self._nodes),
            "nodes": self._nodes,
            "problem": self._problem,
        }

    async def _ask(self) -> None:
        pause = RETRY_SECONDS
        self.address = head(self._environment) or self.address
        try:
            answer = await self._answer()
            if "problem" in answer:
                self._problem = problem_json(Problem(**answer["problem"]))
            else:
                self._nodes, self._problem, self._answered = answer["nodes"], None, time.monotonic()
                pause = LOOK_SECONDS
        except (OSError, ValueError, KeyError, TypeError, RocmlabError, asyncio.TimeoutError) as err:
            self._end()
            self._problem = problem_json(await self._why(err))
        finally:
            self._again = asyncio.get_running_loop().time() + pause

    async def _answer(self) -> Row:
        """Return the reader's answer; raise OSError, ValueError or asyncio.TimeoutError if it is missing or invalid."""
        is_new = self._reader is None or self._reader.returncode is not None
        if is_new:
            self._reader = await asyncio.create_subprocess_exec(
                *self._command,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.DEVNULL,
                limit=LINE_BYTES,
                env=dict(self._environment),
            )
        reader = self._reader
        if reader is None or reader.stdin is None or reader.stdout is None:
            raise ValueError("it has no reader")
        reader.stdin.write(b"look\n")
        await reader.stdin.drain()
        line = await self._line(reader.stdout, START_SECONDS if is_new else ANSWER_SECONDS)
        if not line.endswith(b"\n"):
            raise ValueError("the process that queries the cluster has exited")
        found = json.loads(line)
        if not isinstance(found, dict):
            raise ValueError("the process that queries the cluster sent an invalid answer")
        return found

    async def _line(self, stream: asyncio.StreamReader, limit_seconds: float) -> bytes:
        """Return the next line; a late one is waited for only where the head's port is open, else a ValueError."""
        reading = asyncio.ensure_future(stream.readline())
        try:
            await asyncio.wait([reading], timeout=LATE_SECONDS)
            if not reading.done() and not (await self._reach()).is_open:
                raise ValueError("the head is gone")
            return await asyncio.wait_for(reading, limit_seconds - LATE_SECONDS)
        finally:
            reading.cancel()

    async def _reach(self) -> reach.Reach:
        """Try the head's port; raise ValueError if not even that answers."""
        host, port = ports.split(self.address)
        try:
            return await self._reaching.do(lambda: reach.tcp(host, port, HEAD_SECONDS))
        except RocmlabError as err:
            raise ValueError(err.problem.what) from err

    async def _why(self, error: Exception) -> Problem:
        """Return why there is no answer, mostly from the head's port."""
        fix = "on the head: make cluster-status, then: make cluster-up"
        if not self.address:
            return Problem("this lab's Ray node is not running", "so it has no cluster", "make logs; make cluster-up")
        try:
            found = await self._reach()
            host, port = ports.split(self.address)
        except (ValueError, RocmlabError) as err:
            return Problem(f"the head of the cluster at {self.address} is lost", str(err), fix)
        if found.is_open:
            silent = str(error) or f"Ray did not answer within {ANSWER_SECONDS:g} s"
            return Problem(f"the cluster at {self.address} does not answer", silent, "make cluster-status")
        return Problem(f"the head of the cluster at {self.address} is lost", found.sentence(host, port), fix)

    def _end(self) -> None:
        """End the reader, if there is one; it starts nothing that would stay behind."""
        if self._reader and self._reader.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                self._reader.kill()
        if self._reader:
            if self._reader.stdin:
                self._reader.stdin.close()
            self._ended = [*(each for each in self._ended if each.returncode is None), self._reader]
        self._reader = None

    async def close(self) -> None:
        """Look no more."""
        self._is_closed = True
        if self._ending:
            self._ending.cancel()
        if self._look and not self._look.done():
            self._look.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._look
        self._end()
        for reader in self._ended:
            await reader.wait()
            if reader.stdout:
                with contextlib.suppress(ValueError):  # a line that is too long
                    await reader.stdout.read()  # to its end, which lets asyncio close what it has of it
        await asyncio.sleep(0.01)
        self._ended.clear()


def without_users(told: Row) -> Row:
    """Return it for those who may not read kernels: which GPUs are leased, and not by whom."""
    nodes = []
    for each_node in told["nodes"]:
        devices = each_node["devices"]
        if devices is not None:
            devices = [{**each, "lease": each["lease"] and dict.fromkeys(each["lease"])} for each in devices]
        nodes.append({**each_node, "devices": devices})
    return {**told, "nodes": nodes}
