"""What papermill's users rely on, and what our engine does with the same notebooks."""

from __future__ import annotations

import importlib
import re
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import engine_runs
import notebook_files
import papermill
import pytest
from papermill.exceptions import PapermillExecutionError
from papermill.iorw import LocalHandler, PapermillIO, papermill_io

from rocmlab.notebook import notebooks

pytestmark = pytest.mark.slow

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


@pytest.mark.long
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


# -- where the output goes


def execute(notebook: Path | str, output: str, **options: Any) -> Any:
    """Run a notebook as a program that calls papermill does."""
    return papermill.execute_notebook(
        str(notebook), output, engine_name="rocmlab", progress_bar=False, kernel_name="test-kernel", **options
    )


@pytest.fixture
def folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, Path]:
    """Two folders, each with a notebook `in.ipynb` that prints another word; the first is the working directory."""
    made = tmp_path / "a", tmp_path / "b"
    for folder in made:
        notebook_files.write(
            folder / "in.ipynb", f"import os; print('of ' + {folder.name!r}, os.path.basename(os.getcwd()))"
        )
    monkeypatch.chdir(made[0])
    return made


@pytest.mark.long
def test_the_same_relative_path_means_a_file_of_each_folder(
    folders: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The working directory of the call counts, and not that of the first call of this process."""
    first, second = folders
    execute("in.ipynb", "out.ipynb")
    before = (first / "out.ipynb").read_bytes()
    monkeypatch.chdir(second)

    execute("in.ipynb", "out.ipynb")

    assert (first / "out.ipynb").read_bytes() == before
    assert "of a" in before.decode()
    assert "of b" in (second / "out.ipynb").read_text()


@pytest.mark.long
def test_a_first_folder_that_is_gone_does_not_matter(
    folders: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The output goes to where the call is made."""
    first, second = folders
    execute("in.ipynb", "out.ipynb")
    monkeypatch.chdir(second)
    for path in first.iterdir():
        path.unlink()
    first.rmdir()

    execute("in.ipynb", "out.ipynb")

    assert "of b" in (second / "out.ipynb").read_text()
    assert not first.exists()


def test_the_notebooks_working_directory_is_not_that_of_the_output(folders: tuple[Path, Path]) -> None:
    """With `cwd=` the kernel works there; the output is relative to whoever calls, as with papermill's own engine."""
    first, second = folders

    execute("in.ipynb", "sub.ipynb", cwd=str(second))

    assert "of a b" in (first / "sub.ipynb").read_text()
    assert not (second / "sub.ipynb").exists()


@pytest.mark.long
def test_an_output_in_a_folder_below_is_there_and_a_failure_is_saved_too(
    folders: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second folder's failure stands in the second folder's file."""
    first, second = folders
    for folder in folders:
        (folder / "results").mkdir()
    notebook_files.write(second / "in.ipynb", "1 / 0")
    execute("in.ipynb", "results/out.ipynb")
    before = (first / "results/out.ipynb").read_bytes()
    monkeypatch.chdir(second)

    with pytest.raises(PapermillExecutionError):
        execute("in.ipynb", "results/out.ipynb")

    assert (first / "results/out.ipynb").read_bytes() == before
    assert "papermill-error-cell-tag" in (second / "results/out.ipynb").read_text()


def test_papermills_own_engine_writes_as_ever(folders: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    """After a run of ours another engine still writes through a link, which an atomic save would replace."""
    _, second = folders
    execute("in.ipynb", "out.ipynb")
    monkeypatch.chdir(second)
    (second / "out.ipynb").symlink_to(second / "real.ipynb")

    papermill.execute_notebook("in.ipynb", "out.ipynb", progress_bar=False, kernel_name="test-kernel")

    assert (second / "out.ipynb").is_symlink()
    assert "of b" in (second / "real.ipynb").read_text()


@pytest.mark.long
def test_two_threads_with_absolute_paths_write_two_files(folders: tuple[Path, Path], tmp_path: Path) -> None:
    """Relative paths of threads are one working directory for all, with papermill itself; absolute ones are safe."""
    local = papermill.iorw.papermill_io.get_handler("local")
    before = local.cwd(None)
    with ThreadPoolExecutor(2) as pool:
        done = [pool.submit(execute, folder / "in.ipynb", str(tmp_path / f"{folder.name}.ipynb")) for folder in folders]
        for each in done:
            each.result()
    local.cwd(before)  # the second thread puts back what the first one had set, a folder of this test

    assert "of a" in (tmp_path / "a.ipynb").read_text()
    assert "of b" in (tmp_path / "b.ipynb").read_text()


@pytest.mark.long
def test_a_bucket_stays_papermills_affair(folders: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    """Also after local outputs: what looks like s3:// goes to the handler of s3://, from any folder."""
    written: dict[str, str] = {}

    class Bucket:
        def write(self, buf: str, path: str) -> None:
            written[path] = buf

        def pretty_path(self, path: str) -> str:
            return path

    execute("in.ipynb", "out.ipynb")
    io = PapermillIO()
    for scheme, handler in {"local": LocalHandler(), "s3://": Bucket()}.items():
        io.register(scheme, handler)
    monkeypatch.setattr("papermill.iorw.papermill_io", io)
    monkeypatch.chdir(folders[1])

    execute("in.ipynb", "s3://bucket/out.ipynb")

    assert list(written) == ["s3://bucket/out.ipynb"]
    assert "of b" in written["s3://bucket/out.ipynb"]
    assert not (folders[1] / "out.ipynb").exists()
