"""The recorder's collector: messages of a kernel in, outputs of cells and news for pages out."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest

from rocmlab.lab.recorder import files, records
from rocmlab.lab.recorder.records import Follower, Records
from rocmlab.notebook.wire import Message


class Kernel:
    """Sends messages as a kernel does."""

    def __init__(self, known: Records, session: str = "first process") -> None:
        self.known, self.session = known, session

    def send(self, parent: str, kind: str, **content: Any) -> None:
        """Send one; as from the kernel's channel, only what matters is taken."""
        self.known.hear_kernel(self.session, parent)
        if self.known.knows(parent, kind):
            self.known.take(Message(kind, parent, content, {}, []))

    def run(self, parent: str, count: int, *texts: str) -> None:
        """Begin to run a cell, which prints."""
        self.send(parent, "status", execution_state="busy")
        self.send(parent, "execute_input", execution_count=count, code="")
        for text in texts:
            self.send(parent, "stream", name="stdout", text=text)

    def show(self, parent: str, text: str, display_id: str, kind: str = "display_data") -> None:
        """Show something that may be changed later."""
        self.send(parent, kind, data={"text/plain": text}, metadata={}, transient={"display_id": display_id})


def begun(*cells: str) -> tuple[Records, Kernel]:
    """Return a recorder to which a page has sent these cells, as the requests `of <cell>`."""
    known = Records()
    for cell in cells:
        known.begin(cell, f"of {cell}", "page", "code")
    return known, Kernel(known)


def text(known: Records, cell: str) -> str:
    """Return what a cell has printed and shown."""
    outputs = known.by_cell[cell].rendered()
    return "".join(each.get("text") or each.get("data", {}).get("text/plain", "") for each in outputs)


def test_cells_get_what_belongs_to_them_in_the_order_of_the_kernel() -> None:
    """Printed text is one output, each has its number, and what waits behind is empty until it runs."""
    known, kernel = begun("a", "b", "c")

    kernel.run("of a", 7, "one\n", "two\n")
    kernel.send("of no cell", "stream", name="stdout", text="of a console")
    waiting = (known.by_cell["b"].state, known.by_cell["b"].count)
    kernel.send("of a", "status", execution_state="idle")
    kernel.run("of b", 8)
    kernel.send("of b", "error", ename="E", evalue="v", traceback=["t"])
    kernel.send("of b", "status", execution_state="idle")
    kernel.send("of c", "status", execution_state="idle")  # the error stopped the queue

    assert known.by_cell["a"].rendered() == [{"output_type": "stream", "name": "stdout", "text": "one\ntwo\n"}]
    assert waiting == ("queued", None)
    assert [each.count for each in known.by_cell.values()] == [7, 8, None]
    assert known.by_cell["b"].rendered()[0]["ename"] == "E"
    assert known.unfinished == []
    assert known.by_cell["c"].rendered() == []


def test_a_cell_whose_end_was_not_heard_ends_when_the_next_one_begins() -> None:
    """A kernel that prints too fast drops messages, and executes one cell at a time."""
    known, kernel = begun("a", "b")
    kernel.run("of a", 1)

    kernel.run("of b", 2)

    assert [each.state for each in known.by_cell.values()] == ["done", "running"]


def test_output_is_cleared_when_the_next_comes_and_displays_change_in_other_cells() -> None:
    """As in a page: clear_output(wait=True) leaves no gap, and a display id leads to where it is shown."""
    known, kernel = begun("a", "b")
    kernel.run("of a", 1, "old")
    kernel.send("of a", "clear_output", wait=True)
    before = text(known, "a")
    kernel.show("of a", "0 %", "bar")
    number = known.number

    kernel.show("of b", "50 %", "bar", "update_display_data")

    assert before == "old"
    assert text(known, "a") == "50 %"
    assert known.by_cell["a"].changed > number
    assert known.has_display("a")
    assert not known.has_display("b")


def test_a_page_gets_what_is_new_and_everything_after_a_missed_answer() -> None:
    """News follow each other without gap and without a line twice; the number tells whether the page has the last."""
    known, kernel = begun("a")
    kernel.run("of a", 1, "one\n")
    page = Follower()
    first = page.news(known, -1, lambda _: True)
    number = page.number

    kernel.send("of a", "stream", name="stdout", text="two\n")
    second = page.news(known, number, lambda _: True)
    kernel.send("of a", "stream", name="stderr", text="three\n")
    third = page.news(known, page.number, lambda _: True)
    again = page.news(known, number, lambda _: True)

    assert first[0]["outputs"][0]["output"]["text"] == "one\n"
    assert second[0]["outputs"] == [{"index": 0, "text": "two\n"}]
    assert [each["index"] for each in third[0]["outputs"]] == [1]
    assert [each["output"]["text"] for each in again[0]["outputs"]] == ["one\ntwo\n", "three\n"]
    assert (second[0]["is_whole"], again[0]["is_whole"]) == (False, True)
    assert page.news(known, page.number, lambda _: True) == []


def test_a_shorter_output_and_another_run_are_sent_whole() -> None:
    """A page cannot remove single outputs, nor append to those of the run before."""
    known, kernel = begun("a")
    kernel.run("of a", 1, "one")
    page = Follower()
    page.news(known, -1, lambda _: True)

    kernel.send("of a", "clear_output", wait=False)
    cleared = page.news(known, page.number, lambda _: True)
    known.begin("a", "again", "page", "code")
    kernel.send("of a", "stream", name="stdout", text="late")
    kernel.run("again", 2, "two")
    rerun = page.news(known, page.number, lambda _: True)

    assert (cleared[0]["is_whole"], cleared[0]["outputs"]) == (True, [])
    assert rerun[0]["request"] == "again"
    assert [each["output"]["text"] for each in rerun[0]["outputs"]] == ["two"]


@pytest.mark.long
def test_200_megabytes_are_bounded_and_what_is_omitted_is_named() -> None:
    """The start and the end of what a cell prints stay, and so do the newest of very many cells."""
    known, kernel = begun("a")
    kernel.run("of a", 1, "the start\n")
    for _ in range(200):
        kernel.send("of a", "stream", name="stdout", text=("x" * 99 + "\n") * 10_000)
    kernel.send("of a", "stream", name="stdout", text="the end\n")
    found = text(known, "a")
    kernel.send("of a", "status", execution_state="idle")
    for number in range(20):
        known.begin(f"{number}", f"of {number}", "page", "code")
        kernel.run(f"of {number}", number, "y" * 6_000_000)
        kernel.send(f"of {number}", "status", execution_state="idle")

    assert len(found) < 1.1 * records.LIMIT_BYTES
    assert found.startswith("the start\n")
    assert found.endswith("the end\n")
    assert "MB are omitted here]" in found
    assert sum(len(text(known, cell)) for cell in known.by_cell) < records.KEPT_BYTES + records.LIMIT_BYTES
    assert "19" in known.by_cell
    assert "a" not in known.by_cell


@pytest.mark.long
def test_outputs_that_are_no_text_and_outputs_without_number_are_bounded() -> None:
    """Plotly's are objects, which count as the text they are in a file; a million small ones end in one notice."""
    known, kernel = begun("plots", "many")
    for _ in range(30):
        data = {"application/vnd.plotly.v1+json": {"data": ["y" * 100] * 40_000}}
        kernel.send("of plots", "display_data", data=data, metadata={}, transient={})
    limit_bytes = 10 * records.LIMIT_BYTES
    for _ in range(limit_bytes // 500 + 1000):
        kernel.send("of many", "display_data", data={"text/plain": "x"}, metadata={}, transient={})
    plots, many = (known.by_cell[each].rendered() for each in ("plots", "many"))

    assert len(json.dumps(plots)) < 1.1 * limit_bytes
    assert plots[-1]["data"]["text/plain"].endswith("MB are omitted here; the cell shows too much]")
    assert len(many) <= limit_bytes // 500 + 1
    assert "0.7 MB are omitted here" in many[-1]["data"]["text/plain"]


def test_pictures_that_replace_each_other_do_not_add_up() -> None:
    """A plot that a training draws again each second is kept, however often it was drawn."""
    known, kernel = begun("a")
    kernel.run("of a", 1)
    for number in range(100):
        kernel.send("of a", "clear_output", wait=True)
        picture = {"image/png": f"{number}" + "A" * 2_000_000}
        kernel.send("of a", "display_data", data=picture, metadata={}, transient={})

    assert known.by_cell["a"].rendered()[0]["data"]["image/png"].startswith("99A")


def test_a_kernel_that_ends_ends_its_cells() -> None:
    """A death is reported below the output; after a restart only the new process's cells are open."""
    known, kernel = begun("a", "b")
    kernel.run("of a", 1, "working\n")
    known.abort(records.DIED)
    after_death = text(known, "a")
    known.begin("c", "of c", "page", "code")
    Kernel(known, "second process").run("of c", 1, "new")

    assert after_death == "working\n[rocmlab: the kernel ended while this cell ran]\n"
    assert text(known, "b") == ""
    assert [each.cell for each in known.unfinished] == ["c"]


def test_a_widget_gets_what_is_printed_in_it() -> None:
    """What an output widget catches is not the cell's, and waits for the kernel, from which the next page gets it."""
    known, kernel = begun("a")
    kernel.run("of a", 1)
    opened = {"_model_name": "OutputModel", "msg_id": "of a"}
    kernel.send("of a", "comm_open", comm_id="w", data={"state": opened})
    kernel.send("of a", "stream", name="stdout", text="inside")
    kernel.send("of a", "comm_msg", comm_id="w", data={"method": "update", "state": {"msg_id": ""}})
    kernel.send("of a", "stream", name="stdout", text="outside")

    assert text(known, "a") == "outside"
    assert known.comms["w"]["state"]["outputs"][0]["text"] == "inside"


def test_a_question_is_open_until_it_is_answered_or_the_cell_fails() -> None:
    """A page that opens the notebook can ask it again; what was printed before it may arrive after it."""
    known, kernel = begun("a")
    kernel.run("of a", 1)
    question = {"prompt": "name?", "password": False}

    known.ask("of a", question)
    asked = known.by_cell["a"].question
    known.answer(known.by_cell["a"], "ann")
    known.ask("of a", {"prompt": "key?", "password": True})
    known.answer(known.by_cell["a"], "secret")
    known.ask("of a", question)
    kernel.send("of a", "stream", name="stdout", text="late")
    still_asked = known.by_cell["a"].question
    kernel.send("of a", "error", ename="KeyboardInterrupt", evalue="", traceback=[])

    assert (asked, still_asked) == (question, question)
    assert known.by_cell["a"].question is None
    assert text(known, "a") == "name? ann\nkey? ········\nlate"


@pytest.mark.parametrize("seconds", [0.0, 60.0])
def test_what_a_page_has_saved_is_not_written_again(seconds: float) -> None:
    """But what a cell printed in the last moment, which the page may not have shown yet, is."""
    known, kernel = begun("a", "b")
    kernel.run("of a", 1, "text")
    known.by_cell["a"].changed_at -= seconds

    known.saved({"a"}, time.monotonic())

    assert [each.cell for each in known.dirty] == (["b"] if seconds else ["a", "b"])


def test_only_recorded_cells_of_a_notebook_change() -> None:
    """Source, metadata and other cells stay; a cell that was deleted is not made again."""
    known, kernel = begun("a", "deleted")
    kernel.run("of a", 3, "new")
    cells = [
        {
            "id": "a",
            "cell_type": "code",
            "source": "edited",
            "metadata": {"tags": ["t"]},
            "outputs": [],
            "execution_count": 1,
        },
        {"id": "x", "cell_type": "code", "source": "x", "metadata": {}, "outputs": ["old"], "execution_count": 2},
        {"id": "deleted", "cell_type": "markdown", "source": "now text", "metadata": {}},
    ]
    notebook = {"cells": [dict(each) for each in cells], "metadata": {"m": 1}}

    found = files.merge(notebook, known.by_cell.values())

    assert [each.cell for each in found] == ["a"]
    assert notebook["cells"][1:] == cells[1:]
    changed = notebook["cells"][0]
    assert (changed["source"], changed["metadata"]["tags"], changed["execution_count"]) == ("edited", ["t"], 3)
    assert changed["outputs"] == [{"output_type": "stream", "name": "stdout", "text": "new"}]
