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
    assert layout.prepare(tmp_path) == []
    before = (tmp_path / layout.FILE).stat().st_mtime_ns
    assert layout.prepare(tmp_path) == []

    assert version(tmp_path) == 1
    assert (tmp_path / layout.FILE).stat().st_mtime_ns == before


def test_steps_go_forward_one_by_one_and_continue_where_they_were_interrupted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A step that fails is repeated; those before it are not."""
    done: list[int] = []

    def second(share: Path) -> None:
        if len(done) < 2:
            done.append(0)
            raise OSError("the disk is full")
        done.append(2)

    monkeypatch.setattr(layout, "STEPS", {1: lambda share: done.append(1), 2: second})
    monkeypatch.setattr(layout, "VERSION", 3)
    with pytest.raises(OSError, match="full"):
        layout.prepare(tmp_path)
    assert version(tmp_path) == 2

    assert layout.prepare(tmp_path) == ["the share's layout is now 3"]
    assert done == [1, 0, 2]
    assert version(tmp_path) == 3


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
