"""Removing old runs whose folders cannot simply be emptied, as a user who is not root."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from second_user import UID, open_to_others

from rocmlab.stack import prune

END = "2025-01-01T00:00:00Z"
NAMES = [f"20250101T000000Z-{name}" for name in "abc"]
REMOVE = f"""
import json, os, sys
from pathlib import Path
from rocmlab.stack import prune
if os.getuid() == 0:
    os.setgroups([]); os.setresgid({UID}, {UID}, {UID}); os.setresuid({UID}, {UID}, {UID})
runs = Path(sys.argv[1])
print(json.dumps({{run.name: run.kept_because for run in prune.remove(runs, sys.argv[2:], 86400)}}))
"""


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    """Three old runs, each with a folder."""
    folder = tmp_path / "runs"
    for name in NAMES:
        (folder / name / "model").mkdir(parents=True)
        (folder / name / "model/weights").write_text("x")
        event = {"event": "run finished", "status": "ok", "time": END}
        (folder / name / "journal.jsonl").write_text(json.dumps(event) + "\n")
    for path in (folder, *folder.rglob("*")):
        os.utime(path, (1735689600, 1735689600))
        if os.getuid() == 0:
            os.chown(path, UID, UID)
    open_to_others(tmp_path)
    return folder


def remove(runs: Path) -> dict[str, str]:
    """Remove all of them; return which, each with the reason why it was not."""
    command = [sys.executable, "-c", REMOVE, runs, *NAMES]
    return dict(json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout))


@pytest.mark.parametrize("mode", [0o555, 0o000])
def test_a_run_with_a_read_only_folder_is_removed(runs: Path, mode: int) -> None:
    """A job made it, and it belongs to the user."""
    (runs / NAMES[0] / "model").chmod(mode)
    (runs / NAMES[1]).chmod(0o555)

    assert remove(runs) == dict.fromkeys(NAMES, "")
    assert list(runs.iterdir()) == []


@pytest.mark.skipif(os.getuid() != 0, reason="a second user id needs root: run .ci/run")
def test_a_run_that_cannot_be_removed_stays_whole_and_the_others_are_removed(runs: Path) -> None:
    """Its line has the reason; a container's root made a folder in it, say."""
    os.chown(runs / NAMES[0] / "model", 0, 0)
    before = sorted((runs / NAMES[0]).rglob("*"))

    done = remove(runs)

    assert done == {NAMES[0]: "it cannot be removed: model belongs to another user", NAMES[1]: "", NAMES[2]: ""}
    assert list(runs.iterdir()) == [runs / NAMES[0]]
    assert sorted((runs / NAMES[0]).rglob("*")) == before


@pytest.mark.parametrize("refused", [errno.EROFS, errno.EACCES])
def test_runs_that_may_only_be_read_are_listed(runs: Path, monkeypatch: pytest.MonkeyPatch, refused: int) -> None:
    """As those of a volume, which the command that lists them mounts read-only."""
    real = os.open

    def read_only(path: str, flags: int, *more: int, **named: int) -> int:
        if str(path).endswith("journal.jsonl") and flags & os.O_RDWR:
            raise OSError(refused, os.strerror(refused))
        return real(path, flags, *more, **named)

    monkeypatch.setattr(os, "open", read_only)

    assert [run.name for run in prune.find(runs, 86400)] == NAMES


def test_what_a_killed_removal_has_left_is_not_listed_and_is_removed(runs: Path) -> None:
    """It was put aside before anything in it was removed."""
    (runs / prune.ASIDE).mkdir()
    (runs / NAMES[0]).rename(runs / prune.ASIDE / NAMES[0])
    if os.getuid() == 0:
        os.chown(runs / prune.ASIDE, UID, UID)

    assert [run.name for run in prune.find(runs, 86400)] == NAMES[1:]
    assert not list(runs.glob(f"{prune.ASIDE}/journal.jsonl"))
    assert list(remove(runs)) == NAMES[1:]
    assert list(runs.iterdir()) == []


def test_a_link_in_place_of_the_folder_for_removals_is_not_followed(runs: Path, tmp_path: Path) -> None:
    """What it leads to stays, and so do the runs."""
    (tmp_path / "elsewhere/mine").mkdir(parents=True)
    (runs / prune.ASIDE).symlink_to(tmp_path / "elsewhere")

    done = remove(runs)

    assert done == dict.fromkeys(NAMES, "it cannot be removed: Not a directory")
    assert (tmp_path / "elsewhere/mine").is_dir()
    assert all((runs / name / "model/weights").exists() for name in NAMES)
