"""What a run has once on each node: its fork servers, and the requests to jobs to stop.

It is an actor of Ray without resources. It belongs to the Ray driver process, and ends with it.
"""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from rocmlab.cluster.node import session
from rocmlab.kernels.recipes import Recipe
from rocmlab.runs.folder import RunFolder
from rocmlab.runs.workers.forking import Group, JobForkServers

KEPT = "kept"  # the folder for what could not be copied back
DONE = ""  # what its watcher gets when its job has ended by itself


@dataclass
class _StopRequest:
    """The request to a job to stop."""

    why: str | None = None  # None: nothing yet
    changed: asyncio.Event = field(default_factory=asyncio.Event)


class NodeAgent:
    """The fork servers of one node, and the jobs there that are to stop."""

    def __init__(self, run: str, groups: Mapping[Group, int]) -> None:
        """Begin without a fork server; one is worth its start if several jobs of a group are to come."""
        session.restore_signals()
        self._scratch = scratch(run)
        self._fork_servers = JobForkServers()
        self._fork_servers.expect(groups)
        self._stop_requests: dict[int, _StopRequest] = {}
        self._ended: set[int] = set()

    async def fork_server(self, group: Group, recipe: Recipe) -> tuple[str | None, str | None]:
        """Return the address of a fork server, and, where there should be one, why there is none."""
        return self._fork_servers.address(group, recipe)

    async def watch(self, number: int, heard: str | None = None) -> str:
        """Wait until a job is to stop for another reason than was heard before, and return why.

        It is empty when the job has ended by itself.
        """
        if number in self._ended:
            return DONE
        request = self._stop_requests.setdefault(number, _StopRequest())
        while request.why in (None, heard):
            request.changed.clear()
            await request.changed.wait()
        assert request.why is not None
        return request.why

    async def stop(self, number: int, why: str) -> None:
        """Have a job stop, which may not have begun; harder, the second time."""
        if number not in self._ended:
            self._say(number, why)

    async def done(self, number: int) -> None:
        """Forget a job that has ended."""
        self._ended.add(number)
        self._say(number, DONE)
        del self._stop_requests[number]

    def _say(self, number: int, why: str) -> None:
        request = self._stop_requests.setdefault(number, _StopRequest())
        request.why = why
        request.changed.set()

    async def delivered(self, folder: str, job: str) -> None:
        """Remove what a job has left on this node; the runner has it, in the run folder of that name."""
        left = RunFolder(self._scratch / folder)
        for name in left.files(job).values():
            (left.path / name).unlink(missing_ok=True)

    async def keep(self, folder: str, job: str, number: int) -> str:
        """Keep what a job has left on this node, since the runner cannot take all of it, and return where it is."""
        left, kept = RunFolder(self._scratch / folder), self._scratch / KEPT / f"{number}"
        kept.mkdir(mode=0o700, parents=True, exist_ok=True)
        for name in left.files(job).values():
            (left.path / name).rename(kept / name)
        return str(kept)

    async def close(self) -> None:
        """End the fork servers, and remove what jobs have left on this node, except what is kept."""
        await asyncio.to_thread(self._fork_servers.close)
        for path in self._scratch.glob("*"):
            if path.name != KEPT:
                shutil.rmtree(path, ignore_errors=True)
        with contextlib.suppress(OSError):  # it never was, or something is kept
            self._scratch.rmdir()


def scratch(run: str) -> Path:
    """Return the folder on a node for what jobs of a run keep there until it is copied back."""
    return Path(tempfile.gettempdir(), f"rocmlab-run-{run}")


def agent_name(run: str, node_id: str) -> str:
    """Return what a run's agent on a node is called."""
    return f"rocmlab-agent-{run}-{node_id}"
