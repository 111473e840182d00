"""Which nodes of a cluster a job may go to, and how many jobs Ray has at once."""

from __future__ import annotations

import gc
import sys
from dataclasses import replace

import pytest
from placing import take

from benchmarks import synthetic
from rocmlab.base.errors import Problem, RocmlabError
from rocmlab.cluster.executor.node_pool import MAX_NAMED_NODES
from rocmlab.cluster.executor.nodes import RemoteNode, masked
from rocmlab.cluster.executor.places import ClusterPlaces, RemotePlace
from rocmlab.devices import Device
from rocmlab.runs.jobs import Job
from rocmlab.runs.scheduling.plan import Queue

SMALL = Device("rocm", 0, "Radeon RX 7800 XT", True, gfx="gfx1101", vram_bytes=16_000_000_000, simulated=True)
LARGE = replace(SMALL, name="Radeon RX 7900 XTX", gfx="gfx1100", vram_bytes=24_000_000_000)
OLD = Problem("it has rocmlab 0.1", "the run is of rocmlab 9", "make cluster-join again")


def node(name: str, *gpus: Device, problem: Problem | None = None) -> RemoteNode:
    """Return a node whose GPUs are numbered from 0."""
    return RemoteNode(name, name, tuple(replace(gpu, index=index) for index, gpu in enumerate(gpus)), problem)


def job(name: str = "a", **resources: object) -> Job:
    """Return a job."""
    return Job(name, f"/n/{name}.ipynb", **resources)  # type: ignore[arg-type]


def taken(places: ClusterPlaces, *jobs: Job) -> RemotePlace:
    """Return the place of the next of these jobs."""
    found = take(places, jobs)
    assert found is not None
    assert isinstance(found[1], RemotePlace)
    return found[1]


def test_ray_has_twice_what_it_can_run_and_no_more() -> None:
    """The next job is there when a GPU becomes free, and a long list stays here."""
    places = ClusterPlaces([node("one", LARGE, LARGE), node("two", LARGE)])

    given = [taken(places, job(f"j{number}")) for number in range(6)]

    assert places.count == 3
    assert take(places, [job("more")]) is None
    places.release(given[0])
    assert taken(places, job("more")).never == ()


def test_jobs_that_wait_are_taken_whatever_nodes_come_or_go_meanwhile() -> None:
    """A job for all GPUs of a node waits for two when the run begins, and gets four of the node that has joined."""
    places = ClusterPlaces([node("one", LARGE, LARGE)])
    queue = Queue([job("all", gpus="all"), job("small")], places)

    places.update([node("one", LARGE, LARGE), node("two", *[LARGE] * 4)])
    first, second = queue.take(), queue.take()

    assert first is not None
    assert second is not None
    assert (first[0].name, first[1].count) == ("all", 4)
    assert second[0].name == "small"
    queue.put_first(*first)
    assert [each.name for each in queue] == ["all"]
    assert queue.take() is not None
    assert not queue


def test_jobs_without_a_gpu_have_a_window_of_their_own() -> None:
    """They take a node's place for such jobs, and do not wait for those with GPUs."""
    places = ClusterPlaces([node("one", LARGE), node("two")])

    given = [taken(places, job(f"c{number}", gpus=0)) for number in range(4)]

    assert [place.count for place in given] == [0] * 4
    assert take(places, [job("c4", gpus=0)]) is None
    assert taken(places, job("c4", gpus=0), job("g")).count == 1


def test_a_job_goes_only_where_any_gpu_would_do() -> None:
    """Ray gives out any GPU of a node; one whose GPUs differ is no place for a job that fits only some of them."""
    places = ClusterPlaces([node("large", LARGE), node("small", SMALL, SMALL), node("both", LARGE, SMALL)])

    assert taken(places, job("v", vram_bytes=20_000_000_000)).among == ("large",)
    assert taken(places, job("two", gpus=2)).pinned == "small"
    assert taken(places, job("mix", gpus=2, is_mixed=True)).pinned in ("small", "both")
    assert taken(places, job("any")).among == ()


def test_others_stay_away_from_the_node_that_a_job_with_several_gpus_waits_for() -> None:
    """Otherwise they would take each GPU as it becomes free, and it would wait for ever."""
    places = ClusterPlaces([node("one", LARGE), node("pair", LARGE, LARGE)])

    pair = taken(places, job("pair", gpus=2))
    single = taken(places, job("single"))

    assert pair.pinned == "pair"
    assert single.never == ("pair",)
    places.begun(pair)
    assert taken(places, job("next")).never == ()


def test_a_job_that_ended_badly_is_tried_on_another_node() -> None:
    """As on one machine it is tried on another GPU."""
    places = ClusterPlaces([node("one", LARGE), node("two", LARGE)])
    first = taken(places, job())
    first.node_id = "one"
    places.release(first)

    found = take(places, [job()], {"a": first})

    assert found is not None
    assert found[1].never == ("one",)  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("resources", "text"),
    [
        ({"gpus": 3}, "3 GPUs"),
        ({"vram_bytes": 90_000_000_000}, "90 GB of VRAM"),
        ({"gpus": "all", "vram_bytes": 90_000_000_000}, "all GPUs of a node"),
    ],
)
def test_what_no_node_has_is_said_before_anything_runs(resources: dict, text: str) -> None:
    """With what the nodes have, and how to fix it."""
    places = ClusterPlaces([node("one", LARGE, LARGE), node("two", SMALL)])

    problem = places.problem(job(**resources))

    assert problem is not None
    assert text in problem.what
    assert "one: 2 x Radeon RX 7900 XTX" in problem.why
    assert places.problem(job(gpus="all")) is None
    assert places.wanted(job(gpus="all")) == 2


def test_gpus_are_limited_by_number_and_not_by_name() -> None:
    """Numbers of GPUs belong to one machine."""
    nodes = [node("one", LARGE, LARGE), node("two", LARGE)]
    two = ClusterPlaces(nodes, "2")

    assert two.count == 2
    assert [taken(two, job(name)).count for name in "ab"] == [1, 1]
    assert take(two, [job("c")]) is None
    assert ClusterPlaces(nodes, "none").wanted(job()) == 0
    for words in ("0,1", "9", "0"):
        with pytest.raises(RocmlabError):
            ClusterPlaces(nodes, words)


def test_a_node_that_cannot_be_used_gets_nothing() -> None:
    """It is omitted while there are others, and named where there are none; nodes that come are used."""
    places = ClusterPlaces([node("one", LARGE), node("old", LARGE, problem=OLD)])

    assert taken(places, job()).never == ("old",)
    with pytest.raises(RocmlabError, match=r"old: it has rocmlab 0\.1"):
        ClusterPlaces([node("old", LARGE, problem=OLD)])
    places.update([node("one", LARGE), node("new", LARGE)])
    assert places.count == 2
    assert taken(places, job("b")).never == ()


def test_a_mask_that_numbers_gpus_a_second_time_is_a_reason() -> None:
    """ROCR_VISIBLE_DEVICES acts before HIP's."""
    why = masked({"ROCR_VISIBLE_DEVICES": "1"})

    assert masked({"HIP_VISIBLE_DEVICES": "1"}) is None
    assert why is not None
    assert "unset ROCR_VISIBLE_DEVICES" in why.fix


class CountedNode(RemoteNode):
    """A node that counts how often someone looks at its GPUs."""

    looks = 0

    def __getattribute__(self, name: str) -> object:
        if name == "gpus":
            CountedNode.looks += 1
        return super().__getattribute__(name)


def rounds(nodes: int, jobs: int) -> tuple[int, int]:
    """Run jobs on a cluster of nodes with eight GPUs; return how often nodes were looked at, and the longest list."""
    fleet = synthetic.fleet(8 * nodes)
    places = ClusterPlaces([CountedNode(str(at), str(at), tuple(fleet[8 * at : 8 * at + 8])) for at in range(nodes)])
    waiting = Queue(synthetic.queue(jobs), places)
    given: list[RemotePlace] = []
    named = CountedNode.looks = 0
    while waiting:
        while taken := waiting.take():
            place = taken[1]
            assert isinstance(place, RemotePlace)
            named = max(named, len(place.among) + len(place.never))
            given.append(place)
        begun, given = given[: len(given) // 2 + 1], given[len(given) // 2 + 1 :]
        for place in begun:
            places.begun(place)
            places.release(place)
    return CountedNode.looks, named


def test_a_round_looks_at_no_gpu_however_many_there_are() -> None:
    """What a node has is known by its kind; what is sent to Ray with one job names few nodes."""
    assert rounds(10, 500) == (0, 10)
    looks, named = rounds(1_000, 500)

    assert looks == 0
    assert named <= MAX_NAMED_NODES


@pytest.mark.long
@pytest.mark.slow
def test_a_turn_does_the_same_work_on_few_and_on_many_nodes() -> None:
    """Placing a job and releasing it runs the same lines of code with 80 and with 8,000 GPUs."""

    def lines(nodes: int) -> int:
        places = ClusterPlaces([node(str(number), *[LARGE] * 8) for number in range(nodes)])
        jobs = [job("one"), job("two", gpus=2), job("large", vram_bytes=20_000_000_000), job("all", gpus="all")]
        for each in jobs:
            places.problem(each)
        count = 0

        def trace(frame: object, event: str, argument: object) -> object:
            nonlocal count
            count += 1
            return trace

        gc.collect()
        gc.disable()  # what other tests have left would be finalised in between
        sys.settrace(trace)
        try:
            for each in jobs:
                place = taken(places, each)
                places.begun(place)
                places.release(place)
        finally:
            sys.settrace(None)
            gc.enable()
        return count

    lines(1)  # what is imported and remembered once
    few, many = lines(10), lines(1_000)

    assert 0 < many <= few + 4 * MAX_NAMED_NODES
    assert lines(5_000) == many


def test_small_jobs_do_not_fill_the_window_before_a_large_one() -> None:
    """A job for eight GPUs is not overtaken for ever by jobs for one that need less room in what Ray has."""
    places = ClusterPlaces([node("one", *[LARGE] * 8)])
    running = [taken(places, job(f"j{number}")) for number in range(16)]
    large = job("large", gpus=8)

    for number in range(8):
        places.release(running.pop())
        found = take(places, [large, job(f"next {number}")])
        assert found is None or found[0] is large

    assert found is not None


def test_of_many_nodes_a_job_names_others_each_time() -> None:
    """Where naming every node would be too much, each job names some, and together they name all."""
    places = ClusterPlaces([node(str(number), LARGE) for number in range(3 * MAX_NAMED_NODES)])
    jobs = [job(f"j{number}", vram_bytes=20_000_000_000) for number in range(3)]

    named = [taken(places, each).among for each in jobs]

    assert all(len(each) == MAX_NAMED_NODES for each in named)
    assert {each for among in named for each in among} == set(places.nodes)


def test_a_job_that_ended_badly_on_one_of_many_nodes_is_tried_elsewhere() -> None:
    """Also one that needs several GPUs, for which a node is chosen; the only node is retried."""
    places = ClusterPlaces([node(str(number), LARGE, LARGE) for number in range(2 * MAX_NAMED_NODES)])
    pair = job("pair", gpus=2)
    first = taken(places, pair)
    first.node_id = next(node for node in places.nodes if node != first.pinned)
    for _ in range(3 * MAX_NAMED_NODES):
        found = take(places, [pair], {"pair": first})
        if found is None:
            break
        assert found[1].pinned != first.node_id  # type: ignore[attr-defined]

    alone = ClusterPlaces([node("one", LARGE, LARGE)])
    last = taken(alone, pair)
    last.node_id = "one"
    alone.release(last)
    again = take(alone, [pair], {"pair": last})
    assert again is not None
    assert again[1].pinned == "one"  # type: ignore[attr-defined]


def test_a_node_stays_kept_when_others_come_and_go() -> None:
    """A job that waits for its GPUs keeps its node when the cluster changes; a lost node keeps no one."""
    places = ClusterPlaces([node("one", LARGE), node("pair", LARGE, LARGE)])
    pair = taken(places, job("pair", gpus=2))

    places.update([node("one", LARGE), node("pair", LARGE, LARGE), node("new", LARGE)])
    kept = taken(places, job("single"))
    places.update([node("one", LARGE), node("new", LARGE)])
    places.begun(pair)

    assert kept.never == ("pair",)
    assert taken(places, job("next")).never == ()
