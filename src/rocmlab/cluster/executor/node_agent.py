"""What a run has once on each node: its fork servers, and the word to a job that it should stop.

It is an actor of Ray without resources. It belongs to the process that speaks to Ray, and ends with it.
"""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rocmlab.cluster.node import session
from rocmlab.runs.jobs import Job
from rocmlab.runs.workers.forking import MIN_JOBS, JobForkServers

DONE = ""  # what whoever watches hears when its job has ended by itself


@dataclass
class _Word:
    """What was said to a job."""

    why: str | None = None  # None: nothing yet
    changed: asyncio.Event = field(default_factory=asyncio.Event)


class NodeAgent:
    """The fork servers of one node, and the jobs there that are to stop."""

    def __init__(self, run: str, groups: Sequence[Sequence[Any]]) -> None:
        """Begin without a fork server.

        Args:
            run: a word for the run that no other has.
            groups: kernel, GPUs and number of the run's jobs: a fork server is worth its start if several use it.
        """
        session.restore_signals()
        self._scratch = scratch(run)
        self._fork_servers = JobForkServers()
        for kernel, gpus, count in groups:
            job = Job("", "", kernel=kernel, gpus=gpus)
            self._fork_servers.expect([job] * min(count, MIN_JOBS))
        self._words: dict[int, _Word] = {}
        self._ended: set[int] = set()

    async def fork_server(
        self, kernel: str | None, gpus: int | str | None, environment: Mapping[str, str]
    ) -> tuple[str | None, str | None]:
        """Return the address of a fork server, and, where there should be one, why there is none."""
        return self._fork_servers.address(Job("", "", kernel=kernel, gpus=gpus), environment)  # type: ignore[arg-type]

    async def watch(self, number: int, heard: str | None = None) -> str:
        """Wait until a job is to stop, and return why; empty when it has ended by itself.

        Args:
            number: the job's.
            heard: the last word that its watcher knows: only another one is news.
        """
        if number in self._ended:
            return DONE
        word = self._words.setdefault(number, _Word())
        while word.why in (None, heard):
            word.changed.clear()
            await word.changed.wait()
        assert word.why is not None
        return word.why

    async def stop(self, number: int, why: str) -> None:
        """Have a job stop, which may not have begun; harder, the second time."""
        if number not in self._ended:
            self._say(number, why)

    async def done(self, number: int) -> None:
        """Forget a job that has ended."""
        self._ended.add(number)
        self._say(number, DONE)
        del self._words[number]

    def _say(self, number: int, why: str) -> None:
        word = self._words.setdefault(number, _Word())
        word.why = why
        word.changed.set()

    async def close(self) -> None:
        """End the fork servers, and remove what jobs have left on this node."""
        await asyncio.to_thread(self._fork_servers.close)
        shutil.rmtree(self._scratch, ignore_errors=True)


def scratch(run: str) -> Path:
    """Return the folder on a node for what jobs of a run keep there until it is brought home."""
    return Path(tempfile.gettempdir(), f"rocmlab-run-{run}")


def agent_name(run: str, node_id: str) -> str:
    """Return what a run's agent on a node is called."""
    return f"rocmlab-agent-{run}-{node_id}"
