"""GPUs vanish and appear, which numbers the others again: a kernel computes on the one that it has leased, or not."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from kernel_hosts import MASKS, Host, Talk, simulated_host, started, until

from rocmlab.base.errors import RocmlabError
from rocmlab.devices import discover, visibility
from rocmlab.kernels import ownership
from rocmlab.kernels.leases import Holder
from rocmlab.kernels.ownership import NotFree, Owned
from rocmlab.simulation import write_host

ADDRESSES = ["0000:03:00.0", "0000:06:00.0", "0000:09:00.0"]


class Bus:
    """A simulated host with three GPUs, of which some are there."""

    def __init__(self, host: Host) -> None:
        self.host = host
        self.has(0, 1, 2)

    def has(self, *numbers: int) -> None:
        """Have these on the bus and no other; leases stay."""
        faults = [f"vanish:{number}" for number in {0, 1, 2} - set(numbers)]
        write_host(Path(os.environ["ROCMLAB_ROOT"]), gpus=3, faults=faults)

    def named(self, mask: str) -> list[str | None]:
        """Return which GPUs a mask names today."""
        return [gpu.pci_address for gpu in visibility.visible({"HIP_VISIBLE_DEVICES": mask}, discover(), "hip").gpus]

    def of(self, owned: Owned) -> list[str | None]:
        """Return on which GPUs a kernel computes that is started with what it owns."""
        return self.named(owned.environment({})["HIP_VISIBLE_DEVICES"])

    async def of_kernel(self, talk: Talk) -> list[str | None]:
        """Return on which GPUs a kernel computes."""
        return self.named((await talk.run(MASKS)).split()[0])


@pytest.fixture
def bus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Bus]:
    """A simulated host whose GPUs come and go."""
    with simulated_host(tmp_path, monkeypatch) as host:
        yield Bus(host)


def claim(wanted: int | str, notebook: str = "a.ipynb", *, waits: bool = False) -> Owned:
    """Claim GPUs as a kernel's start does."""
    return ownership.claim(wanted, notebook, dict(os.environ), "PyTorch", waits=waits)


def waiting(wanted: int | str) -> ownership.Turn:
    """Claim GPUs that are leased, and return the place in the queue."""
    with pytest.raises(NotFree) as refused:
        claim(wanted, "waits.ipynb", waits=True)
    assert refused.value.turn
    return refused.value.turn


class TestOwned:
    """What is written into a kernel's environment."""

    def test_a_restart_writes_the_number_that_the_leased_gpu_has_today(self, bus: Bus) -> None:
        """A GPU vanishes, and returns: masks and banner follow."""
        second, third = claim(ADDRESSES[1]), claim(ADDRESSES[2])

        bus.has(1, 2)
        without = [ownership.renumbered(each, "PyTorch") for each in (second, third)]
        assert [bus.of(each) for each in without] == [[ADDRESSES[1]], [ADDRESSES[2]]]
        bus.has(0, 1, 2)
        returned = [ownership.renumbered(each, "PyTorch") for each in without]

        assert [bus.of(each) for each in returned] == [[ADDRESSES[1]], [ADDRESSES[2]]]
        assert without[0].banner().startswith("GPU 0: AMD Radeon RX 7900 XTX (0000:06:00.0), leased to this kernel")
        assert returned[0].banner().startswith("GPU 1: AMD Radeon RX 7900 XTX (0000:06:00.0), leased to this kernel")
        for each in returned:
            each.release()
        assert bus.host.holders() == [None] * 3

    def test_a_gpu_that_is_gone_is_an_error(self, bus: Bus) -> None:
        """It names the GPU by its address: its number is another's now."""
        owned = claim("all")
        bus.has(1, 2)

        with pytest.raises(RocmlabError) as refused:
            ownership.renumbered(owned, "PyTorch")

        owned.release()
        problem = refused.value.problem
        assert problem.what == "GPU: AMD Radeon RX 7900 XTX (0000:03:00.0), which this kernel had, is gone"
        assert "renderD128" in problem.why
        assert "Change Kernel… > PyTorch (CPU)" in problem.fix

    def test_the_masks_of_the_lab_do_not_hide_what_is_leased(self, bus: Bus, monkeypatch: pytest.MonkeyPatch) -> None:
        """They are numbers as well, and mean another GPU when one has vanished."""
        monkeypatch.setenv("HIP_VISIBLE_DEVICES", "1")
        owned = claim(1)
        assert bus.of(owned) == [ADDRESSES[1]]
        bus.has(1, 2)

        again = ownership.renumbered(owned, "PyTorch")

        again.release()
        assert bus.named(again.environment({})["HIP_VISIBLE_DEVICES"]) == [ADDRESSES[1]]


class TestTurn:
    """Kernels that wait for GPUs."""

    def test_who_has_waited_gets_the_number_of_today(self, bus: Bus) -> None:
        """The GPU that vanished, free by its lock, is not given to it."""
        first, others = claim(ADDRESSES[0]), [claim(each) for each in ADDRESSES[1:]]
        turn = waiting(1)
        bus.has(1, 2)
        first.release()
        assert turn.attempt() is None

        others[0].release()
        owned = turn.attempt()

        assert owned
        assert bus.of(owned) == [ADDRESSES[1]]
        assert "GPU 0: AMD Radeon RX 7900 XTX (0000:06:00.0)" in owned.banner()
        for each in (owned, others[1]):
            each.release()

    def test_who_waits_for_all_gets_all_that_are_left(self, bus: Bus) -> None:
        """It does not keep them free for ever."""
        first = claim(ADDRESSES[0])
        turn = waiting("all")
        bus.has(1, 2)

        owned = turn.attempt()

        assert owned
        assert bus.of(owned) == ADDRESSES[1:]
        for each in (owned, first):
            each.release()

    @pytest.mark.parametrize(
        ("wanted", "left", "what"),
        [(ADDRESSES[0], (1, 2), "the GPU 0000:03:00.0 is missing"), (1, (), "no GPU can be used here")],
    )
    def test_who_waits_for_what_is_gone_hears_that(
        self, bus: Bus, wanted: int | str, left: tuple[int, ...], what: str
    ) -> None:
        """It has a lease of nothing, and is served if the GPU returns."""
        others = [claim(each) for each in ADDRESSES]
        turn = waiting(wanted)
        bus.has(*left)
        others[0].release()

        with pytest.raises(RocmlabError, match=what):
            turn.attempt()
        bus.has(0, 1, 2)
        owned = turn.attempt()

        assert owned
        assert bus.of(owned) == [ADDRESSES[0]]
        for each in (owned, *others):
            each.release()


@pytest.mark.slow
class TestKernels:
    """Real kernels, restarted after the first GPU has fallen off the bus."""

    def test_each_computes_on_its_own_gpu_and_whose_gpu_is_gone_is_refused(self, bus: Bus) -> None:
        """The lock of the missing GPU is free; a restart later takes another one."""
        bus.host.offer()

        async def scenario() -> None:
            async with started("torch") as first, started("torch-gpu1") as second:
                assert await bus.of_kernel(first) == ADDRESSES[:1]
                (lost, *_) = bus.host.devices
                bus.has(1, 2)
                for talk in (first, second):
                    await talk.manager.restart_kernel()
                    await talk.ready()
                refused = await first.run("print('an ' + 'answer')")
                assert "(0000:03:00.0), which this kernel had, is gone" in refused
                assert "an answer" not in refused
                assert bus.host.leases.is_free(lost)
                assert await bus.of_kernel(second) == ADDRESSES[1:2]
                banner = (await second.client.kernel_info(reply=True))["content"]["banner"]
                assert "GPU 0: AMD Radeon RX 7900 XTX (0000:06:00.0), leased to this kernel" in banner
                await first.manager.restart_kernel()
                await first.ready()
                assert await bus.of_kernel(first) == ADDRESSES[2:]

        asyncio.run(scenario())

        assert bus.host.holders() == [None, None]

    @pytest.mark.long
    def test_one_that_has_waited_is_restarted_on_the_gpu_that_it_leased(self, bus: Bus) -> None:
        """It asked while another GPU was there, and is served when that has vanished."""
        bus.host.offer()

        def served() -> list[str | None]:
            """Return who has GPUs with a process of its own: from then on it is no longer the one that refuses."""
            found = bus.host.leases.held(bus.host.devices).values()
            return [holder.notebook for holder in found if holder.pid != os.getpid()]

        held = [bus.host.leases.take([each], Holder.here("/nb/a.ipynb")) for each in bus.host.devices]

        async def scenario() -> None:
            async with started("torch", "/nb/b.ipynb") as talk:
                assert "no GPU is free" in await talk.run("1")
                bus.has(1, 2)
                for each in held[:2]:
                    assert each
                    each.release()
                await until(lambda: "/nb/b.ipynb" in served(), pause=0.5)
                await talk.ready()
                assert await bus.of_kernel(talk) == ADDRESSES[1:2]

        asyncio.run(scenario())
        assert held[2]
        held[2].release()
