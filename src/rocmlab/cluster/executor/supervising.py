"""One job on a cluster, as the runner sees it: the counterpart of the local `Supervisor`."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Literal, Protocol

from rocmlab.base import formatting, safe
from rocmlab.cluster.executor.places import ClusterPlaces, RemotePlace
from rocmlab.devices import Device
from rocmlab.notebook.outcome import Outcome
from rocmlab.runs.folder import RunFolder, now
from rocmlab.runs.jobs import INTERRUPTED, Job
from rocmlab.runs.workers.supervisor import Event, Limits

AGAIN_SECONDS = 3.0  # until a job that was lost before it began gets another place; by then it is seen which there are
STOP_TIMEOUT_SECONDS = 10.0  # beyond the time to save, until a job that was asked to stop is killed
LINES = ("job waits", "job leased")  # of the journal, that a job's node writes
AWAY = "{node} does not have its notebook at the same place: it ran in a scratch folder there, without files next to it"


class Connection(Protocol):
    """The run's connection to its cluster, as one job needs it."""

    gone: str | None  # why the cluster is
    places: ClusterPlaces | None
    folder: RunFolder | None

    async def submit(self, supervisor: RemoteSupervisor) -> int:
        """Give a job to the cluster, and return the number by which it is known there."""

    async def send(self, command: Mapping[str, Any]) -> None:
        """Give the Ray driver process a command."""

    def forget(self, number: int) -> None:
        """Hear no more of a job."""


class RemoteSupervisor:
    """Has the cluster run one job."""

    def __init__(
        self, job: Job, place: RemotePlace, limits: Limits, see: Callable[[Event], None], cluster: Connection
    ) -> None:
        self.job = job
        self.place = place
        self.limits = limits
        self._see = see
        self._cluster = cluster
        self._heard: asyncio.Queue[Event] = asyncio.Queue()
        self._number: int | None = None
        self._stop: Literal["interrupted", "kill", "force"] | None = None
        self._has_begun = False
        self._started: str | None = None
        self._begin = 0.0
        self._running_cell: int | None = None
        self._warnings: list[str] = []
        self._why_lost = ""
        self._later: list[asyncio.TimerHandle] = []

    def handle(self, event: Event) -> None:
        """Handle an event of this job."""
        self._heard.put_nowait(event)

    async def run(self) -> Outcome:
        """Wait for the job's turn and its end. The runner's own end is no reason to wait: see `kill`."""
        try:
            if self._is_over:
                return Outcome("not run", warnings=self._warnings)
            self._number = await self._cluster.submit(self)
            if self._stop:
                await self._tell(self._stop)  # it came while the job was handed over
            ending = await self._listen()
            if ending is not None:
                return ending
            await asyncio.sleep(AGAIN_SECONDS)
            if self._is_over:
                return Outcome("not run", warnings=self._warnings)
            # Its node has gone, cannot be used, or loses what it is given.
            return replace(self._ending("failed", self._why_lost), is_unplaced=True)
        except BaseException:
            if self._number is not None:
                await self._tell("kill")  # no one will hear of it any more
            raise
        finally:
            if self._number is not None:
                self._cluster.forget(self._number)
            for timer in self._later:
                timer.cancel()

    @property
    def _is_over(self) -> bool:
        """Whether it is not to begin any more."""
        return self._stop is not None or self._cluster.gone is not None

    async def _listen(self) -> Outcome | None:
        """Return how the job ended; None if it was lost before it began."""
        while True:
            event = await self._heard.get()
            kind = event["event"]
            if kind == "ending":
                outcome = Outcome.of_json(event["ending"])
                return replace(outcome, warnings=[*self._warnings, *outcome.warnings])
            if kind in ("broken", "refused", "killed", "cancelled", "lost", "gone"):
                return self._cut_short(kind, event)
            self._take(kind, event)

    def _take(self, kind: str, event: Event) -> None:
        if kind == "placed":
            self._placed(event)
            return
        if kind == "journal":
            assert self._cluster.folder is not None
            line, facts = event["line"], event["facts"]
            if line in LINES and facts.get("job") == self.job.name and not {"event", "time"} & facts.keys():
                self._cluster.folder.log(line, **facts)
            else:
                self._warnings.append(f"its node sent an invalid line for the journal: {safe.shown(line)}")
            return
        if kind == "away":
            self._warnings.append(AWAY.format(node=self.place.node))
            return
        if kind == "cell":
            self._running_cell = event["index"]
        elif kind == "cell done":
            self._running_cell = None
        elif kind == "leased":
            self._started, self._begin = now(), time.monotonic()
        self._see(event)

    def _placed(self, event: Event) -> None:
        self.place.devices = tuple(Device(**device) for device in event["devices"])
        self.place.threads = event["threads"]
        self.place.node, self.place.node_id = event["node"], event["node_id"]
        self._has_begun = True
        self._started, self._begin = now(), time.monotonic()
        if self._cluster.places is not None:
            self._cluster.places.begun(self.place)
        self._see({"event": "placed", "pid": event["pid"]})

    def _cut_short(self, kind: str, event: Event) -> Outcome | None:
        if self._stop:
            return self._ending("killed", INTERRUPTED) if self._has_begun else Outcome("not run")
        if kind == "refused":
            self._why_lost = "{what}: {why}; {fix}".format(**event["problem"])
            return None
        if kind == "broken":
            return self._ending("failed", f"it could not be run: {event['why']}")
        if kind == "killed":
            return self._ending("killed", event["why"])
        if kind == "gone":
            gone = f"the cluster was lost: {event['why']}"
            return self._ending("killed", gone) if self._has_begun else Outcome("not run")
        if not self._has_begun:
            self._why_lost = f"Ray lost it before it began: {event.get('why', '')}"
            return None
        return replace(self._ending("killed", event.get("why", "Ray ended it")), is_lost=kind == "lost")

    def _ending(self, status: Literal["failed", "killed"], message: str) -> Outcome:
        seconds = time.monotonic() - self._begin if self._has_begun else None
        return Outcome(
            status,
            formatting.short(message, 1000),
            running_cell=self._running_cell,
            warnings=self._warnings,
            started=self._started,
            seconds=seconds,
        )

    def stop(self, why: Literal["timeout", "interrupted"]) -> None:
        """Have the job interrupted and saved; its node keeps its times, so that `why` is a user's wish here."""
        if self._stop:
            return
        self._stop = "interrupted"
        self._send("interrupted")
        self._in(self.limits.grace_seconds + STOP_TIMEOUT_SECONDS, self.kill)

    def kill(self) -> None:
        """Have all of the job's processes ended immediately, without saving."""
        if self._stop in ("kill", "force"):
            return
        self._stop = "kill"
        self._send("kill")
        self._in(STOP_TIMEOUT_SECONDS, self._force)

    def _force(self) -> None:
        """End the process of Ray that has it, since it does not answer; if that does not help, wait no more."""
        self._stop = "force"
        self._send("force")
        self._in(STOP_TIMEOUT_SECONDS, lambda: self.handle({"event": "lost", "why": "its node does not answer"}))

    def _in(self, seconds: float, what: Callable[[], None]) -> None:
        self._later.append(asyncio.get_running_loop().call_later(seconds, what))

    def _send(self, why: str) -> None:
        if self._number is not None:
            self._telling = asyncio.get_running_loop().create_task(self._tell(why))

    async def _tell(self, why: str) -> None:
        await self._cluster.send({"do": "stop", "number": self._number, "why": why})
