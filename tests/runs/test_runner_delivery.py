"""How what a job leaves on its node is seen, or put together again, in the run folder."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest

from rocmlab.cluster.executor import delivery
from rocmlab.runs.folder import RunFolder


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    """A run folder with what the job `a` has left."""
    made = RunFolder(tmp_path)
    made.file("a", "notebook").write_bytes(b"{}")
    made.file("a", "samples").write_bytes(b"one\n")
    return made


def test_files_that_are_there_are_not_waited_for(folder: RunFolder) -> None:
    """Also one to which a line came after its node had looked at its length."""
    sizes = delivery.sizes(folder, "a")
    with folder.file("a", "samples").open("ab") as file:
        file.write(b"the end\n")
    begin = time.monotonic()

    assert delivery.wait_until_seen(folder, "a", sizes) == []
    assert time.monotonic() - begin < delivery.SEEN_SECONDS / 2


@pytest.mark.slow
def test_a_file_that_a_network_folder_shows_late_is_waited_for(folder: RunFolder) -> None:
    """A notebook of another length is an earlier state of it, and the log is not there yet."""
    notebook, log = folder.file("a", "notebook"), folder.file("a", "log")
    notebook.write_bytes(b"an earlier state, and longer")

    def show() -> None:
        notebook.write_bytes(b"{}")
        log.write_bytes(b"words")

    later = threading.Timer(0.5, show)
    later.start()
    begin = time.monotonic()
    unseen = delivery.wait_until_seen(folder, "a", {"notebook": 2, "samples": 4, "log": 5})
    later.join()

    assert unseen == []
    assert time.monotonic() - begin >= 0.4


def test_what_is_never_seen_is_named(folder: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    """The wait ends, and the names of the files are reported."""
    monkeypatch.setattr(delivery, "SEEN_SECONDS", 0.2)

    assert delivery.wait_until_seen(folder, "a", {"notebook": 3, "samples": 5, "log": 1}) == [
        "a.ipynb",
        "a.samples.jsonl",
        "a.log",
    ]


@pytest.mark.parametrize("size", [0, 1, 8, 9, 24])
def test_pieces_become_the_file_again(
    folder: RunFolder, tmp_path: Path, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever its length, and an end of the transfer in its middle leaves nothing."""
    monkeypatch.setattr(delivery, "PIECE_BYTES", 8)
    content = bytes(range(size))
    folder.file("a", "log").write_bytes(content)
    home, elsewhere = RunFolder(tmp_path / "home"), RunFolder(tmp_path / "elsewhere")
    receiver, torn = delivery.Receiver(home, "a"), delivery.Receiver(elsewhere, "a")
    for each in (home, elsewhere):
        each.path.mkdir()

    pieces = [*delivery.pieces(folder, "a", "log")]
    for piece in pieces:
        receiver.take(piece)
    for piece in pieces[:-1]:
        torn.take(piece)
    torn.close()

    assert home.file("a", "log").read_bytes() == content
    assert len(pieces) == max(1, -(-size // 8))
    assert not list(elsewhere.path.iterdir())
