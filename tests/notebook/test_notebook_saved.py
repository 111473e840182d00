"""Whether a saved notebook is whole."""

from __future__ import annotations

from pathlib import Path

import pytest

from rocmlab.notebook import notebooks

CELL = {"cell_type": "code", "metadata": {}, "source": "1", "outputs": []}


@pytest.mark.parametrize("cells", [0, 1, 50])
def test_what_was_saved_is_whole(cells: int, tmp_path: Path) -> None:
    """Whatever its length."""
    path = tmp_path / "a.ipynb"

    notebooks.save({"cells": [CELL] * cells, "metadata": {}, "nbformat": 4, "nbformat_minor": 5}, path)

    assert notebooks.is_whole(path)


@pytest.mark.parametrize("content", [b"", bytes(4096), b'{\n "cells": [\n  {"cell_', b"{" + bytes(4096), b"text"])
def test_what_a_power_cut_leaves_is_not_whole(content: bytes, tmp_path: Path) -> None:
    """Nothing, zeros, or the begin alone."""
    path = tmp_path / "a.ipynb"
    path.write_bytes(content)

    assert not notebooks.is_whole(path)


def test_what_is_no_file_of_its_folder_is_not_whole(tmp_path: Path) -> None:
    """Missing, a folder, a link to a notebook elsewhere."""
    (tmp_path / "folder").mkdir()
    (tmp_path / "there").write_text("{}")
    (tmp_path / "link").symlink_to("there")

    assert [notebooks.is_whole(tmp_path / name) for name in ("missing", "folder", "link", "there")] == [False] * 3 + [
        True
    ]
