"""What all views of one server share: one sampler, one state, and those who watch."""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import Callable, Sequence
from contextlib import aclosing, suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rocmlab.base import live, prices
from rocmlab.base.errors import RocmlabError
from rocmlab.devices import Device, is_simulated, system_root
from rocmlab.lab.server import telemetry
from rocmlab.lab.server.broadcast import Broadcast
from rocmlab.lab.server.cluster import Cluster
from rocmlab.lab.server.kernels import Kernels, Row
from rocmlab.lab.server.paths import Shown
from rocmlab.lab.server.shared_reader import SharedReader
from rocmlab.lab.server.state import State
from rocmlab.lab.server.telemetry import Telemetry
from rocmlab.lab.server.wire import event, failure, history_json, problem_json
from rocmlab.telemetry.model import Snapshot, device_id

if TYPE_CHECKING:
    from rocmlab.lab.server.costs import Costs
    from rocmlab.lab.server.unwatched import Unwatched

log = logging.getLogger("rocmlab")

STATE_SECONDS = 1.5  # until the next look at the kernels where no snapshot comes
RETRY_SECONDS = 5.0  # after a failure of the sampler
CLOSE_SECONDS = 1.0  # at most, in which the server ends
SILENT_SECONDS = 10.0  # without a snapshot
RECORDING_RETRY_SECONDS = 60.0
LAB = {"user": "ROCMLAB_USER", "lab": "ROCMLAB_LAB"}  # label: variable


class Panel:
    """One server's GPUs and kernels, for all viewers. Without one, only what costs and the history need is read."""

    def __init__(self, kernels: Any, sessions: Any, folder: Path) -> None:  # noqa: ANN401
        """Prepare, with jupyter_server's managers and the folder that it shows; nothing is looked at."""
        shown = Shown(folder)
        self.root = system_root()
        self.kernels = Kernels(kernels, sessions)
        self.state = State(self.root, self.kernels, shown)
        self.telemetry = Telemetry(self.root, lambda: self.state.rows, shown)
        self.cluster = Cluster()
        self.costs: Costs | None = None  # of the notebooks; None as long as no kernel has had a lease
        self._unwatched: Unwatched | None = None
        self._writing: SharedReader[tuple[bytes, str]] = SharedReader("the metrics", 10.0)
        self._packing: SharedReader[bytes] = SharedReader("the history", 30.0)
        self._recording: asyncio.Task[None] | None = None
        self.broadcast = Broadcast(self._start, self._stop)
        self._tasks: list[asyncio.Task[None]] = []
        self._snapshot: Snapshot | None = None
        self._sampled_seconds = 0.0  # on the monotonic clock
        self._failure: list[Row] = []  # of the sampler
        self._news = asyncio.Event()

    # -- what views ask for ----------------------------------------------------------------------------------------

    async def devices(self) -> Row:
        """Return every device with its id, and what is wrong with them."""
        watched = self.telemetry.devices if len(self.broadcast) else ()
        found: Sequence[Device] = watched or await self.state.devices()
        self.state.begin_to_ask_doctor(self.telemetry.devices, self._news.set)
        await self.state.doctor_answered()
        return {
            "simulated": is_simulated(self.root),
            "is_in_cluster": self.cluster.is_member,
            "devices": [{**device.as_dict(), "id": device_id(device)} for device in found],
            "problems": [*self._failure, *self.state.found],
        }

    async def history(self, seconds: float, metrics: Sequence[str], is_packed: bool) -> bytes:
        """Return as JSON what was sampled in the last seconds, of these fields of a Sample, or of all if empty."""
        times, series = await telemetry.history(await self.telemetry.hub(), seconds, metrics)
        return await self._packing.do_own(lambda: history_json(times, series, is_packed))

    async def metrics(self, names: str, accept: str, sees_kernels: bool = True) -> tuple[bytes, str]:
        """Return the current metrics for Prometheus, and their content type; also while there is no viewer.

        Args:
            names: rocmlab, amd or both; others raise WrongRequestError.
            accept: that header of the request.
            sees_kernels: whether who asks may know of kernels and their notebooks.
        """
        telemetry.check_names(names)
        await self.state.kernels()
        snapshot = await self.telemetry.now()
        leases = await self.state.leases(self.telemetry.devices)
        devices = self.telemetry.known
        lab = {label: os.environ[name] for label, name in LAB.items() if sees_kernels and os.environ.get(name)}
        if not sees_kernels:
            snapshot, leases = _without_owners(snapshot), _without_holders(leases)
        return await self._writing.do_own(
            lambda: telemetry.exposition(snapshot, devices, names, accept, leases, self.root, lab)
        )

    async def act(self, kernel_id: str, action: str) -> None:
        """Apply an action to a kernel, and update all viewers immediately."""
        try:
            await self.kernels.act(kernel_id, action)
        finally:
            self.state.forget_leases()
            self._news.set()

    def follow_costs(self) -> None:
        """Read from now on what the notebooks take of GPUs, also while there are no viewers."""
        if self.costs is None:
            from rocmlab.lab.server.costs import Costs

            self.costs = Costs(self.root, self._leased, self.telemetry.processes, self.telemetry.keep)
            self.costs.start()

    def keep_history(self) -> None:
        """Read from now on the GPUs that are awake in any case, also while there are no viewers."""
        if self._unwatched is None:
            from rocmlab.lab.server.unwatched import Unwatched

            self._unwatched = Unwatched(self.root, self.telemetry, lambda: self.costs.reading if self.costs else ())
            self._unwatched.start()

    async def _leased(self) -> list[Row]:
        found = [{**row, "gpus": self.kernels.gpus(row["kernel_id"])} for row in await self.state.kernels()]
        return [row for row in found if row["since"] and row["gpus"]]

    async def close(self) -> None:
        """Disconnect the viewers, and stop; what does not end within a second is abandoned."""
        self.broadcast.close()
        tasks = [*self._tasks, *self.state.tasks(), *([self._recording] if self._recording else [])]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=CLOSE_SECONDS / 2)
        with suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self.cluster.close(), CLOSE_SECONDS / 2)
        for reader in (self.costs, self._unwatched, self.telemetry):
            if reader is not None:
                with suppress(asyncio.TimeoutError):
                    await asyncio.wait_for(reader.close(), CLOSE_SECONDS / 2)

    def record(self) -> None:
        """Read the devices from now on, also without viewers, so that the history is there when one comes."""
        if self._recording is None:
            self._recording = asyncio.ensure_future(self._record())

    def stop_recording(self) -> None:
        """Read the devices only while there are viewers, from now on."""
        if self._recording is not None:
            self._recording.cancel()
            self._recording = None

    async def _record(self) -> None:
        reported = ""
        while True:
            try:
                hub = await self.telemetry.hub()
                break
            except Exception as err:
                why = failure("the GPUs cannot be sampled", err)["why"]
                if why != reported:
                    log.warning("RECORD_GPUS=on, but nothing is recorded: %s", why)
                reported = why
            await asyncio.sleep(RECORDING_RETRY_SECONDS)
        with hub.keep():
            while True:
                with suppress(Exception):  # each view shows why
                    await self.state.kernels()  # the owners of processes are found with them
                await asyncio.sleep(telemetry.PROCESSES_SECONDS)

    # -- while there are viewers -----------------------------------------------------------------------------------

    def _start(self) -> None:
        self._snapshot, self._sampled_seconds = None, time.monotonic()
        self._tasks = [asyncio.ensure_future(each) for each in (self._sample(), self._look())]

    def _stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        self._tasks = []

    async def _sample(self) -> None:
        """Pass each snapshot on, in the same bytes to all; retry where it fails."""
        while True:
            try:
                async with aclosing(self.telemetry.watch()) as snapshots:  # type: ignore[type-var]
                    async for snapshot in snapshots:
                        self._snapshot, self._sampled_seconds, self._failure = snapshot, time.monotonic(), []
                        self.broadcast.send("snapshot", *_snapshot_events(snapshot))
                        self._news.set()  # the state is also read now, which saves the process a wake-up
            except Exception as err:
                self._failure = [failure("the GPUs cannot be sampled", err)]
            await asyncio.sleep(RETRY_SECONDS)

    async def _look(self) -> None:
        """Pass the state on when it has changed; the doctor's answer comes when it comes."""
        sent: Any = None
        while True:
            self._news.clear()
            self.state.begin_to_ask_doctor(self.telemetry.devices, self._news.set)
            try:
                state = await self.state.now(self._snapshot, self.telemetry.devices, self._failures())
                state["costs"] = self.costs.rows if self.costs else []
                known = _lasting(state)
                if known != sent:
                    sent = known
                    self.broadcast.send("state", *_state_events(state))
            except Exception:
                log.exception("the state of the GPU panel could not be sent")
            with suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._news.wait(), STATE_SECONDS)

    def _failures(self) -> list[Row]:
        """Return what is wrong with the sampler, what it found wrong, and a price that cannot be read."""
        return [*self._of_sampler(), *_price_problems()]

    def _of_sampler(self) -> list[Row]:
        if self._failure:
            return self._failure
        if time.monotonic() - self._sampled_seconds < SILENT_SECONDS:
            return [problem_json(problem) for problem in self.telemetry.problems]
        return [failure("", self.telemetry.silence(f"there was no sample for more than {SILENT_SECONDS:g} seconds"))]


def _price_problems() -> list[Row]:
    try:
        prices.parse(live.values())
    except RocmlabError as err:
        return [problem_json(err.problem, status="warns")]
    return []


def _snapshot_events(snapshot: Snapshot) -> tuple[bytes, Callable[[], bytes]]:
    return event("snapshot", snapshot.as_dict()), lambda: event("snapshot", _without_owners(snapshot).as_dict())


def _state_events(state: Row) -> tuple[bytes, Callable[[], bytes]]:
    """Return a state for all, and for those who may not read kernels: its leases and problems."""
    return event("state", state), lambda: event(
        "state", {**state, "kernels": [], "idle_holders": [], "costs": [], "leases": _without_holders(state["leases"])}
    )


def _without_owners(snapshot: Snapshot) -> Snapshot:
    """Return it without whose the processes are; their commands name kernels and notebooks as well."""
    if not snapshot.processes:
        return snapshot
    return replace(snapshot, processes=tuple(replace(each, owner=None, command=None) for each in snapshot.processes))


def _without_holders(leases: Sequence[Row] | None) -> list[Row] | None:
    """Return which GPUs are leased, and not by whom or by which notebook."""
    if leases is None:
        return None
    shown = ("device", "index", "name")
    return [{name: value if name in shown else None for name, value in lease.items()} for lease in leases]


def _lasting(state: Row) -> Row:
    """Return what counts as news: all but the seconds for which a kernel has been idle, which grow by themselves."""
    changing = {name: [{**row, "idle_seconds": None} for row in state[name]] for name in ("kernels", "idle_holders")}
    return {**state, **changing}
