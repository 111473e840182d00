"""Device nodes: looking at them without waking what is behind, and telling one refusal from the other."""

from __future__ import annotations

import errno
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hosts import Gpu, make_host, make_node

from rocmlab.devices import nodes, roots
from rocmlab.devices.rocm import Rocm

Refuse = Callable[[int, str], list[str]]


@pytest.fixture
def host() -> Iterator[Path]:
    """A host whose permissions bind, also where the tests run as root."""
    folder = Path(tempfile.mkdtemp(prefix="rocmlab-test-"))
    folder.chmod(0o755)
    root = make_host(folder / "host", Gpu(1, 0x300, 128), Gpu(2, 0x400, 129), Gpu(3, 0x500, 130))
    for name in ("card0", "card1", "card2"):
        (root / "dev/dri" / name).unlink()
    make_node(root / "dev/dri/card10")
    yield root
    os.seteuid(os.getuid())
    shutil.rmtree(folder)


@pytest.fixture
def refuse(host: Path, monkeypatch: pytest.MonkeyPatch) -> Refuse:
    """Return a function that makes this a real host where the kernel refuses a node; it returns what is opened."""
    really_access, really_open = os.access, os.open

    def begin(number: int, name: str) -> list[str]:
        opened: list[str] = []

        def access(path: Path, mode: int, **more: bool) -> bool:
            return path.name != name and really_access(path, mode, **more)

        def open_it(path: Path | str, flags: int, *more: int, **named: int) -> int:
            if "/dev/" in str(path):
                opened.append(os.path.basename(path))
                raise OSError(number, os.strerror(number))
            return really_open(path, flags, *more, **named)

        monkeypatch.setattr(roots, "is_simulated", lambda _: False)
        monkeypatch.setattr(nodes.os, "access", access)
        monkeypatch.setattr(nodes.os, "open", open_it)
        return opened

    return begin


def test_nodes_are_listed_by_number_and_not_opened(host: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Opening a GPU wakes it; looking does not."""
    opened: list[object] = []

    with monkeypatch.context() as patched:
        patched.setattr(roots, "is_simulated", lambda _: False)
        patched.setattr(nodes.os, "open", lambda *arguments, **_: opened.append(arguments))
        found, cards = nodes.render_nodes(host), nodes.card_nodes(host)

    assert (found[0].path, found[0].mode, found[0].error) == ("/dev/dri/renderD128", 0o666, None)
    assert [node.path for node in found] == [f"/dev/dri/renderD{number}" for number in (128, 129, 130)]
    assert [node.path for node in cards] == ["/dev/dri/card10"]
    assert opened == []


def test_a_denial_by_the_containers_rules_costs_one_gpu(host: Path, refuse: Refuse) -> None:
    """The device rules of a cgroup give EPERM; ROCm skips that GPU, which takes no index, and uses the others."""
    opened = refuse(errno.EPERM, "renderD129")
    found = {device.render_node: device for device in Rocm().discover(host)}

    assert [device.index for device in found.values()] == [0, None, 1]
    assert found["/dev/dri/renderD129"].why_not == "/dev/dri/renderD129 is denied by the container's device rules"
    assert set(opened) == {"renderD129"}


@pytest.mark.parametrize("number", [errno.EACCES, errno.EIO])
def test_any_other_refusal_stops_rocm_for_all(host: Path, refuse: Refuse, number: int) -> None:
    """ROCm gives up on everything but a missing or denied node."""
    refuse(number, "renderD129")

    assert [device.index for device in Rocm().discover(host)] == [None] * 3
    assert nodes.render_nodes(host)[1].is_forbidden


def test_a_denied_compute_node_leaves_no_gpu(host: Path, refuse: Refuse) -> None:
    """And that is what is said of each."""
    refuse(errno.EPERM, "kfd")

    assert {device.why_not for device in Rocm().discover(host)} == {
        "/dev/kfd is denied by the container's device rules"
    }


def test_a_mode_that_refuses_is_no_denial(host: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Asked of the kernel itself, as an ordinary user."""
    (host / "dev/dri/renderD129").chmod(0)
    monkeypatch.setattr(roots, "is_simulated", lambda _: False)
    if os.getuid() == 0:
        os.seteuid(65534)

    assert [node.error for node in nodes.render_nodes(host)] == [None, "EACCES", None]


@pytest.mark.parametrize(
    ("mode", "error"), [(0o666, None), (0o660, None), (0o600, "EACCES"), (0o644, "EACCES"), (0, "EACCES")]
)
def test_a_simulated_node_is_judged_by_its_mode(host: Path, mode: int, error: str | None) -> None:
    """Also for root and the owner, whom the kernel would let in; anyone who is in its group may use 0660."""
    (host / "dev/dri/renderD128").chmod(mode)

    assert nodes.render_nodes(host)[0].error == error


def test_a_simulated_node_of_another_group_is_closed(host: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As it would be for a user who did not join the group."""
    (host / "dev/dri/renderD128").chmod(0o660)
    monkeypatch.setattr(nodes.os, "geteuid", lambda: 1000)
    monkeypatch.setattr(nodes.os, "getegid", lambda: 61000)
    monkeypatch.setattr(nodes.os, "getgroups", lambda: [61001])

    assert nodes.render_nodes(host)[0].error == "EACCES"
