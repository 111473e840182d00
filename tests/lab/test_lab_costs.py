"""What notebooks take of GPUs is counted by their leases, whether a page is open or not."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import aclosing
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pytest

from rocmlab.devices import Device, device_id, discover, sample
from rocmlab.lab.server.costs import Costs
from rocmlab.lab.server.paths import Shown
from rocmlab.lab.server.telemetry import Telemetry
from rocmlab.simulation import Live
from rocmlab.telemetry.model import GpuProcess, Owner, Snapshot


class Server:
    """Kernels with leases on a simulated host, and the processes that its driver lists."""

    def __init__(self, root: Path) -> None:
        self.live = Live(root, profile="instinct", gpus=2, busy="0:80,1:0")
        self.gpus = [device for device in discover(root) if device.backend == "rocm"]
        self.kernels: list[dict[str, Any]] = []
        self.processes: list[GpuProcess] = []
        self.kept: list[Snapshot] = []
        self.costs = Costs(root, self._leased, self._find, self.kept.append)

    def start(self, name: str, *gpus: Device, age_seconds: float = 0.0) -> dict[str, Any]:
        """Have a kernel with a lease of that age."""
        since = datetime.fromtimestamp(datetime.now().timestamp() - age_seconds, timezone.utc)
        kernel = {"kernel_id": f"kernel of {name}", "notebook": name, "kernel_name": "torch", "gpus": gpus}
        self.kernels.append({**kernel, "since": since.strftime("%Y-%m-%dT%H:%M:%SZ")})
        return self.kernels[-1]

    def read(self) -> dict[str, dict[str, Any]]:
        """Return the rows by notebook."""
        asyncio.run(self.costs.read())
        return {row["notebook"]: row for row in self.costs.rows}

    async def _leased(self) -> Sequence[dict[str, Any]]:
        return self.kernels

    async def _find(self, devices: Sequence[Device]) -> Sequence[GpuProcess]:
        return self.processes


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    """A server without kernels."""
    made = Server(tmp_path)
    yield made
    asyncio.run(made.costs.close())


def test_a_notebook_has_the_time_and_energy_of_its_own_gpus(server: Server, tmp_path: Path) -> None:
    """What each of two cards counts goes to the notebook that leases it, and an hour on two GPUs is two hours."""
    server.start("busy.ipynb", server.gpus[0])
    server.start("idle.ipynb", server.gpus[1])
    server.read()
    watts = [sample(gpu, tmp_path).power_watts for gpu in server.gpus]
    server.live.step(100.0)
    rows = server.read()

    assert [row["kernel_ids"] for row in rows.values()] == [["kernel of busy.ipynb"], ["kernel of idle.ipynb"]]
    assert [row["energy_joules"] for row in rows.values()] == [pytest.approx(100 * each, rel=0.05) for each in watts]
    assert watts[0] > 2 * watts[1]
    assert all(row["is_whole"] and not row["is_shared"] for row in rows.values())
    assert all(row["amount"] is None for row in rows.values())


def test_leases_of_a_notebook_are_added_up_and_stay_after_their_end(server: Server) -> None:
    """The second kernel of a notebook continues its numbers; one that has ended has no kernel and grows no more."""
    server.start("a.ipynb", *server.gpus, age_seconds=10)
    first = server.read()["a.ipynb"]
    server.live.step(50.0)
    server.read()
    server.kernels.clear()
    ended = server.read()["a.ipynb"]
    server.live.step(150.0)
    later = server.read()["a.ipynb"]
    server.start("a.ipynb", server.gpus[0])
    server.read()
    again = server.read()["a.ipynb"]

    assert first["gpu_seconds"] == pytest.approx(20, abs=8)
    assert (ended["kernel_ids"], again["kernel_ids"]) == ([], ["kernel of a.ipynb"])
    assert later == ended
    assert again["energy_joules"] >= ended["energy_joules"] > 0
    assert again["since_seconds"] == ended["since_seconds"]


def test_what_is_not_known_or_not_its_own_is_marked(server: Server) -> None:
    """A lease that was older when reading began, and another process on the GPU; a process of its own is none."""
    kernel = server.start("old.ipynb", server.gpus[0], age_seconds=600)
    server.start("new.ipynb", server.gpus[1], age_seconds=11)
    own = Owner("kernel", notebook="old.ipynb", kernel_id=kernel["kernel_id"])
    server.processes = [
        GpuProcess(device_id(server.gpus[0]), 1, owner=own),
        GpuProcess(device_id(server.gpus[1]), 2, owner=Owner("process")),
    ]
    rows = server.read()

    assert (rows["old.ipynb"]["is_whole"], rows["old.ipynb"]["is_shared"]) == (False, False)
    assert (rows["new.ipynb"]["is_whole"], rows["new.ipynb"]["is_shared"]) == (False, True)  # none after one reading
    assert rows["old.ipynb"]["gpu_seconds"] == pytest.approx(600, abs=8)


def test_a_process_that_has_just_ended_is_nobody_else(server: Server) -> None:
    """Drivers still list it for a moment when the next kernel has the lease."""
    server.start("new.ipynb", server.gpus[0])
    server.processes = [GpuProcess(device_id(server.gpus[0]), 1, owner=Owner("process"))]

    assert server.read()["new.ipynb"]["is_shared"] is False


def test_prices_make_an_amount(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are those of the moment; a price that cannot be read makes none."""
    server.start("a.ipynb", server.gpus[0], age_seconds=3600)
    monkeypatch.setenv("PRICE_PER_GPU_HOUR", "2 EUR")
    priced = server.read()["a.ipynb"]
    monkeypatch.setenv("PRICE_PER_GPU_HOUR", "much")
    wrong = server.read()["a.ipynb"]

    assert (priced["amount"], priced["currency"]) == (pytest.approx(2.0, rel=0.02), "EUR")
    assert wrong["amount"] is None


def test_readings_of_leased_gpus_are_kept_for_the_history(server: Server) -> None:
    """Whoever opens the panel during a training sees what the leased GPU did; the other one is not read."""
    server.read()
    server.start("busy.ipynb", server.gpus[0])
    server.read()
    server.read()

    assert [list(snapshot.samples) for snapshot in server.kept] == [[device_id(server.gpus[0])]] * 2


def test_the_history_takes_them_only_while_no_one_watches(server: Server, tmp_path: Path) -> None:
    """A viewer's readings, one a second, are the better ones; after the viewer the others continue."""

    async def told() -> tuple[list[float], list[float]]:
        telemetry = Telemetry(tmp_path, list, Shown(tmp_path))
        name = device_id(server.gpus[0])
        hub = await telemetry.hub()
        reading = Snapshot(1_800_000_000.0, {name: sample(server.gpus[0], tmp_path)})
        telemetry.keep(reading)
        alone = hub.history.times(900)
        async with aclosing(hub.watch()) as snapshots:
            await anext(snapshots)
            telemetry.keep(replace(reading, time_seconds=1_800_000_010.0))
        await telemetry.close()
        return alone, hub.history.times(900)

    alone, watched = asyncio.run(told())

    assert alone == [1_800_000_000.0]
    assert 1_800_000_010.0 not in watched
