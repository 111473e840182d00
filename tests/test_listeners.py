"""What waits for others is found the same in both ways: by the kernel's answers, and in /proc/net."""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Iterator
from contextlib import ExitStack

import listeners
import pytest
from listeners import Watch

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc/net: run it on Linux")
PLACES = (
    ("tcp", socket.AF_INET, socket.SOCK_STREAM, "0.0.0.0"),
    ("tcp6", socket.AF_INET6, socket.SOCK_STREAM, "::1"),
    ("udp", socket.AF_INET, socket.SOCK_DGRAM, "127.0.0.1"),
    ("udp6", socket.AF_INET6, socket.SOCK_DGRAM, "::"),
)


@pytest.fixture
def opened() -> Iterator[set[tuple[str, str, int, int]]]:
    """Sockets of each kind that wait, and one that is connected and does not."""
    with ExitStack() as stack:
        made = set()
        for protocol, family, kind, address in PLACES:
            one = stack.enter_context(socket.socket(family, kind))
            one.bind((address, 0))
            if kind == socket.SOCK_STREAM:
                one.listen()
                peer = stack.enter_context(socket.create_connection(one.getsockname()[:2]))
                stack.enter_context(one.accept()[0])
                assert peer.getpeername()[1] == one.getsockname()[1]
            made.add((protocol, address, one.getsockname()[1], os.getuid()))
        yield made


@pytest.mark.parametrize(
    "look", [listeners.answered_by_kernel, lambda: listeners._rows(listeners.OWN)], ids=["kernel", "proc"]
)
def test_sockets_that_wait_are_found_and_no_others(look, opened: set[tuple[str, str, int, int]]) -> None:
    """Of each kind, with address, port and user; connections on the same port are not among them."""
    ports = {port for _, _, port, _ in opened}

    found = [one for one in look() if one.port in ports]

    assert {(one.protocol, one.address, one.port, one.uid) for one in found} == opened
    assert len(found) == len(opened)


@pytest.mark.parametrize("answers", [True, False])
def test_what_is_open_for_a_moment_is_seen(answers: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where the kernel does not answer, as in a container that may not ask; what is on the loopback is omitted."""

    def silent() -> list[listeners.Listener]:
        raise OSError("no")

    if not answers:
        monkeypatch.setattr(listeners, "answered_by_kernel", silent)
    with Watch(os.getpid()) as watch, socket.create_server(("127.0.0.1", 0)), socket.create_server(("", 0)) as one:
        port = one.getsockname()[1]
        looks = watch.looks
        while watch.looks < looks + 2:
            pass

    assert [(each.address, each.port, each.pid) for each in watch.found.values()] == [("0.0.0.0", port, os.getpid())]


def test_a_udp_socket_counts_when_two_looks_saw_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that connects has a port on every address for a moment; one that stays, and any that listens, is reported."""
    passing, staying = (listeners.Listener("udp", "0.0.0.0", port, port, 1000, None, "") for port in (40001, 40002))
    listening = listeners.Listener("tcp", "0.0.0.0", 40003, 40003, 1000, None, "")
    answers = iter([[passing, staying, listening], [staying, listening], [staying]])
    monkeypatch.setattr(listeners, "answered_by_kernel", lambda: next(answers))
    watch = Watch(everyone=True)

    for _ in range(3):
        watch.look()

    assert sorted(one.port for one in watch.found.values()) == [40002, 40003]


def test_one_question_omits_a_udp_socket_that_connects_meanwhile() -> None:
    """`waiting` looks twice also: a socket that has its peer by then waits for no one else."""
    with ExitStack() as stack:
        connecting, staying = (stack.enter_context(socket.socket(socket.AF_INET, socket.SOCK_DGRAM)) for _ in range(2))
        listening = stack.enter_context(socket.create_server(("", 0)))
        for one in (connecting, staying):
            one.bind(("0.0.0.0", 0))
        names = {one.getsockname()[1]: name for one, name in ((connecting, "connecting"), (staying, "staying"))}
        names[listening.getsockname()[1]] = "listening"

        found = listeners.waiting({os.getpid()}, between=lambda: connecting.connect(("127.0.0.1", 9)))

    assert {names[one.port] for one in found if one.port in names} == {"staying", "listening"}
