"""What is read from an executed notebook, what is corrected in it, and what is kept of a run."""

from __future__ import annotations

import json
import math
from dataclasses import asdict
from pathlib import Path

import notebook_files
import pytest

from rocmlab.base import files, formatting
from rocmlab.base.errors import RocmlabError
from rocmlab.notebook import executed
from rocmlab.notebook.notebooks import title_of
from rocmlab.notebook.outcome import Executed, Outcome, describe
from rocmlab.runs.folder import RunFolder
from rocmlab.runs.jobs import Job
from rocmlab.runs.outcome.results import result_of
from rocmlab.runs.scheduling.place import Place
from rocmlab.runs.workers import converting
from rocmlab.training.metrics import MIME_TYPE


def cell(status: str, *outputs: dict, kind: str = "code", source: str = "x = 1") -> dict:
    """Return an executed cell."""
    made = {"cell_type": kind, "metadata": {"papermill": {"status": status}}, "source": source}
    return {**made, "outputs": list(outputs)} if kind == "code" else made


def error(name: str, value: str) -> dict:
    """Return the output of a failing cell."""
    return {"output_type": "error", "ename": name, "evalue": value, "traceback": []}


def record(**values: object) -> dict:
    """Return the output of `rocmlab.record`."""
    return {"output_type": "display_data", "data": {MIME_TYPE: values, "text/plain": "recorded"}, "metadata": {}}


def test_recorded_values_and_cells_are_collected() -> None:
    """Later records add to earlier ones; prose does not count as a cell."""
    notebook = {
        "cells": [
            cell("completed", kind="markdown"),
            cell("completed", record(accuracy=0.5, loss=2.0)),
            cell("completed", record(accuracy=0.98)),
            cell("failed", error("ValueError", "\x1b[31mred\x1b[0m"), source="\n".join("abcdefghijklmnop")),
            cell("pending"),
        ]
    }

    found = executed.summarise(notebook)

    assert found.recorded == {"accuracy": 0.98, "loss": 2.0}
    assert (found.cells_done, found.cells_total) == (2, 4)
    assert found.error == {
        "name": "ValueError",
        "value": "red",
        "cell": 3,
        "cell_index": 3,
        "source": "\n".join("abcdef"),
        "first_line": 1,
    }


def test_a_dead_kernel_does_not_leave_completed_cells(tmp_path: Path) -> None:
    """Papermill marks all cells completed when the kernel dies; afterwards the file says what was true."""
    path = tmp_path / "a.ipynb"
    path.write_text(json.dumps({"cells": [cell("completed") for _ in range(4)], "metadata": {}}))

    executed.repair(path, 1, "KernelDied", "the kernel is gone")

    notebook = json.loads(path.read_text())
    states = [each["metadata"]["papermill"]["status"] for each in notebook["cells"]]
    assert states == ["completed", "failed", "pending", "pending"]
    assert notebook["metadata"]["papermill"]["exception"] is True
    assert executed.summarise(notebook).error["value"] == "the kernel is gone"
    assert list(tmp_path.iterdir()) == [path]


def test_a_death_between_cells_blames_no_cell(tmp_path: Path) -> None:
    """What completed stays completed, what was not reached stays pending, and the notebook as a whole has failed."""
    path = tmp_path / "a.ipynb"
    path.write_text(json.dumps({"cells": [cell("completed"), cell("pending")], "metadata": {}}))

    executed.repair(path, None, "Killed", "gone")
    executed.repair(tmp_path / "never-saved.ipynb", None, "Killed", "gone")

    notebook = json.loads(path.read_text())
    assert [each["metadata"]["papermill"]["status"] for each in notebook["cells"]] == ["completed", "pending"]
    assert notebook["metadata"]["papermill"]["exception"] is True


def test_the_runner_corrects_the_cause_and_completes_what_was_not_saved(tmp_path: Path) -> None:
    """It knows why the engine was stopped, and that cells before the running one had ended; last lines stay."""
    path = tmp_path / "a.ipynb"
    ours = {"output_type": "error", "ename": "Killed", "evalue": "SIGTERM", "traceback": ["Killed: SIGTERM", "bye"]}
    cells = [cell("completed"), cell("running"), cell("failed", ours), cell("pending")]
    path.write_text(json.dumps({"cells": cells, "metadata": {}}))

    executed.repair(path, 2, "Timeout", "too long")

    found = json.loads(path.read_text())["cells"]
    assert [each["metadata"]["papermill"]["status"] for each in found] == ["completed"] * 2 + ["failed", "pending"]
    assert [output["traceback"] for output in found[2]["outputs"]] == [["Timeout: too long", "bye"]]


def test_an_end_that_its_worker_has_saved_is_not_read_again(run_folder: RunFolder) -> None:
    """The worker's summary counts; the file, which has the same, is neither parsed nor written."""
    failed = {"name": "Timeout", "value": "a cell ran longer than 1 s", "cell": 2, "cell_index": 1}
    outcome = Outcome("timeout", failed["value"], Executed(1, 3, {"loss": 0.5}, failed))
    run_folder.file("a", "notebook").write_text("not parsed")

    found = result_of(run_folder, Job("a", "/a.ipynb"), Place((), 1), outcome, [])

    assert (found.status, found.cells_done, found.recorded, found.error) == ("timeout", 1, {"loss": 0.5}, failed)
    assert run_folder.file("a", "notebook").read_text() == "not parsed"


@pytest.mark.parametrize("sent", [None, [], "text", {"cells_done": 1}, {"recorded": {"a": [[[[]]]] * 2}, "more": 1}])
def test_a_summary_that_is_none_is_no_outcome(sent: object) -> None:
    """A node may send anything in its place: the file is read instead, and the rest of the outcome counts."""
    found = Outcome.of_json({**asdict(Outcome("failed", "why")), "notebook": sent})

    assert (found.status, found.message, found.notebook) == ("failed", "why", None)


def test_an_outcome_travels_as_json() -> None:
    """What a worker reports is what its runner gets, the summary of the notebook included."""
    sent = Outcome("failed", notebook=Executed(1, 2, {"loss": 0.5}, {"name": "Error"}, ["why"]), warnings=["slow"])

    assert Outcome.of_json(json.loads(json.dumps(asdict(sent)))) == sent


def test_a_torn_journal_is_read_up_to_the_tear(run_folder: RunFolder) -> None:
    """A crash in the middle of a line costs that line only."""
    run_folder.log("run started", jobs=["a"])
    run_folder.log("job finished", loss=math.nan)
    with run_folder.journal_path.open("a") as journal:
        journal.write('{"event": "job fin')

    found = list(run_folder.journal())

    assert [event["event"] for event in found] == ["run started", "job finished"]
    assert found[1]["loss"] is None


def test_two_runs_of_one_second_have_two_folders(tmp_path: Path) -> None:
    """A run never writes into another's folder, and its name cannot lead out of the share."""
    folders = [RunFolder.create(tmp_path, "../night run").path for _ in range(3)]

    assert len(set(folders)) == 3
    assert all(folder.parent == tmp_path / "runs" and "night_run" in folder.name for folder in folders)


def test_a_share_that_cannot_be_written_is_a_problem(tmp_path: Path) -> None:
    """The error names the place and the setting."""
    (tmp_path / "share").write_text("a file")

    with pytest.raises(RocmlabError) as caught:
        RunFolder.create(tmp_path / "share", "a")

    assert "--share" in caught.value.problem.fix


def test_a_failed_write_leaves_the_old_file(tmp_path: Path) -> None:
    """Neither half a file nor a draft is left."""
    path = tmp_path / "results.json"
    path.mkdir()

    with pytest.raises(IsADirectoryError):
        files.write_text(path, "new")

    assert path.is_dir()
    assert list(tmp_path.iterdir()) == [path]


def test_any_text_can_be_written(tmp_path: Path) -> None:
    """Half a character, which a notebook may print, comes back as it was."""
    path = tmp_path / "a.json"

    files.write_text(path, files.to_json({"text": "é \ud800"}))

    assert json.loads(path.read_text(encoding="utf-8")) == {"text": "é \ud800"}


@pytest.mark.slow
def test_html_needs_the_network_only_for_what_the_notebook_uses(tmp_path: Path) -> None:
    """A notebook without formulas opens whole without a network; one with a formula asks for MathJax."""
    plain = notebook_files.write(tmp_path / "plain.ipynb", "## Title", "print(1)")
    formula = notebook_files.write(tmp_path / "formula.ipynb", "## Title\n$x^2$", "print(1)")

    for path in (plain, formula):
        converting.write(path, path.with_suffix(".html"))

    assert "<script" not in plain.with_suffix(".html").read_text()
    assert "mathjax" in formula.with_suffix(".html").read_text().lower()


def test_a_cell_is_called_by_its_comment_its_heading_or_its_first_line() -> None:
    """The name on the screen is what a user would call the cell."""
    cells = [
        {"cell_type": "markdown", "metadata": {}, "source": "# Title\ntext\n## Load the data\nmore"},
        {"cell_type": "code", "metadata": {}, "source": "\nx = load()\n"},
        {"cell_type": "code", "metadata": {}, "source": "# Train for long\nfit()"},
        {"cell_type": "code", "metadata": {}, "source": "import os\n"},
        {"cell_type": "code", "metadata": {"tags": ["injected-parameters"]}, "source": "# Parameters\nepochs = 2"},
        {"cell_type": "code", "metadata": {}, "source": "%matplotlib inline"},
        {"cell_type": "code", "metadata": {}, "source": ""},
    ]

    title_only = [{"cell_type": "markdown", "metadata": {}, "source": "# Title"}, *cells[1:4]]

    found = [title_of(cells, index) for index in range(1, 7)]

    assert found == ["Load the data", "Train for long", "Load the data", "parameters", "Load the data", "Load the data"]
    assert [title_of(title_only, index) for index in (1, 3)] == ["Title", "import os"]


def test_the_end_of_a_kernel_reads_as_a_sentence() -> None:
    """A kill, a crash and an exit are distinguished."""
    assert "SIGKILL, perhaps because the memory was full" in describe(-9)
    assert describe(-11).endswith("SIGSEGV")
    assert describe(3).endswith("exit code 3")
    assert describe(None)


def test_times_devices_and_values_read_well() -> None:
    """Numbers on the screen are short."""
    gpus = [{"backend": "rocm", "index": 0}, {"backend": "rocm", "index": 1}]

    assert [formatting.duration(each) for each in (None, 4.21, 187, 3765)] == ["", "4.2 s", "3:07", "1:02:45"]
    assert formatting.device_label(gpus) == "GPU 0,1"
    assert formatting.device_label([{"backend": "cpu", "index": 0}]) == "CPU"
    values = {
        "history": [1, 2],
        "loss": 0.067123,
        "test_accuracy": 0.98124,
        "is_equal": True,
        "epochs": 10,
        "simulated": True,
    }
    assert formatting.recorded(values) == "test_accuracy 0.9812  loss 0.06712  is_equal yes"
    judged = {
        "epochs": 3,
        "workload": "x",
        "acceptance": {"name": "gap", "value": 0.015, "threshold": 0.02, "ok": True},
    }
    assert formatting.recorded(judged) == "gap 0.015  epochs 3"


@pytest.mark.parametrize(
    "notebook",
    [
        {},
        {"cells": None},
        {"cells": [None, "x", {}, {"cell_type": "code", "outputs": [1, {"data": 3}], "metadata": []}]},
        {"cells": [{"cell_type": "code", "metadata": {"papermill": {"status": "failed"}}, "outputs": [{}]}]},
        {
            "cells": [
                {
                    "cell_type": "code",
                    "metadata": {"papermill": {"status": "failed"}},
                    "source": 3,
                    "outputs": [{"output_type": "error", "ename": None, "evalue": ["a"]}],
                }
            ]
        },
    ],
)
def test_a_file_that_is_hardly_a_notebook_is_summarised(notebook: dict) -> None:
    """Whatever a notebook has made of its own output file, there is a result."""
    found = executed.summarise(notebook)

    assert found.recorded == {}
    assert found.cells_done == 0


def test_a_record_that_is_nested_too_deeply_is_left_out() -> None:
    """The other records stay, and it is said."""
    outputs = []
    for name, levels in (("fine", executed.DEEPEST_RECORD - 1), ("deep", executed.DEEPEST_RECORD), ("deeper", 5_000)):
        value: object = 1
        for _ in range(levels):
            value = [value]
        outputs.append({"output_type": "display_data", "data": {executed.RECORD: {name: value}}})

    found = executed.summarise({"cells": [{"cell_type": "code", "outputs": outputs}]})

    assert list(found.recorded) == ["fine"]
    assert found.warnings == ["a record that is nested deeper than 50 levels is omitted"] * 2
