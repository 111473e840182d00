"""What the recorder writes into files: with Jupyter's own contents manager, in a folder of the test."""

from __future__ import annotations

import asyncio
import json
import os
import resource
import stat
from pathlib import Path
from typing import Any

import nbformat
import pytest
from jupyter_server.services.contents.largefilemanager import AsyncLargeFileManager
from nbformat.sign import MemorySignatureStore, NotebookNotary

from rocmlab.lab.recorder import files
from rocmlab.lab.recorder.records import Record, Records
from rocmlab.notebook.wire import Message

UNSAFE = {"output_type": "display_data", "data": {"text/html": "<script>"}, "metadata": {}}


class Manager(AsyncLargeFileManager):
    """Jupyter's, with signatures in memory."""


Manager.__module__ = AsyncLargeFileManager.__module__


@pytest.fixture
def contents(tmp_path: Path) -> Manager:
    """A contents manager of the test's folder."""
    return Manager(root_dir=str(tmp_path), notary=NotebookNotary(store_factory=MemorySignatureStore))


def make(path: Path, *ids: str) -> Path:
    """Write a notebook whose code cells have these ids."""
    empty = {"cell_type": "code", "source": "code", "metadata": {}, "outputs": [], "execution_count": None}
    notebook = {"nbformat": 4, "nbformat_minor": 5, "metadata": {}, "cells": [{**empty, "id": each} for each in ids]}
    path.write_text(json.dumps(notebook))
    return path


def printed(text: str = "new", cell: str = "a") -> Record:
    """Return the record of a cell that has printed."""
    known = Records()
    known.begin(cell, "request", "page", "code")
    known.take(Message("stream", "request", {"name": "stdout", "text": text}, {}, []))
    return known.by_cell[cell]


def write(contents: Manager, record: Record, chain: files.Chain | None = None, path: str = "n.ipynb") -> Any:
    """Write a record into a notebook."""
    return asyncio.run(files.write(contents, chain, path, [record]))


def outputs(path: Path) -> list[str]:
    """Return the text of each cell's outputs."""
    cells = nbformat.v4.reads(path.read_text()).cells
    return ["".join(each.get("text", "") for each in cell.outputs) for cell in cells]


def test_a_page_that_saves_during_a_write_keeps_its_edit(tmp_path: Path, contents: Manager) -> None:
    """The file is replaced only if it is still what was read; what is left is written the next time, on top."""
    path, record = make(tmp_path / "n.ipynb", "a"), printed()

    def save(**_: Any) -> None:
        if not outputs(path)[0] and len(outputs(path)) == 1:
            make(path, "a", "of-a-page")

    contents.register_pre_save_hook(save)  # at the last moment in which others have their turn

    chain, found = write(contents, record)
    between = (chain, found, record.is_dirty, outputs(path))
    write(contents, record)

    assert between == (None, [record], True, ["", ""])
    assert outputs(path) == ["new", ""]
    assert not record.is_dirty


def test_a_save_of_a_page_that_is_under_way_is_not_undone(tmp_path: Path, contents: Manager) -> None:
    """Jupyter empties a file and fills it; its reader takes that for a crash and would bring the old one back."""
    path = make(tmp_path / "n.ipynb", "a")
    path.rename(tmp_path / ".~n.ipynb")
    path.write_text('{"cells": [')

    with pytest.raises(ValueError, match="JSON"):
        write(contents, printed())

    assert path.read_text() == '{"cells": ['
    assert sorted(each.name for each in tmp_path.iterdir()) == [".~n.ipynb", "n.ipynb"]


def test_other_saves_are_not_touched(tmp_path: Path, contents: Manager) -> None:
    """A page that saves another notebook meanwhile has it saved as Jupyter saves it."""
    make(tmp_path / "n.ipynb", "a")
    linked = make(tmp_path / "other.ipynb", "b")
    os.link(linked, tmp_path / "link.ipynb")

    async def both() -> None:
        model = {"type": "notebook", "content": nbformat.v4.new_notebook()}
        await asyncio.gather(files.write(contents, None, "n.ipynb", [printed()]), contents.save(model, "other.ipynb"))

    asyncio.run(both())

    assert outputs(tmp_path / "n.ipynb") == ["new"]
    assert outputs(tmp_path / "link.ipynb") == []
    assert "atomic_writing" not in vars(contents)


@pytest.mark.parametrize("text", ["a lone \ud800 surrogate", "é 🚀"])
def test_any_text_can_be_written(tmp_path: Path, contents: Manager, text: str) -> None:
    """What no file can have does not keep the rest of the notebook from being written."""
    path = make(tmp_path / "n.ipynb", "a")

    write(contents, printed(text))

    assert outputs(path) == [text.replace("\ud800", "?")]


def test_a_read_only_file_is_left_alone(tmp_path: Path, contents: Manager) -> None:
    """Although its folder would allow to replace it."""
    path = make(tmp_path / "n.ipynb", "a")
    path.chmod(0o444)

    with pytest.raises(OSError, match="read-only"):
        write(contents, printed())

    assert outputs(path) == [""]


def test_links_and_mode_stay(tmp_path: Path, contents: Manager) -> None:
    """Links lead to what is written; of a symbolic one Jupyter tells the link's times, which prove nothing."""
    folder = tmp_path / "folder"
    folder.mkdir()
    path = make(folder / "real.ipynb", "a")
    path.chmod(0o664)
    (tmp_path / "n.ipynb").symlink_to(path)
    os.link(path, folder / "hard.ipynb")
    chain, _ = write(contents, printed())
    hard = outputs(folder / "hard.ipynb")
    (folder / "hard.ipynb").unlink()
    write(contents, printed("newer"))

    assert chain is None
    assert (tmp_path / "n.ipynb").is_symlink()
    assert (hard, outputs(path)) == (["new"], ["newer"])
    assert stat.S_IMODE(path.stat().st_mode) == 0o664


@pytest.mark.parametrize("is_linked", [False, True])
def test_a_full_disk_changes_nothing(tmp_path: Path, contents: Manager, is_linked: bool) -> None:
    """Neither where the file is replaced, nor where it is written in place."""
    path = make(tmp_path / "n.ipynb", "a")
    before, limits = path.read_text(), resource.getrlimit(resource.RLIMIT_FSIZE)
    if is_linked:
        os.link(path, tmp_path / "hard.ipynb")
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, limits[1]))
    try:
        with pytest.raises(OSError, match="too large"):
            write(contents, printed("x" * 200_000))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)

    assert path.read_text() == before
    assert [each.name for each in tmp_path.iterdir() if each.name not in ("n.ipynb", "hard.ipynb")] == []


def test_an_id_of_two_cells_and_cells_without_ids_get_nothing(tmp_path: Path, contents: Manager) -> None:
    """The output would be another cell's; notebooks before nbformat 4.5 have no ids, before 4 other cells."""
    path = make(tmp_path / "n.ipynb", "a", "a", "b")
    twice = write(contents, printed())[1]
    notebook = json.loads(path.read_text())
    notebook["cells"] = [{key: each[key] for key in each if key != "id"} for each in notebook["cells"]]
    path.write_text(json.dumps(notebook | {"nbformat_minor": 4}))
    without = write(contents, printed())[1]
    path.write_text(nbformat.v3.writes_json(nbformat.v3.new_notebook(worksheets=[nbformat.v3.new_worksheet()])))
    before = path.read_text()

    assert (twice, without, write(contents, printed())[1]) == ([], [], [])
    assert path.read_text() == before


@pytest.mark.parametrize("is_trusted", [True, False])
def test_trust_is_neither_gained_nor_lost(tmp_path: Path, contents: Manager, caplog: Any, is_trusted: bool) -> None:
    """A page runs what a trusted notebook shows; the log does not repeat each 10 seconds that one is not."""
    path = make(tmp_path / "n.ipynb", "a", "b")
    notebook = nbformat.v4.reads(path.read_text())
    notebook.cells[1].outputs = [nbformat.from_dict(UNSAFE)]
    path.write_text(nbformat.v4.writes(notebook))
    if is_trusted:
        contents.notary.sign(notebook)

    write(contents, printed())

    assert contents.notary.check_signature(nbformat.v4.reads(path.read_text())) == is_trusted
    assert "trusted" not in caplog.text + path.read_text()


def test_a_page_is_current_only_with_what_was_read_or_written_here(tmp_path: Path, contents: Manager) -> None:
    """Times of our own writes join; one of an older file that came back in between does not include what a page had."""
    path = make(tmp_path / "n.ipynb", "a")
    os.utime(path, (1e9, 1e9))
    first, _ = write(contents, printed())
    second, _ = write(contents, printed("newer"), first)
    times = (second.before.timestamp(), second.first <= second.after, second is first)
    make(path, "a", "restored")
    os.utime(path, (5e8, 5e8))
    third, _ = write(contents, printed("newest"), second)

    assert times == (1e9, True, True)
    assert (third.before.timestamp(), third.first) == (5e8, third.after)


def test_of_two_notebooks_of_a_kernel_one_that_is_gone_does_not_stop_the_other(
    tmp_path: Path, contents: Manager
) -> None:
    """A cell of both belongs to the one whose code was run; if that is uncertain, to none."""
    make(tmp_path / "n.ipynb", "a", "both")
    make(tmp_path / "m.ipynb", "both")
    record, both = printed(), printed(cell="both")
    both.request = "both"

    found, unread = asyncio.run(files.paths_of(contents, ["gone.ipynb", "n.ipynb", "m.ipynb"], [record, both]))

    assert found == {"request": "n.ipynb"}
    assert list(unread) == ["gone.ipynb"]


@pytest.mark.parametrize("text", ['{"cells": [', "[]", '{"nbformat": 4, "cells": [{}]}'])
def test_while_a_notebook_of_a_kernel_cannot_be_read_only_cells_whose_code_was_run_are_found(
    tmp_path: Path, contents: Manager, text: str
) -> None:
    """The other notebook may be a copy, with the same ids, in which the code was changed."""
    make(tmp_path / "copy.ipynb", "a", "b")
    (tmp_path / "n.ipynb").write_text(text)
    changed, same = printed(), printed(cell="b")
    same.request, same.code = "of the same", "code"
    changed.code = "other code"

    found, unread = asyncio.run(files.paths_of(contents, ["n.ipynb", "copy.ipynb"], [changed, same]))

    assert found == {"of the same": "copy.ipynb"}
    assert list(unread) == ["n.ipynb"]


def test_only_files_of_jupyters_own_managers_are_written(contents: Manager) -> None:
    """Another may keep a notebook in two files, of which the older one would win."""

    class Pairing(Manager):
        def get(self, *given: Any, **more: Any) -> Any:
            return super().get(*given, **more)

    assert files.is_known(contents)
    assert not files.is_known(Pairing())
