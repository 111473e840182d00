"""What a lab's server says where something cannot be read, or is there no more."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Callable, Coroutine
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from rocmlab.base import lease_folder
from rocmlab.devices import device_id, discover
from rocmlab.kernels import holders
from rocmlab.kernels.leases import Holder, Leases
from rocmlab.lab.server import cluster_reader, look
from rocmlab.lab.server.panel import Panel
from rocmlab.simulation import Live, write_host
from rocmlab.telemetry import hub
from rocmlab.telemetry.model import Snapshot


class NoKernels:
    """Jupyter's managers, of a server without kernels."""

    def list_kernel_ids(self) -> list[str]:
        """None."""
        return []

    def list_sessions(self) -> list[dict[str, Any]]:
        """None."""
        return []


def in_panel(root: Path, monkeypatch: pytest.MonkeyPatch, test: Callable[[Panel], Coroutine[Any, Any, None]]) -> None:
    """Do something with the panel of a server on a host."""
    monkeypatch.setenv("ROCMLAB_ROOT", str(root))

    async def run() -> None:
        panel = Panel(NoKernels(), NoKernels(), root)
        try:
            await asyncio.wait_for(test(panel), 120)
        finally:
            await panel.close()

    asyncio.run(run())


def exhausted(path: Path) -> int:
    """Open no file, because this process has too many open."""
    raise OSError(errno.EMFILE, "Too many open files", str(path))


def up(text: bytes) -> dict[str, float]:
    """Return by PCI address whether metrics call a GPU up."""
    families = text_string_to_metric_families(text.decode())
    samples = [sample for family in families for sample in family.samples if sample.name == "rocmlab_gpu_up"]
    return {sample.labels["pci"]: sample.value for sample in samples}


def test_a_gpu_that_goes_is_down_in_the_metrics(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It stays as long as the server runs, and is up again when it is back."""
    monkeypatch.setattr(hub, "FIND_SECONDS", 0.05)
    monkeypatch.setattr("rocmlab.lab.server.telemetry.INTERVAL_SECONDS", 0.1)
    live = Live(tmp_path, gpus=2, busy="steady", faults=["vanish:0:5"])
    gone, stays = (gpu.address for gpu in live.host.gpus)

    async def test(panel: Panel) -> None:
        async def until(expected: dict[str, float]) -> None:
            while up((await panel.metrics("rocmlab", ""))[0]) != expected:
                await asyncio.sleep(0.05)

        await until({gone: 1, stays: 1})
        live.step(6)
        await until({gone: 0, stays: 1})
        write_host(tmp_path, gpus=2, busy="30")
        await until({gone: 1, stays: 1})

    in_panel(tmp_path, monkeypatch, test)


def test_leases_that_cannot_be_read_are_unknown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No GPU is free then, and a problem shows why; the metrics have none of them, and who may see less also hears."""
    write_host(tmp_path, gpus=2, busy="30")

    async def test(panel: Panel) -> None:
        state = await panel.state.now(None, (), ())
        assert (state["leases"], state["problems"]) == ([], [])

        with monkeypatch.context() as patch:
            patch.setattr(holders, "opened", exhausted)
            panel.state.forget_leases()
            state = await panel.state.now(None, (), ())
            assert state["leases"] is None
            assert [problem["why"] for problem in state["problems"]] == ["Too many open files"]
            for sees_kernels in (True, False):
                assert up((await panel.metrics("both", "", sees_kernels))[0])

        panel.state.forget_leases()
        assert (await panel.state.now(None, (), ()))["leases"] == []

    in_panel(tmp_path, monkeypatch, test)


def test_viewers_hear_of_leases_that_are_unknown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the events of the stream it is null, for those who may not read kernels too."""
    write_host(tmp_path, gpus=1, busy="30")
    monkeypatch.setattr(holders, "opened", exhausted)

    async def test(panel: Panel) -> None:
        for sees_kernels in (True, False):
            with panel.broadcast.viewer(sees_kernels) as viewer:
                told = b""
                while b'"leases":null' not in told.replace(b" ", b""):
                    told = await viewer.take(1)

    in_panel(tmp_path, monkeypatch, test)


def test_a_node_that_cannot_read_its_leases_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What it shows of each GPU is complete but for who has it; one that can names the holder, or none."""
    monkeypatch.setenv("ROCMLAB_ROOT", str(write_host(tmp_path, gpus=2, busy="30")))
    first = next(device for device in discover(tmp_path) if device.backend == "rocm")
    lease = Leases(lease_folder.path({}, tmp_path)).take([first], Holder.here("train.ipynb"))
    assert lease is not None
    seen = cluster_reader.see()["devices"]
    monkeypatch.setattr(holders, "opened", exhausted)

    unknown = cluster_reader.see()["devices"]
    lease.release()

    assert [one["is_lease_unknown"] for one in seen] == [False, False]
    assert [one["lease"] and one["lease"]["notebook"] for one in seen] == ["train.ipynb", None]
    assert [(one["is_lease_unknown"], one["lease"]) for one in unknown] == [(True, None), (True, None)]
    assert [one["busy_percent"] for one in unknown] == [30, 30]


@pytest.mark.parametrize("is_ours", [True, False])
def test_the_number_of_a_process_is_that_of_a_namespace(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_ours: bool
) -> None:
    """A lease's process has a number here where it counts as this server does; else the number is another's."""
    write_host(tmp_path, gpus=1, busy="30")
    here = Holder.here("train.ipynb")
    namespace = here.namespace if is_ours else (here.namespace or 0) + 1
    monkeypatch.setattr(look, "leases", lambda seen, shown: [leased(seen[0], here, namespace)])

    def leased(device: Any, holder: Holder, namespace: int | None) -> dict[str, Any]:
        return {**asdict(holder), "device": device_id(device), "namespace": namespace}

    async def test(panel: Panel) -> None:
        (found,) = await panel.state.leases(discover(tmp_path)) or ()
        assert (found["pid"], found["local_pid"]) == (here.pid, here.pid if is_ours else None)

    in_panel(tmp_path, monkeypatch, test)


def test_why_there_is_no_sample(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The sampler's own error where it has one; a driver hangs where it has none."""
    write_host(tmp_path, gpus=1, busy="30")

    def broken(self: object) -> Snapshot:
        raise RuntimeError("can't start new thread")

    async def test(panel: Panel) -> None:
        assert panel.telemetry.silence("no sample").problem.why == "a driver does not answer"
        monkeypatch.setattr("rocmlab.telemetry.sampler.Sampler.read", broken)
        with (await panel.telemetry.hub()).keep():
            while not panel.telemetry.problems:
                await asyncio.sleep(0.01)
            found = panel.telemetry.silence("no sample").problem
        assert (found.what, found.why) == ("the devices could not be read", "RuntimeError: can't start new thread")

    in_panel(tmp_path, monkeypatch, test)
