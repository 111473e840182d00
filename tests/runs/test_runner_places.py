"""Which GPUs a job gets on hosts of any kind, and that every job comes to its turn."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from placing import take

from rocmlab.devices import Device, discover
from rocmlab.runs.jobs import Job
from rocmlab.runs.scheduling.place import Place
from rocmlab.runs.scheduling.placement import Slots, free_vram
from rocmlab.runs.scheduling.plan import Queue, longest_first
from rocmlab.simulation import write_host

GIB = 2**30
CPU = Device(backend="cpu", index=0, name="a processor", is_usable=True)


def gpu(index: int, gib: int | None = 24, name: str = "XTX", gfx: str = "gfx1100", **fields: object) -> Device:
    """Return a GPU."""
    vram = None if gib is None else gib * GIB
    address = f"0000:{index:02x}:00.0"
    return Device("rocm", index, f"{name} {gib}", True, gfx=gfx, pci_address=address, vram_bytes=vram, **fields)


def job(name: str, gpus: object = None, gib: int | None = None, *, mixed: bool = False) -> Job:
    """Return a job that requests GPUs."""
    return Job(name, f"/{name}.ipynb", gpus=gpus, vram_bytes=gib and gib * GIB, is_mixed=mixed)


def indices(taken: tuple[Job, Place] | None) -> list[int]:
    """Return the GPUs of what was taken."""
    return [] if taken is None else [each.index for each in taken[1].gpus]


SMALL_AND_BIG = [gpu(0, 48), gpu(1, 16), gpu(2, 16)]


def test_a_job_gets_the_smallest_gpu_that_fits() -> None:
    """The big card stays free for who needs it."""
    slots = Slots(SMALL_AND_BIG, CPU)

    found = [indices(take(slots, [each])) for each in (job("a"), job("b", gib=20), job("c"))]

    assert found == [[1], [0], [2]]


def test_the_only_big_gpu_is_kept_for_a_job_that_needs_it() -> None:
    """A small job waits for a small card although it came first; the big job goes ahead on the big card."""
    slots = Slots(SMALL_AND_BIG, CPU)
    busy = [take(slots, [job(name)]) for name in ("a", "b")]
    small, big = job("small"), job("big", gib=40)

    first = take(slots, [small, big])
    second = take(slots, [small])
    slots.release(busy[1][1])
    third = take(slots, [small])

    assert (first[0], indices(first)) == (big, [0])
    assert second is None
    assert indices(third) == [2]


def test_the_big_gpu_is_used_when_nobody_needs_it() -> None:
    """A GPU that no one waits for is not left idle."""
    slots = Slots(SMALL_AND_BIG, CPU)

    assert [indices(take(slots, [job(name)])) for name in "abc"] == [[1], [2], [0]]


def test_several_gpus_are_of_one_product_unless_they_may_be_mixed() -> None:
    """Equal name, gfx and memory; `all` is the largest such set."""
    gpus = [gpu(0, 48), gpu(1, 16), gpu(2, 16)]

    assert indices(take(Slots(gpus, CPU), [job("a", 2)])) == [1, 2]
    assert indices(take(Slots(gpus, CPU), [job("a", "all")])) == [1, 2]
    assert indices(take(Slots(gpus, CPU), [job("a", "all", mixed=True)])) == [0, 1, 2]
    assert indices(take(Slots(gpus, CPU, is_mixed=True), [job("a", 3)])) == [0, 1, 2]
    assert indices(take(Slots(gpus, CPU), [job("a", "all", 40)])) == [0]
    problem = Slots(gpus, CPU).problem(job("a", 3))
    assert problem.what == "it asks for 3 GPUs"
    assert "this run has 2 of one product" in problem.why
    assert "--mixed" in problem.fix


@pytest.mark.parametrize(
    ("asking", "gpus", "why"),
    [
        (job("a", gib=64), SMALL_AND_BIG, "those of this run have 17.18 GB, 51.54 GB"),
        (job("a", "all", 64), SMALL_AND_BIG, "those of this run have"),
        (job("a", 2, 40), SMALL_AND_BIG, "this run has 1 with 42.95 GB of VRAM"),
        (job("a", gib=8), [], "this run has no GPU"),
        (job("a", gib=8), [gpu(0, None)], "an unknown amount"),
    ],
)
def test_vram_that_is_not_there_is_a_problem(asking: Job, gpus: list[Device], why: str) -> None:
    """It is neither waited for nor replaced by less."""
    problem = Slots(gpus, CPU).problem(asking)

    assert why in problem.why
    assert problem.fix


def test_vram_counts_the_memory_of_an_apu_and_not_of_the_cpu() -> None:
    """It is the host's or its own, never both together; a job that wants the CPU wants no VRAM."""
    apu = gpu(0, 2, is_apu=True, gtt_bytes=60 * GIB, pool="gtt")
    older = gpu(0, 2, is_apu=True, gtt_bytes=60 * GIB, pool="vram")

    assert Slots([apu], CPU).problem(job("a", gib=48)) is None
    assert Slots([apu], CPU).problem(job("a", gib=61)) is not None
    assert Slots([older], CPU).problem(job("a", gib=48)) is not None
    assert Slots([apu], CPU).problem(job("a", 0, 500)) is None


def test_vram_that_others_use_is_waited_for() -> None:
    """The job gets the GPU with room; where none has, others go ahead, and it goes when there is room."""
    free: dict[int, int | None] = {0: 4 * GIB, 1: 20 * GIB}
    gpus = [gpu(0), gpu(1), gpu(2)]
    slots = Slots(gpus, CPU, free_vram=lambda device: free.get(device.index))

    first = take(slots, [job("a", gib=16)])
    unknown = take(slots, [job("b", gib=16)])
    none = take(slots, [job("c", gib=16)])
    other = take(slots, [job("c", gib=16), job("d")])
    slots.release(other[1])
    free[0] = 20 * GIB
    last = take(slots, [job("c", gib=16)])

    assert [indices(each) for each in (first, unknown, other, last)] == [[1], [2], [0], [0]]
    assert none is None
    assert other[0].name == "d"


def test_a_job_that_is_tried_again_gets_another_gpu_if_one_is_free() -> None:
    """The one on which it died may be the cause; alone it is better than none."""
    gpus = [gpu(0), gpu(1)]
    excluded = {"a": Place((gpus[0],), 1)}

    elsewhere = take(Slots(gpus, CPU), [job("a")], excluded)
    alone = take(Slots(gpus[:1], CPU), [job("a")], excluded)

    assert indices(elsewhere) == [1]
    assert elsewhere[1].options()[0] is gpus[1]
    assert indices(alone) == [0]


def test_a_waiting_set_does_not_block_the_other_products() -> None:
    """A job for two small cards waits for these; a job for the big one continues."""
    slots = Slots(SMALL_AND_BIG, CPU)
    running = take(slots, [job("a")])
    waiting = [job("pair", 2), job("b", gib=10), job("big", gib=40)]

    taken = take(slots, waiting)
    nothing = take(slots, waiting[:2])
    slots.release(running[1])
    pair = take(slots, waiting[:2])

    assert indices(taken) == [0]
    assert nothing is None or nothing[0].name != "b" or indices(nothing) == [0]
    assert pair[0].name == "pair"


def test_a_claim_never_takes_what_another_claim_cannot_do_without() -> None:
    """The only big card is not among the choices of a claim that could have a small one."""
    slots = Slots([gpu(0, 48), gpu(1, 16)], CPU)
    _, small = take(slots, [job("small")])
    _, big = take(slots, [job("big", gib=40)])

    assert [each.index for each in small.options()] == [1]
    small.settle(small.options())
    assert [each.index for each in big.options()] == [0]


def test_the_longest_goes_first_and_the_unknown_before_it() -> None:
    """What takes a night should not begin in the morning; equals keep their order."""
    jobs = [job(name) for name in "abcdef"]

    found = longest_first(jobs, {"a": 1.0, "c": 9.0, "d": 5.0, "f": 5.0})

    assert [each.name for each in found] == ["b", "e", "c", "d", "f", "a"]


def test_the_queue_looks_at_one_job_of_a_kind() -> None:
    """Ten thousand jobs that ask for the same are one line, and a job put first is first."""
    slots = Slots([gpu(0)], CPU)
    queue = Queue([job(str(number), number % 2) for number in range(10_000)], slots)

    heads = queue.heads()
    queue.remove(heads[0])
    queue.put_first(job("again", 1), Place(slots.gpus, 1))

    assert [each.name for each in heads] == ["0", "1"]
    assert [each.name for each in queue.heads()] == ["again", "1", "2"]
    assert len(queue) == len(list(queue)) == 10_000
    assert next(iter(queue)).name == "again"


HOSTS = st.lists(st.tuples(st.sampled_from([8, 16, 48]), st.sampled_from(["gfx1100", "gfx90a"])), max_size=5)
JOBS = st.lists(
    st.tuples(
        st.sampled_from([None, None, 0, 1, 2, 3, "all"]), st.sampled_from([None, None, 8, 16, 40]), st.booleans()
    ),
    max_size=14,
)


class Simulation:
    """A run without processes: jobs are placed, leased in any order that others allow, and end."""

    def __init__(self, gpus: Sequence[Device], jobs: Sequence[Job], data: st.DataObject) -> None:
        self.slots = Slots(gpus, CPU, cores=8)
        self.possible = [each for each in jobs if not self.slots.problem(each)]
        self.queue = Queue(self.possible, self.slots)
        self.data = data
        self.placed: dict[str, Place] = {}
        self.claims: list[str] = []
        self.finished: list[str] = []
        self.overtaken: dict[str, int] = {each.name: 0 for each in self.possible}

    def step(self) -> None:
        """Place all that can be, then settle a claim or end a job."""
        while taken := take(self.slots, self.queue.heads(), self.queue.excluded):
            asking, place = taken
            self.queue.remove(asking)
            assert len(place.gpus) == self.slots.wanted(asking)
            self.placed[asking.name] = place
            if place.gpus:
                self.claims.append(asking.name)
            self.check()
        settled = [name for name in self.placed if name not in self.claims]
        if self.claims and (not settled or self.data.draw(st.booleans())):
            self.settle(self.claims.pop(0))
        elif settled:
            name = self.data.draw(st.sampled_from(settled))
            self.slots.release(self.placed.pop(name))
            self.finished.append(name)
        self.check()

    def settle(self, name: str) -> None:
        """Lease any GPUs among which the oldest claim may choose."""
        place = self.placed[name]
        options = place.options()
        assert len(options) >= place.count
        place.settle(self.data.draw(st.permutations(options))[: place.count])

    def check(self) -> None:
        """No GPU has two jobs, and each job has what it asked for."""
        used = [each for place in self.placed.values() for each in place.gpus]
        assert len(used) == len(set(used))
        wishes: Mapping[str, Job] = {each.name: each for each in self.possible}
        for name, place in self.placed.items():
            wish = wishes[name]
            assert len(place.gpus) == self.slots.wanted(wish)
            assert all(each.vram_bytes >= (wish.vram_bytes or 0) for each in place.gpus)
            products = {(each.name, each.gfx) for each in place.gpus}
            assert wish.is_mixed or len(products) <= 1


@pytest.mark.long
@pytest.mark.slow
@settings(max_examples=400, deadline=None)
@given(HOSTS, JOBS, st.data())
def test_whatever_happens_every_job_has_its_turn(
    host: list[tuple[int, str]], wishes: list[tuple[object, int | None, bool]], data: st.DataObject
) -> None:
    """Never two jobs on a GPU, never a set that is not of one product, no deadlock, and all are placed."""
    gpus = [gpu(index, gib, gfx=gfx) for index, (gib, gfx) in enumerate(host)]
    jobs = [job(str(number), count, gib, mixed=mixed) for number, (count, gib, mixed) in enumerate(wishes)]
    run = Simulation(gpus, jobs, data)

    for _ in range(10 * len(jobs) + 10):
        run.step()

    assert sorted(run.finished) == sorted(each.name for each in run.possible)
    assert not run.queue
    assert set(run.slots._free) == set(gpus)


@settings(max_examples=100, deadline=None)
@given(HOSTS.filter(lambda host: len(host) > 1), st.integers(1, 3), st.data())
def test_no_job_is_overtaken_for_ever(host: list[tuple[int, str]], wanted: int, data: st.DataObject) -> None:
    """Small jobs keep coming without end, and a job for several GPUs still gets them."""
    gpus = [gpu(index, gib, gfx=gfx) for index, (gib, gfx) in enumerate(host)]
    slots = Slots(gpus, CPU)
    large = job("large", wanted)
    if slots.problem(large):
        return
    small = [job(f"small {number}", gib=gib) for number, gib in enumerate((None, 8))]
    running: list[Place] = []
    for each in small * len(gpus):
        if taken := take(slots, [each]):
            taken[1].settle(taken[1].options()[:1])
            running.append(taken[1])

    for _ in range(4 * len(gpus) + 4):
        while taken := take(slots, [large, *(each for each in small if not slots.problem(each))]):
            if taken[0] is large:
                return
            taken[1].settle(taken[1].options()[:1])
            running.append(taken[1])
        slots.release(running.pop(data.draw(st.integers(0, len(running) - 1))))

    raise AssertionError("the large job never had its turn")


def test_the_driver_tells_how_much_is_free(tmp_path: Path) -> None:
    """Of a simulated host with one GPU in use, and of one that tells nothing."""
    root = tmp_path / "root"
    write_host(root, gpus=1)
    (device, *_) = discover(root)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ROCMLAB_ROOT", str(root))
        before = free_vram(device)
        used = next(root.rglob("mem_info_vram_used"))
        used.write_text(str(int(used.read_text()) + GIB))
        after = free_vram(device)
        used.unlink()
        unknown = free_vram(device)

    assert before is not None
    assert after == before - GIB
    assert unknown is None
