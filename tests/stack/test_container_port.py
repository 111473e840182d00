"""Whether the socket on the lab's port is our container's: what the engine says, and who listens on the host."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path

import engine_words
import pytest
from clones import free_port
from intruders import intruder

from rocmlab.stack import container_port, described, sockets
from rocmlab.stack.described import Described
from rocmlab.stack.process import EngineSilent
from rocmlab.stack.sockets import NOBODY, OTHER, OURS, UNKNOWN, Holder


class Engine:
    """An engine with one container, or none, which counts what it is asked."""

    def __init__(self, port: int, *, runs: bool = True, publishes: bool = True, answers: bool = True) -> None:
        self.port, self.runs, self.publishes, self.answers = port, runs, publishes, answers
        self.asked = 0

    def container(self) -> Described | None:
        """Return what it reports of the container."""
        self.asked += 1
        if not self.answers:
            raise EngineSilent("the engine does not answer", "it is down", "start it")
        ports = engine_words.published(self.port) if self.publishes else {}
        return described.container(engine_words.container(ports=ports)) if self.runs else None

    def __call__(self, *words: str, **_: object) -> tuple[int, str]:
        """Answer as `docker exec` does."""
        self.asked += 1
        return 0, ""


@pytest.fixture
def listening() -> Iterator[int]:
    """A port on which this user listens, as an engine's proxy would."""
    with socket.create_server(("127.0.0.1", 0)) as found:
        yield found.getsockname()[1]


def look(engine: Engine, state: Path) -> Holder:
    """Look who listens."""
    return container_port.holder(engine, engine.container, engine.port, state, {"NB_UID": "1", "NB_GID": "1"}, set())


def test_what_the_engine_confirms_is_ours_and_is_not_asked_again(listening: int, tmp_path: Path) -> None:
    """The same socket is known by what is remembered; another one on the port is not."""
    engine = Engine(listening)
    assert look(engine, tmp_path).kind == OURS
    asked = engine.asked

    assert look(engine, tmp_path).kind == OURS
    assert engine.asked == asked
    assert not container_port.is_confirmed(tmp_path, listening, (sockets.Listener(0, 1),))


@pytest.mark.parametrize("facts", [{"runs": False}, {"publishes": False}])
def test_a_listener_that_no_container_of_ours_publishes_is_another(
    listening: int, tmp_path: Path, facts: dict[str, bool]
) -> None:
    """As a stopped lab's, or one that has another port."""
    assert look(Engine(listening, **facts), tmp_path).kind == OTHER


def test_another_users_listener_is_not_the_engines(tmp_path: Path) -> None:
    """Even where the engine says that it publishes the port."""
    port = free_port()
    with intruder(port, tmp_path):
        assert look(Engine(port), tmp_path).kind == OTHER
        assert not (tmp_path / container_port.FILE).exists()


def test_an_engine_that_does_not_answer_makes_nobody_a_stranger(listening: int, tmp_path: Path) -> None:
    """Its own proxy may be what listens: no token is sent, and none is taken for lost."""
    assert look(Engine(listening, answers=False), tmp_path).kind == UNKNOWN


def test_a_port_without_a_listener(tmp_path: Path) -> None:
    """An engine may forward it without a process; where it does not, no one is there."""
    port = free_port()

    assert look(Engine(port), tmp_path) == Holder(OURS, ())
    assert look(Engine(port, runs=False), tmp_path) == Holder(NOBODY)


def test_a_port_is_compared_whole(listening: int, tmp_path: Path) -> None:
    """127.0.0.1:888 is not 127.0.0.1:8888."""
    engine = Engine(int(f"{listening}"[:-1]))

    found = container_port.find(engine.container(), listening)

    assert found == container_port.CLOSED
