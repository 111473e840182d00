"""What a job has left on a node without the run folder is there until the runner has it."""

from __future__ import annotations

import asyncio
import os
import tempfile
from pathlib import Path
from typing import Any

import pytest

from rocmlab.cluster.executor import delivery, node_agent
from rocmlab.cluster.executor.node_agent import NodeAgent
from rocmlab.runs.folder import RunFolder

NAMES = ["a.ipynb", "a.log"]


@pytest.fixture(autouse=True)
def _no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(delivery, "PAUSES_SECONDS", (0.0, 0.0))


@pytest.fixture
def node(tmp_path: Path) -> RunFolder:
    """A job's folder on its node, with what the job has left."""
    made = RunFolder(tmp_path / "node/run")
    made.path.mkdir(parents=True)
    made.file("a", "notebook").write_text("{twelve hours of outputs}")
    made.file("a", "log").write_text("words")
    return made


@pytest.fixture
def home(tmp_path: Path) -> RunFolder:
    """The folder of the run."""
    made = RunFolder(tmp_path / "home/run")
    made.path.mkdir(parents=True)
    return made


@pytest.fixture
def refused() -> list[str]:
    """A store for fsspec that refuses everyone, at `refused://`; what it was asked to open."""
    fsspec = pytest.importorskip("fsspec")
    asked: list[str] = []

    class Refused(fsspec.AbstractFileSystem):  # type: ignore[misc,name-defined]
        protocol = "refused"
        cachable = False

        def _open(self, path: str, *_: object, **_more: object) -> None:
            asked.append(path)
            raise PermissionError("ExpiredToken: the provided token has expired")

    fsspec.register_implementation("refused", Refused, clobber=True)
    return asked


def taken(receiver: delivery.Receiver, events: list[dict[str, Any]]) -> list[str]:
    """Have a receiver take everything, and return what is missing."""
    for event in events:
        receiver.take(event)
    receiver.close()
    return receiver.missing(["notebook", "log"])


def test_files_come_through_ray_where_the_exchange_refuses_the_node(
    node: RunFolder, home: RunFolder, refused: list[str]
) -> None:
    """It is asked a few times, for the first file alone, and the result says why."""
    warnings: list[str] = []

    events = list(delivery.hand_over(node, "a", "refused://bucket", warnings))
    missing = taken(delivery.Receiver(home, "a", "refused://bucket"), events)

    assert len(refused) == 3
    assert missing == []
    assert sorted(path.name for path in home.path.iterdir()) == NAMES
    assert home.file("a", "notebook").read_text() == "{twelve hours of outputs}"
    assert len(warnings) == 1
    assert "ExpiredToken" in warnings[0]
    assert sorted(path.name for path in node.path.iterdir()) == NAMES, "until the runner has them"


def test_what_the_runner_cannot_fetch_is_missing(home: RunFolder, refused: list[str]) -> None:
    """Its token has expired: that is no reason to forget how the job ended."""
    receiver = delivery.Receiver(home, "a", "refused://bucket")
    events = [{"event": "left", "kind": "log", "address": "refused://bucket/run/0123-a.log"}]

    missing = taken(receiver, events)

    assert missing == ["notebook", "log"]
    assert "ExpiredToken" in receiver.failed["log"]
    assert len(refused) == 3
    assert list(home.path.iterdir()) == []


def test_a_file_that_the_run_folder_does_not_take_is_missing(node: RunFolder, home: RunFolder) -> None:
    """The others arrive, and nothing half written is left."""
    home.file("a", "notebook").mkdir()
    warnings: list[str] = []
    receiver = delivery.Receiver(home, "a")

    missing = taken(receiver, list(delivery.hand_over(node, "a", None, warnings)))

    assert missing == ["notebook"]
    assert "IsADirectoryError" in receiver.failed["notebook"]
    assert sorted(path.name for path in home.path.iterdir()) == NAMES
    assert warnings == []


def test_a_file_that_cannot_be_read_on_the_node_is_missing(node: RunFolder, home: RunFolder) -> None:
    """The others arrive, and the result names it."""
    node.file("a", "log").unlink()
    node.file("a", "log").mkdir()
    warnings: list[str] = []

    missing = taken(delivery.Receiver(home, "a"), list(delivery.hand_over(node, "a", None, warnings)))

    assert missing == ["log"]
    assert warnings[0].startswith("its log cannot be read on its node: IsADirectoryError")


def test_a_node_keeps_what_did_not_arrive_and_removes_what_did(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """What is kept survives the end of the run; the next attempt of the job does not overwrite it."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    scratch = node_agent.scratch("token")

    def write(job: str) -> None:
        (scratch / "run").mkdir(parents=True, exist_ok=True)
        for name in NAMES:
            (scratch / "run" / name.replace("a.", f"{job}.")).write_text(job)

    async def scenario() -> str:
        agent = NodeAgent("token", {})
        write("a")
        write("b")
        await agent.delivered("run", "b")
        path = await agent.keep("run", "a", 7)
        assert os.listdir(scratch / "run") == []
        write("a")
        await agent.close()
        return path

    path = Path(asyncio.run(scenario()))

    assert sorted(each.name for each in path.iterdir()) == NAMES
    assert [each.name for each in scratch.iterdir()] == ["kept"]


def test_a_node_that_keeps_nothing_is_left_as_it_was(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The folder for what jobs leave ends with the run."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    (node_agent.scratch("token") / "run").mkdir(parents=True)

    asyncio.run(NodeAgent("token", {}).close())

    assert list(tmp_path.iterdir()) == []
