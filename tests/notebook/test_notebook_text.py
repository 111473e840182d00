"""What a terminal would show, what is kept of too much output, and what limits there are."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rocmlab.base.errors import RocmlabError
from rocmlab.notebook.options import Limits
from rocmlab.notebook.outputs import MARK, CellOutputs, Display, OverflowLog
from rocmlab.notebook.terminal import Screen


def shown(*texts: str) -> str:
    """Return what a terminal shows of texts printed one after another."""
    screen = Screen()
    for text in texts:
        screen.write(text)
    return screen.text()


@pytest.mark.parametrize(
    ("printed", "expected"),
    [
        ("a\r\nb\r\n", "a\nb\n"),
        ("\r 1%\r 50%\r100%", "100%"),
        ("\r 1%\r 50%\r100%\ndone\n", "100%\ndone\n"),
        ("12345\rab", "ab345"),
        ("12345\rab\x1b[K", "ab"),
        ("12345\x1b[2K\rab", "ab"),
        ("abc\b\bX", "aXc"),
        ("5/9\b\b\b6/9", "6/9"),
        ("one\ntwo\x1b[A\rONE", "ONE\ntwo"),
        ("outer 0\ninner 0\x1b[A\router 1\n\rinner 9", "outer 1\ninner 9"),
        ("a\nb\nc\x1b[2A\r\x1b[Jx", "x"),
        ("\x1b[?25lbusy\x1b[?25h", "busy"),
        ("\x1b[31mred\x1b[0m\n", "\x1b[31mred\x1b[0m\n"),
        ("\r\x1b[31m 1%\x1b[0m\r\x1b[31m99%\x1b[0m", "\x1b[31m99%\x1b[0m"),
        ("\x1b[36m\r|", "\x1b[36m|"),
        ("\x1b[36m\r|\r/\r-", "-"),
        ("\x1b[36m\x1b[1m\r\x1b[2Cx", "\x1b[36m\x1b[1m  x"),
        ("\x1b[36m\b|", "\x1b[36m|"),
        ("\x1b[3Cx\x1b[1Gy", "y  x"),
    ],
)
def test_text_is_folded_as_a_terminal_would(printed: str, expected: str) -> None:
    """Progress bars of tqdm, Keras, pip and rich leave their last state."""
    assert shown(printed) == expected


@given(st.lists(st.text(alphabet="ab\n é", max_size=9000), max_size=8))
def test_text_without_controls_is_kept_as_it_is(texts: list[str]) -> None:
    """However it arrives in pieces, and however long it is."""
    assert shown(*texts) == "".join(texts)


@given(st.lists(st.sampled_from(["a", "bc", "\n", "\r", "\b", "\x1b[A", "\x1b[K", "\x1b[31m", "\x1b[2D"]), max_size=40))
def test_it_does_not_matter_where_the_pieces_are_cut(tokens: list[str]) -> None:
    """A kernel sends what it has, and cuts in the middle of a sequence."""
    text = "".join(tokens)

    assert shown(*text) == shown(text)


def test_a_bar_in_one_stream_is_folded_while_the_other_prints() -> None:
    """A bar on stderr with prints between is one bar and the prints, not a thousand outputs."""
    cell: dict = {}
    outputs = CellOutputs(cell, "cell 1", Display(), 10_000, OverflowLog(None, "the log"))
    for number in range(100):
        outputs.take("stream", {"name": "stderr", "text": f"\r{number}%"})
        outputs.take("stream", {"name": "stdout", "text": f"{number}\n"})

    outputs.render()

    assert [output["name"] for output in cell["outputs"]] == ["stderr", "stdout"]
    assert cell["outputs"][0]["text"] == "99%"
    assert cell["outputs"][1]["text"].splitlines() == [str(number) for number in range(100)]


@pytest.mark.parametrize("size", [100, 5_000, 400_000])
def test_too_much_text_keeps_its_start_and_its_end(tmp_path: Path, size: int) -> None:
    """The notebook has both ends and says where the rest is; the side log has everything."""
    cell: dict = {}
    log = tmp_path / "out.output.log"
    outputs = CellOutputs(cell, "cell 3", Display(), 1_000, OverflowLog(log, log.name))
    pieces = [f"{number:0{size - 1}d}\n" for number in range(2_000_000 // size)]

    for piece in pieces:
        outputs.take("stream", {"name": "stdout", "text": piece})
    outputs.render()

    kept = "".join(output["text"] for output in cell["outputs"])
    assert len(kept) < 1_000 + 100  # the sentence between the two ends
    assert kept.startswith(pieces[0][:500])
    assert kept.endswith(pieces[-1][-100:])
    assert "all of it is in out.output.log" in kept
    assert log.read_text() == MARK + "--- cell 3\n" + "".join(pieces)


def test_a_log_that_cannot_be_written_ends_no_notebook(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """What it lacks is reported once, and the notice in the notebook no longer promises all of the output."""
    cell: dict = {}
    log = tmp_path / "out.output.log"
    outputs = CellOutputs(cell, "cell 3", Display(), 1_000, OverflowLog(log, log.name))
    log.mkdir()

    for _ in range(3):
        outputs.take("stream", {"name": "stdout", "text": "x" * 1_000})
    log.rmdir()
    outputs.take("stream", {"name": "stdout", "text": "end\n"})
    outputs.render()

    assert cell["outputs"][-1]["text"].endswith("xend\n")
    assert "out.output.log lacks a part of it (Is a directory)" in cell["outputs"][-1]["text"]
    assert log.read_text() == MARK + "end\n"
    assert len(caplog.records) == 1


def test_output_without_end_does_not_become_endless_outputs() -> None:
    """Two alternating streams make an output each time; even that has a bound."""
    cell: dict = {}
    outputs = CellOutputs(cell, "cell 1", Display(), 10_000_000, OverflowLog(None, "the log"))

    for number in range(20_000):
        outputs.take("stream", {"name": "stdout" if number % 2 else "stderr", "text": "x\n"})

    assert len(cell["outputs"]) < 5_100


def test_too_many_pictures_are_left_out() -> None:
    """What is shown is bounded as well, and reports it."""
    cell: dict = {}
    outputs = CellOutputs(cell, "cell 1", Display(), 1000, OverflowLog(None, "the log"))

    for _ in range(3):
        outputs.take("display_data", {"data": {"image/png": "x" * 4000}, "metadata": {}})

    assert ["image/png" in output["data"] for output in cell["outputs"]] == [True, True, False]
    assert "omitted" in cell["outputs"][2]["data"]["text/plain"]


def test_limits_come_from_the_metadata_and_from_who_runs_it() -> None:
    """What is given wins; what is not given is the notebook's, then the default."""
    metadata = {"rocmlab": {"gpus": 1, "limits": {"cell_seconds": 5, "idle_seconds": 2.5}}}

    found = Limits().with_metadata(metadata, {"cell_seconds": 9, "notebook_seconds": None})

    assert (found.cell_seconds, found.idle_seconds, found.notebook_seconds) == (9, 2.5, None)
    assert Limits().with_metadata({}, {}) == Limits()


@pytest.mark.parametrize("limits", [[], {"cell_second": 5}, {"cell_seconds": -1}, {"idle_seconds": "5"}])
def test_a_wrong_limit_is_refused(limits: object) -> None:
    """A typo must not let a notebook run all night."""
    with pytest.raises(RocmlabError, match="cell_seconds"):
        Limits().with_metadata({"rocmlab": {"limits": limits}}, {})
