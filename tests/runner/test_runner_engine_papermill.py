"""What papermill's users rely on, and what our engine does with the same notebooks."""

from __future__ import annotations

import importlib
import re
from pathlib import Path
from typing import Any

import engine_runs
import notebook_files
import papermill
import pytest
from papermill.exceptions import PapermillExecutionError
from papermill.iorw import papermill_io

from rocmlab.runner.engine import notebooks

DECLARED = notebook_files.PARAMETERS + "epochs: int = 1  # how often"
WIDGET = """
from comm import create_comm
comm = create_comm(target_name="jupyter.widget", data={"state": {"_model_name": "IntModel", "_model_module": "m",
            "_model_module_version": "1", "value": 1}})
comm.send({"method": "update", "state": {"value": 42}})
"""
SHOWING = """
from IPython.display import display, clear_output
handle = display("first", display_id="d")
print("gone")
clear_output()
handle = display("second", display_id="d")
"""


def plain(value: Any) -> Any:
    """Return a notebook without times and random ids."""
    if isinstance(value, dict):
        hidden = {"id", "start_time", "end_time", "duration", "execution", "output_path"}
        return {re.sub("^[0-9a-f]{32}$", "", name): plain(item) for name, item in value.items() if name not in hidden}
    if isinstance(value, list):
        return "".join(value) if value and all(isinstance(item, str) for item in value) else [plain(i) for i in value]
    return re.sub(r"comm_id=\w+|/ipykernel_\d+/|0x[0-9a-f]+", "", value) if isinstance(value, str) else value


@pytest.mark.parametrize(
    "cells",
    [
        ("## Title", DECLARED, "print(epochs)\n1 + 1", "import sys\nprint('oh', file=sys.stderr)"),
        (DECLARED, "1 / 0", "print('never')"),
        (DECLARED, "import sys; sys.exit(0)", "print('never')"),
        (DECLARED, SHOWING, "from IPython.display import display\nhandle.update('third'); handle = None"),
        (DECLARED, "", "input()"),
        (DECLARED, WIDGET),
    ],
    ids=["ok", "error", "exit", "display", "input", "widget"],
)
def test_the_notebook_is_the_one_that_papermill_makes(tmp_path: Path, cells: tuple[str, ...]) -> None:
    """Parameters, injected cell, metadata, outputs, widgets, error markers and the exception are the same."""
    theirs = engine_runs.run(tmp_path, *cells, parameters={"epochs": 3}, engine_name=None)
    ours = engine_runs.run(tmp_path, *cells, parameters={"epochs": 3})

    assert plain(ours.notebook) == plain(theirs.notebook)
    assert type(ours.error) is type(theirs.error)
    assert any("injected-parameters" in cell["metadata"].get("tags", []) for cell in ours.notebook["cells"])


def test_tags_decide_what_runs_and_what_may_fail(tmp_path: Path) -> None:
    """`skip-execution` is not run; `raises-exception` does not end the notebook."""
    path = notebook_files.write(tmp_path / "in.ipynb", "1 / 0", "x = 1", "print('reached', 'x' in dir())")
    notebook = papermill.iorw.load_notebook_node(str(path))
    notebook.cells[0].metadata.tags = ["raises-exception"]
    notebook.cells[1].metadata.tags = ["skip-execution"]

    with pytest.raises(PapermillExecutionError):  # papermill's own judgement at the end
        papermill.execute_notebook(notebook, str(tmp_path / "out.ipynb"), engine_name="rocmlab", progress_bar=False)

    assert "reached False" in (tmp_path / "out.ipynb").read_text()


def test_any_back_end_of_papermill_is_written_to(tmp_path: Path) -> None:
    """A path that is not a file goes through papermill's handler, while it runs and at the end."""
    path = notebook_files.write(tmp_path / "in.ipynb", "print('he' + 're')")
    written: list[str] = []

    class Store:
        def write(self, buf: str, path: str) -> None:
            written.append(buf)

        def pretty_path(self, path: str) -> str:
            return path

    papermill_io.register("memory://", Store())

    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path)
        papermill.execute_notebook(str(path), "memory://a/b.ipynb", engine_name="rocmlab", progress_bar=False)

    assert len(written) >= 2
    assert "here" in written[-1]
    assert "here" not in written[0]


def test_the_entry_point_leads_to_the_engine() -> None:
    """`papermill --engine rocmlab` finds what pyproject.toml names."""
    text = (Path(__file__).parents[2] / "pyproject.toml").read_text()
    found = re.search(r'entry-points."papermill.engine"\]\nrocmlab = "([\w.]+):(\w+)"', text)

    assert found is not None
    assert hasattr(getattr(importlib.import_module(found[1]), found[2]), "execute_notebook")


def test_a_folder_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    """As with papermill, the output's folder is not made by itself."""
    path = notebook_files.write(tmp_path / "in.ipynb", "1")

    with pytest.raises(FileNotFoundError, match="doesn't exist"):
        papermill.execute_notebook(str(path), str(tmp_path / "no/out.ipynb"), engine_name="rocmlab", progress_bar=False)


def test_the_short_way_reads_a_notebook_as_papermill_does(tmp_path: Path) -> None:
    """Without parameters papermill is not asked; what comes out is the same."""
    path = notebook_files.write(tmp_path / "in.ipynb", "## Title\nText", "x = 1\ny = 2", "print(x)")

    ours = notebooks.prepare(str(path), "out.ipynb", {}, "test-kernel", "python")
    theirs = papermill.execute_notebook(str(path), str(tmp_path / "out.ipynb"), prepare_only=True, progress_bar=False)

    for node in (ours, theirs):
        del node["metadata"]["papermill"]["output_path"]
    assert ours == theirs


@pytest.mark.parametrize("text", ["", "[]", '{"nbformat": 3}', '{"nbformat": 4, "nbformat_minor": 5, "cells": [1]}'])
def test_the_short_way_leaves_what_is_strange_to_papermill(tmp_path: Path, text: str) -> None:
    """Old formats and broken files are papermill's to read, or to refuse."""
    path = tmp_path / "in.ipynb"
    path.write_text(text)

    assert notebooks._plain(str(path)) is None
