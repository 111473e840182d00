"""Device nodes: looking at them, and opening them where a person asked."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hosts import make_host

from rocmlab.devices import nodes, roots


@pytest.fixture
def host() -> Iterator[Path]:
    """A host whose permissions bind, also where the tests run as root."""
    folder = Path(tempfile.mkdtemp(prefix="rocmlab-test-"))
    folder.chmod(0o755)
    root = make_host(folder / "host")
    for name, mode in (("kfd", 0o666), ("dri/renderD128", 0o666), ("dri/renderD129", 0o600), ("dri/card10", 0o666)):
        (root / "dev" / name).touch()
        (root / "dev" / name).chmod(mode)
    if os.getuid() == 0:
        os.seteuid(65534)
    else:
        (root / "dev/dri/renderD129").chmod(0)
    yield root
    os.seteuid(os.getuid())
    shutil.rmtree(folder)


def test_nodes_are_listed_by_number_and_not_opened(host: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Opening a GPU wakes it; looking does not."""
    opened: list[object] = []

    with monkeypatch.context() as patched:
        patched.setattr(nodes.os, "open", lambda *arguments, **_: opened.append(arguments))
        found, cards = nodes.render_nodes(host), nodes.card_nodes(host)

    assert (found[0].path, found[0].mode) == ("/dev/dri/renderD128", 0o666)
    assert [node.is_accessible for node in found] == [True, False]
    assert [node.path for node in cards] == ["/dev/dri/card10"]
    assert opened == []


@pytest.mark.parametrize(
    ("path", "verdict", "error"),
    [
        ("/dev/dri/renderD128", "usable", None),
        ("/dev/dri/renderD129", "fatal", "EACCES"),
        ("/dev/dri/renderD130", "skipped", "ENOENT"),
    ],
)
@pytest.mark.parametrize("really", [True, False])
def test_opening_tells_how_rocm_takes_it(
    host: Path, monkeypatch: pytest.MonkeyPatch, path: str, verdict: str, error: str | None, really: bool
) -> None:
    """On this machine by opening; on a simulated host by its permissions, with the same answer."""
    monkeypatch.setattr(roots, "is_simulated", lambda _: not really)

    opening = nodes.open_node(path, host)

    assert (opening.path, opening.verdict, opening.error) == (path, verdict, error)
    assert opening.meaning


def test_a_denial_by_the_containers_rules_is_not_fatal(host: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The device rules of a cgroup give EPERM, and only when the node is opened."""

    def deny(path: Path, flags: int) -> int:
        raise PermissionError(1, "Operation not permitted")

    with monkeypatch.context() as patched:
        patched.setattr(roots, "is_simulated", lambda _: False)
        patched.setattr(nodes.os, "open", deny)
        opening = nodes.open_node("/dev/dri/renderD128", host)

    assert (opening.verdict, opening.error) == ("skipped", "EPERM")


def test_any_other_error_is_fatal(host: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """ROCm gives up on everything but a missing or denied node."""

    def fail(path: Path, flags: int) -> int:
        raise OSError(5, "Input/output error")

    with monkeypatch.context() as patched:
        patched.setattr(roots, "is_simulated", lambda _: False)
        patched.setattr(nodes.os, "open", fail)
        opening = nodes.open_node("/dev/kfd", host)

    assert (opening.verdict, opening.error) == ("fatal", "EIO")
