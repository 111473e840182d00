"""What papermill, nbclient and `jupyter execute` accept and show, our engine and `run` do as well."""

from __future__ import annotations

import io
import json
import logging
import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import engine_runs
import notebook_files
import papermill
import pytest
from rich.console import Console
from watching import Watcher

from rocmlab.base.errors import RocmlabError
from rocmlab.notebook import record
from rocmlab.runs.folder import RunFolder
from rocmlab.runs.jobs import Result
from rocmlab.runs.outcome.results import Run
from rocmlab.runs.run import run
from rocmlab.runs.scheduling.placement import Slots
from rocmlab.runs.screen import summary

pytestmark = pytest.mark.slow


def ran(path: Path, folder: RunFolder, slots: Slots, watcher: Watcher) -> tuple[Result, dict[str, Any]]:
    """Run a notebook as `rocmlab run` does; return its result and the executed notebook."""
    finished = run(notebook_files.jobs([path]), folder=folder, slots=slots, display=watcher)
    result = finished.results[0]
    assert result.files, result
    return result, json.loads((folder.path / result.files["notebook"]).read_text(encoding="utf-8"))


@pytest.mark.long
@pytest.mark.parametrize(
    ("cell", "name", "value"),
    [
        ("%unknown_magic", "UsageError", "unknown_magic"),
        pytest.param(
            "raise ExceptionGroup('several', [ValueError('one')])",
            "ExceptionGroup",
            "several",
            marks=pytest.mark.skipif(sys.version_info < (3, 11), reason="Python 3.11 has them"),
        ),
    ],
    ids=["magic", "group"],
)
def test_an_error_that_the_kernel_only_replies_is_named(
    cell: str, name: str, value: str, tmp_path: Path, run_folder: RunFolder, slots: Slots, watcher: Watcher
) -> None:
    """IPython prints these to stderr and sends no error output; name and value are in its reply."""
    result, notebook = ran(notebook_files.write(tmp_path / "a.ipynb", "1", cell, "2"), run_folder, slots, watcher)

    assert result.status == "failed"
    assert result.error["name"] == name
    assert value in result.error["value"]
    assert any(output.get("ename") == name for each in notebook["cells"] for output in each.get("outputs", []))


@pytest.mark.long
@pytest.mark.parametrize(("last", "status"), [("print('end')", "ok"), ("1 / 0", "failed"), ("exit(0)", "ok")])
def test_a_cell_that_may_fail_does_not_fail_the_job(
    last: str, status: str, tmp_path: Path, run_folder: RunFolder, slots: Slots, watcher: Watcher
) -> None:
    """The tag `raises-exception` counts, as for `jupyter execute`; another cell's error does fail it."""
    path = notebook_files.write(tmp_path / "a.ipynb", "undefined", "import sys\nexit = sys.exit", last)
    content = json.loads(path.read_text())
    content["cells"][0]["metadata"]["tags"] = ["raises-exception"]
    path.write_text(json.dumps(content))

    result, notebook = ran(path, run_folder, slots, watcher)

    assert result.status == status
    assert "NameError" in json.dumps(notebook)
    if status == "failed":
        assert (result.error["name"], result.error["cell"]) == ("ZeroDivisionError", 3)


@pytest.mark.long
@pytest.mark.parametrize(
    "change",
    [
        lambda content: content["cells"][0].update(outputs=[{"output_type": "stream", "text": "old"}]),
        lambda content: content["cells"][0].pop("outputs"),
        lambda content: content.update(signature="of an old version"),
        lambda content: content.update(nbformat_minor=2) or content["cells"][0].pop("id"),
    ],
    ids=["an output without a name", "no outputs", "an unknown key", "format 4.2"],
)
def test_a_notebook_that_papermill_accepts_with_a_warning_runs(
    change: Any, tmp_path: Path, run_folder: RunFolder, slots: Slots, watcher: Watcher
) -> None:
    """Old outputs are discarded anyway; the executed notebook is valid."""
    path = notebook_files.write(tmp_path / "a.ipynb", "print('ran')")
    content = json.loads(path.read_text())
    change(content)
    path.write_text(json.dumps(content))

    result, notebook = ran(path, run_folder, slots, watcher)

    assert result.status == "ok"
    assert set(notebook) == {"cells", "metadata", "nbformat", "nbformat_minor"}
    assert "orig_nbformat_minor" not in notebook["metadata"]
    assert notebook["cells"][0]["outputs"] == [{"output_type": "stream", "name": "stdout", "text": "ran\n"}]


@pytest.fixture
def lab_kernel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The kernelspec that is the lab's default, and none that is called `python3`."""
    notebook_files.write_kernel(tmp_path / "jupyter/kernels/tensorflow", sys.executable)
    monkeypatch.setenv("JUPYTER_PATH", str(tmp_path / "jupyter"))
    monkeypatch.setattr("jupyter_core.paths.SYSTEM_JUPYTER_PATH", [])
    monkeypatch.setattr("jupyter_core.paths.ENV_JUPYTER_PATH", [])
    monkeypatch.setenv("JUPYTER_DATA_DIR", str(tmp_path / "none"))
    return "tensorflow"


@pytest.mark.long
@pytest.mark.parametrize("named", ["python", "python3", "conda-env-mine-py"])
def test_a_python_kernel_from_elsewhere_is_replaced_and_reported(
    named: str, lab_kernel: str, tmp_path: Path, run_folder: RunFolder, slots: Slots, watcher: Watcher
) -> None:
    """The notebook runs with the lab's default kernel; log and result have a warning, `--kernel` still wins."""
    path = notebook_files.write(tmp_path / "a.ipynb", "1", kernel=named, language_info={"name": "python"})

    result, _ = ran(path, run_folder, slots, watcher)

    assert (result.status, result.kernel) == ("ok", lab_kernel)
    assert f"its kernel {named!r} was not found" in result.warnings[0]
    assert result.warnings[0] in (run_folder.path / result.files["log"]).read_text()
    assert notebook_files.jobs([path], kernel=lab_kernel)[0].warning is None


def test_a_kernel_of_the_lab_or_of_another_language_is_not_replaced(lab_kernel: str, tmp_path: Path) -> None:
    """Another framework or language would not do what the notebook says."""
    torch = notebook_files.write(tmp_path / "t.ipynb", "1", kernel="torch", language_info={"name": "python"})
    julia = notebook_files.write(tmp_path / "j.ipynb", "1", kernel="julia-9", language_info={"name": "julia"})

    jobs = notebook_files.jobs([torch, julia])

    assert all(job.problem and "is not installed" in job.problem.what for job in jobs)


def test_the_kernel_called_python_is_the_interpreters_own(tmp_path: Path) -> None:
    """jupyter_client maps the name to the native kernel."""
    done = engine_runs.run(tmp_path, "1 + 1", kernel_name="python")

    assert done.error is None


def test_the_engine_can_be_imported_before_papermill() -> None:
    """Papermill imports it while it is being imported itself."""
    program = "from rocmlab.notebook.adapter import RocmlabEngine; RocmlabEngine.execute_notebook; import papermill"

    subprocess.run([sys.executable, "-W", "ignore", "-c", program], check=True, timeout=60)


@pytest.mark.parametrize("option", ["cell_second", "interrupt_on_timeout", "error_on_timeout"])
def test_an_unknown_option_is_an_error(option: str, tmp_path: Path) -> None:
    """A misspelled limit, or an option of nbclient that this engine does not have, must not be ignored."""
    path = notebook_files.write(tmp_path / "in.ipynb", "1")

    with pytest.raises(RocmlabError, match=f"unknown option '{option}'"):
        papermill.execute_notebook(
            str(path), str(tmp_path / "out.ipynb"), engine_name="rocmlab", progress_bar=False, **{option: 1}
        )


@pytest.mark.long
def test_no_limit_for_the_start_and_lines_for_each_cell(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """`--start-timeout 0` means no limit; `--log-output` writes the lines about cells that papermill writes."""
    cells = ("## Title", "print('shown')")
    with caplog.at_level(logging.INFO, logger="papermill"):
        theirs = engine_runs.run(tmp_path, *cells, engine_name=None, log_output=True)
        expected = [line for line in caplog.messages if "ing Cell" in line or "shown" in line]
        caplog.clear()
        ours = engine_runs.run(tmp_path, *cells, start_timeout=0, log_output=True)

    assert theirs.error is ours.error is None
    assert [line for line in caplog.messages if "ing Cell" in line or "shown" in line] == expected
    assert any("Executing Cell 2" in line for line in expected)


@pytest.mark.long
@pytest.mark.parametrize(("every", "is_saved"), [(0, False), (0.2, True), (30, True)])
def test_autosave_is_as_often_as_requested(every: float, is_saved: bool, tmp_path: Path) -> None:
    """0 saves where a cell starts and nowhere else; papermill's default leaves ours, which is more often."""
    look = (
        "import time\n"
        "from pathlib import Path\n"
        "time.sleep(2.2)\n"
        "print('first ' + 'line', flush=True)\n"
        "time.sleep(3)\n"
        f"print('saved:', 'first ' + 'line' in Path({str(tmp_path / 'out.ipynb')!r}).read_text())"
    )

    done = engine_runs.run(tmp_path, "1", look, autosave_cell_every=every)

    assert f"saved: {is_saved}" in done.outputs(1)[0]["text"]


# -- what a failure shows

LONG = "\n".join([*(f"a{number} = {number}" for number in range(20)), "1 / 0", "b = 1"])


@pytest.mark.long
def test_the_failing_line_is_shown(tmp_path: Path, run_folder: RunFolder, slots: Slots, watcher: Watcher) -> None:
    """Not the first lines of a long cell; the line has a mark and its number."""
    path = notebook_files.write(tmp_path / "a.ipynb", "1", LONG)
    finished = run(notebook_files.jobs([path]), folder=run_folder, slots=slots, display=watcher)
    console = Console(file=io.StringIO(), width=200)

    summary.show(finished, console)

    error = finished.results[0].error
    assert (error["line"], error["first_line"]) == (21, 17)
    assert error["source"].splitlines()[4] == "1 / 0"
    assert "failed in cell 2 of 2, line 21" in console.file.getvalue()
    assert "  > 1 / 0\n" in console.file.getvalue()
    assert "1 / 0" in (run_folder.path / "report.html").read_text()


def test_the_same_error_of_many_notebooks_is_shown_once(run_folder: RunFolder) -> None:
    """With the names of all, and the cell where it differs."""
    error = {"name": "ValueError", "value": "loss is nan", "cell": 3, "source": "raise ValueError"}
    results = [failed(f"job-{number}", {**error, "cell": number + 1}) for number in range(15)]
    results.append(failed("other", {**error, "value": "something else"}))
    console = Console(file=io.StringIO(), width=200)

    summary.show(Run(run_folder, results, "2026-01-01T00:00:00Z", 1.0, False, 2), console)

    text = console.file.getvalue()
    assert text.count("loss is nan") == 1
    assert "the same error in 14 more: job-1 (cell 2), job-2 (cell 3)" in text
    assert "ValueError: something else" in text


def failed(name: str, error: dict[str, Any]) -> Result:
    """Return the result of a job that failed."""
    return Result(name, f"/{name}.ipynb", {}, "test-kernel", "failed", 1, cells_total=20, error=error)


@pytest.mark.parametrize(("every", "saves"), [(60.0, 2), (0.2, 31), (math.inf, 31)])
def test_the_time_between_two_saves_counts_where_a_cell_starts_also(
    every: float, saves: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Thirty cells of three seconds; without saving meanwhile, a notebook is saved at cells alone."""
    now, saved = [0.0], []
    monkeypatch.setattr(record.time, "monotonic", lambda: now[0])
    cells = [{"cell_type": "code", "metadata": {}} for _ in range(30)]
    recorder = record.Recorder({"metadata": {}, "cells": cells}, lambda: saved.append(now[0]), every, saved.append)

    recorder.start()
    for cell in cells:
        now[0] += 3.0
        recorder.cell_start(cell)
        recorder.cell_end(cell, is_failed=False)

    assert len(saved) == saves
