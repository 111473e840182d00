"""`rocmlab datasets` on the host, where there is no lab yet."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rocmlab.cli import main
from rocmlab.stack import project as projects


@pytest.fixture(autouse=True)
def _no_lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A project folder in which no lab was ever made."""
    monkeypatch.setattr(projects, "find", lambda: tmp_path)


def test_a_share_that_is_named_is_looked_at_without_a_lab(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`--share DIR` is a folder of this host: what it has is known."""
    code = main(["datasets", "list", "--share", str(tmp_path / "share"), "--json"])

    rows = json.loads(capsys.readouterr().out)
    assert code == 0
    assert {row["is_in_share"] for row in rows} == {False}
    assert list(tmp_path.iterdir()) == []


def test_without_a_lab_what_its_share_has_is_unknown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Unknown is null, and not false; nothing is built to find it out."""
    code = main(["datasets", "list", "--json"])

    rows = json.loads(capsys.readouterr().out)
    assert code == 0
    assert {row["is_in_share"] for row in rows} == {None}
    assert list(tmp_path.iterdir()) == []
