"""`rocmlab datasets` on the host, where there is no lab yet."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

import pytest

from rocmlab.cli import main
from rocmlab.stack import project as projects


@pytest.fixture(autouse=True)
def _no_lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A project folder in which no lab was ever made, and no share that the environment names."""
    monkeypatch.setattr(projects, "find", lambda: tmp_path)
    for name in ("ROCMLAB_SHARE", "ROCMLAB_RUNTIME"):
        monkeypatch.delenv(name, raising=False)


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


class Lab:
    """A lab that was built in the project folder; it notes what it runs."""

    def __init__(self) -> None:
        self.ran: list[list[str]] = []

    def is_built(self) -> bool:
        """Return whether it was built."""
        return True

    def run(self, arguments: list[str]) -> int:
        """Note the arguments."""
        self.ran.append(arguments)
        return 0


@pytest.mark.parametrize("built", [False, True])
def test_the_share_of_the_environment_is_used_in_a_project_folder(
    built: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """`$ROCMLAB_SHARE` is a folder of this host, with or without a lab; `--share` wins over it."""
    lab = Lab()
    monkeypatch.setattr(projects, "existing", lambda _: SimpleNamespace(lab=lab) if built else None)
    monkeypatch.setenv("ROCMLAB_SHARE", str(tmp_path / "named"))

    main(["datasets", "list", "--json"])
    by_environment = {Path(row["folder"]).parents[1] for row in json.loads(capsys.readouterr().out)}
    main(["datasets", "list", "--json", "--share", str(tmp_path / "other")])
    by_option = {Path(row["folder"]).parents[1] for row in json.loads(capsys.readouterr().out)}

    assert (by_environment, by_option) == ({tmp_path / "named"}, {tmp_path / "other"})
    assert lab.ran == []


def test_without_a_named_share_the_lab_that_was_built_fetches(monkeypatch: pytest.MonkeyPatch) -> None:
    """All names go to the lab in one call."""
    lab = Lab()
    monkeypatch.setattr(projects, "existing", lambda _: SimpleNamespace(lab=lab))

    code = main(["datasets", "fetch", "mnist", "trec"])

    assert (code, lab.ran) == (0, [["datasets", "fetch", "mnist", "trec"]])
