"""What speaks to Ray for a run, piece by piece: the agent of a node, the look at the nodes, and a job's orders."""

from __future__ import annotations

import asyncio
import pickle
from pathlib import Path
from typing import Any

import pytest

from rocmlab.cluster.executor import supervising, watching
from rocmlab.cluster.executor.driving import Driver
from rocmlab.cluster.executor.node_agent import DONE, NodeAgent
from rocmlab.cluster.executor.nodes import RemoteNode
from rocmlab.cluster.executor.places import RemotePlace
from rocmlab.cluster.executor.remote_job import RemoteJob
from rocmlab.cluster.executor.supervising import RemoteSupervisor
from rocmlab.cluster.executor.watching import NodeWatch
from rocmlab.runs.folder import RunFolder
from rocmlab.runs.jobs import Job
from rocmlab.runs.workers.supervisor import Limits

# -- agent ----------------------------------------------------------------------------------------------------------


def test_a_job_hears_each_word_once() -> None:
    """Anyone who watches again after a word waits for another one; after its end no one waits any more."""

    async def scenario() -> list[str]:
        agent = NodeAgent("run", {})
        await agent.stop(1, "interrupted")  # it has not begun
        heard = [await agent.watch(1)]
        again = asyncio.create_task(agent.watch(1, "interrupted"))
        await asyncio.sleep(0.05)
        assert not again.done()
        await agent.stop(1, "interrupted")  # no news
        await asyncio.sleep(0.05)
        assert not again.done()
        await agent.stop(1, "kill")
        heard.append(await asyncio.wait_for(again, 5))
        last = asyncio.create_task(agent.watch(1, "kill"))
        await asyncio.sleep(0)
        await agent.done(1)
        heard.append(await asyncio.wait_for(last, 5))
        await agent.stop(1, "kill")
        heard.append(await asyncio.wait_for(agent.watch(1, "kill"), 5))
        return heard

    assert asyncio.run(scenario()) == ["interrupted", "kill", DONE, DONE]


# -- nodes -----------------------------------------------------------------------------------------------------------


A, B, SILENT = (letter * 56 for letter in "abc")  # ids of nodes


class FakeRay:
    """Ray as `NodeWatch` sees it: nodes, of which some never answer and some fail."""

    def __init__(self) -> None:
        self.alive: list[str] = []
        self.silent: set[str] = set()
        self.failing: set[str] = set()
        self.asked: list[str] = []
        self.prepared: list[str] = []

    def nodes(self) -> list[dict[str, Any]]:
        """Return the nodes."""
        named = {"NodeManagerHostname": "host", "Resources": {"GPU": 1.0}, "Labels": {}}
        return [{**named, "NodeID": each, "Alive": True} for each in self.alive]

    def remote(self, function: Any = None, **_options: Any) -> Any:
        """Return what a function becomes."""
        if function is None:
            return self.remote
        return FakeTask(self.asked if function.__name__ == "describe" else self.prepared)

    def wait(self, references: list[Any], **_more: Any) -> tuple[list[Any], list[Any]]:
        """Return those that are ready; no one is ever waited for here."""
        return [each for each in references if each[0] not in self.silent], []

    def get(self, reference: tuple[str, int]) -> RemoteNode:
        """Return what a node says."""
        if reference[0] in self.failing:
            raise RuntimeError("no such thing")
        return RemoteNode(reference[0], "host", ())


class FakeTask:
    """A function that is called on a node."""

    def __init__(self, called: list[str], node: str = "") -> None:
        self.called, self.node = called, node

    def options(self, **more: Any) -> FakeTask:
        """Choose the node."""
        return FakeTask(self.called, more["scheduling_strategy"].node_id)

    def remote(self, *_words: Any) -> tuple[str, int]:
        """Call it; return a reference."""
        self.called.append(self.node)
        return self.node, len(self.called)


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> FakeRay:
    """In Ray's place."""
    ray = pytest.importorskip("ray")
    made = FakeRay()
    for name in ("nodes", "remote", "wait", "get"):
        monkeypatch.setattr(ray, name, getattr(made, name))
    return made


def watch_of() -> NodeWatch:
    """Return a watch whose head never goes."""
    return NodeWatch(lambda: None, lambda why: None)


def test_whoever_looks_no_change_is_lost(fake: FakeRay) -> None:
    """A node that went and one that came are reported by the watch, though a lost job has looked before it."""
    fake.alive = [A]
    watch = watch_of()
    watch.begin()
    assert not watch.has_changed()

    fake.alive = [B]
    assert not watch.is_alive(A)
    watch.look()

    assert watch.has_changed()
    assert not watch.has_changed()
    assert set(watch.known) == {B}


def test_a_node_that_does_not_answer_holds_nobody_up(fake: FakeRay) -> None:
    """It is asked once, gets ready once, and is known as soon as it answers; the others are known at once."""
    fake.alive, fake.silent = [A, SILENT], {SILENT}
    watch = watch_of()
    watch.begin()
    for _ in range(5):
        watch.look()

    assert set(watch.known) == {A}
    assert fake.asked == fake.prepared == [A, SILENT]
    fake.silent = set()
    watch.look()
    assert watch.has_changed()
    assert set(watch.known) == {A, SILENT}


def test_a_node_that_fails_to_say_what_it_has_is_asked_again_later(
    fake: FakeRay, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not at each look, and its GPUs are not taken again."""
    fake.alive, fake.failing = [A], {A}
    watch = watch_of()
    for _ in range(5):
        watch.look()
    assert fake.asked == [A]

    fake.failing = set()
    later = watching.time.monotonic() + watching.AGAIN_SECONDS + 1
    monkeypatch.setattr(watching.time, "monotonic", lambda: later)
    for _ in range(3):
        watch.look()

    assert fake.asked == [A, A]
    assert fake.prepared == [A]
    assert set(watch.known) == {A}


# -- orders ----------------------------------------------------------------------------------------------------------


class Heard:
    """The runner's end of the socket."""

    def __init__(self) -> None:
        self.said: list[dict[str, Any]] = []

    def report(self, event: str, **facts: Any) -> None:
        """Note what is said."""
        self.said.append({"event": event, **facts})


class NoSubmitter:
    """Gives nothing to Ray."""

    def submit(self, *_words: Any) -> Any:
        """Fail."""
        raise AssertionError("it was given to Ray")


def test_a_stop_that_follows_its_job_closely_is_heard(tmp_path: Path) -> None:
    """The job is never given to Ray; a description that cannot be read is told as well."""
    order = tmp_path / "1"
    job = Job("a", str(tmp_path / "a.ipynb"), content="{}")
    order.write_bytes(pickle.dumps(RemoteJob(1, job, Limits(), RemotePlace((), 1))))

    async def scenario() -> list[dict[str, Any]]:
        heard: Any = Heard()
        driver = Driver(heard, asyncio.get_running_loop())
        driver.submitter, driver.folder = NoSubmitter(), RunFolder(tmp_path)  # type: ignore[assignment]
        driver.take({"do": "job", "number": 1, "file": str(order)})
        driver.take({"do": "stop", "number": 1, "why": "interrupted"})
        driver.take({"do": "job", "number": 2, "file": str(tmp_path / "none")})
        await asyncio.gather(*driver.tasks)
        assert not driver.begun
        return heard.said

    said = {each["number"]: each["update"] for each in asyncio.run(scenario())}
    assert said[1] == {"event": "cancelled"}
    assert said[2]["event"] == "broken"
    assert "No such file" in said[2]["why"]


class FakeCluster:
    """The cluster of a supervisor: it says of a job what it is told to say."""

    folder = places = gone = None

    def __init__(self, *events: dict[str, Any]) -> None:
        self.events = events
        self.sent: list[dict[str, Any]] = []

    async def submit(self, supervisor: RemoteSupervisor) -> int:
        """Take a job."""
        for event in self.events:
            supervisor.handle(event)
        return 7

    async def send(self, order: dict[str, Any]) -> None:
        """Take an order."""
        self.sent.append(order)

    def forget(self, number: int) -> None:
        """Forget a job."""


def supervisor_of(cluster: Any, see: Any) -> RemoteSupervisor:
    """Return what runs a job on this cluster."""
    return RemoteSupervisor(Job("a", "a.ipynb"), RemotePlace((), 1), Limits(), see, cluster)


@pytest.mark.parametrize(
    ("event", "said"),
    [
        ({"event": "lost", "why": "TaskUnschedulableError"}, "Ray lost it before it began: TaskUnschedulableError"),
        (
            {"event": "refused", "problem": {"what": "another version", "why": "0.2", "fix": "join again"}},
            "another version: 0.2; join again",
        ),
    ],
    ids=["its node has gone", "its node cannot be used"],
)
def test_a_job_that_could_not_begin_wants_another_place(
    event: dict[str, Any], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has not failed by itself; the runner places it again, when it is seen which nodes there are."""
    monkeypatch.setattr(supervising, "AGAIN_SECONDS", 0.01)

    ending = asyncio.run(supervisor_of(FakeCluster(event), lambda event: None).run())

    assert ending.is_unplaced
    assert ending.message == said
    assert ending.seconds is None


def test_a_job_of_which_nobody_will_hear_any_more_is_ended() -> None:
    """When the runner itself fails over it, such as at a full disk, its GPU is not kept."""
    cluster = FakeCluster({"event": "cell", "index": 0})

    def see(event: dict[str, Any]) -> None:
        raise OSError("no space left on device")

    with pytest.raises(OSError, match="no space left"):
        asyncio.run(supervisor_of(cluster, see).run())

    assert cluster.sent == [{"do": "stop", "number": 7, "why": "kill"}]
