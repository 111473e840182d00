"""The version of a share's layout."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from rocmlab.base.errors import RocmlabError
from rocmlab.stack import layout


def version(share: Path) -> int:
    """Return what is written."""
    return int(json.loads((share / layout.FILE).read_text())["version"])


def test_a_share_gets_its_version_once(tmp_path: Path) -> None:
    """That of a lab that knew no versions is 1, and nothing is written again."""
    layout.prepare(tmp_path)
    before = (tmp_path / layout.FILE).stat().st_mtime_ns
    layout.prepare(tmp_path)

    assert version(tmp_path) == 1
    assert (tmp_path / layout.FILE).stat().st_mtime_ns == before


def test_a_newer_layout_is_rejected_and_names_both(tmp_path: Path) -> None:
    """In this process and as a container's entry point runs it; the share is not touched."""
    (tmp_path / ".rocmlab").mkdir()
    (tmp_path / layout.FILE).write_text('{"version": 3}')

    with pytest.raises(RocmlabError, match="has layout 3, and this version of rocmlab knows layouts up to 1") as caught:
        layout.prepare(tmp_path)
    done = subprocess.run(
        [sys.executable, "-m", "rocmlab.stack.layout", str(tmp_path)], capture_output=True, text=True, check=False
    )

    assert "make upgrade" in caught.value.problem.fix
    assert done.returncode == 2
    assert "error: the share" in done.stderr
    assert version(tmp_path) == 3


@pytest.mark.parametrize("text", ["", "[]", '{"version": "2"}', '{"version": 0}'])
def test_a_file_that_says_nothing_is_an_error(tmp_path: Path, text: str) -> None:
    """No one can tell how old such a share is."""
    (tmp_path / ".rocmlab").mkdir()
    (tmp_path / layout.FILE).write_text(text)

    with pytest.raises(RocmlabError, match=r"layout\.json"):
        layout.check(tmp_path)
