"""Restoring what is unusual: odd times, long names, and what an interrupted restore has left."""

from __future__ import annotations

import dataclasses
import os
import signal
import subprocess
import sys

import pytest
from backup_labs import Lab, tree

from rocmlab.backup import model, restore

ENDED = """
import os, sys
from rocmlab.backup import model, restore
task, number, copies = model.Task.from_json(sys.argv[1]), int(sys.argv[2]), []

def copied(*given):
    copies.append(real(*given))
    if len(copies) == 3:
        os.kill(os.getpid(), number)

real, restore._copy = restore._copy, copied
restore.restore(task, print)
"""


def test_a_file_from_the_far_future_stops_no_restore(lab: Lab) -> None:
    """A camera without a clock, or a wrong `touch`: its time comes back, and so does every other file."""
    (lab.share / "odd").write_text("odd")
    (lab.share / "other").write_text("other")
    os.utime(lab.share / "odd", (0, 4_700_000_000))  # in 2118
    before = tree(lab.share)

    backup = lab.back_up()
    lab.lose()
    lab.restore(backup)

    assert before == tree(lab.share)


@pytest.mark.parametrize("mtime_ns", [-(10**40), 10**40])
def test_a_time_that_no_system_has_becomes_the_nearest_one(lab: Lab, mtime_ns: int) -> None:
    """A manifest may have any number."""
    (lab.share / "x").write_text("x")
    entry = dataclasses.replace(model.read(lab.back_up()).entries["share/x"], mtime_ns=mtime_ns)

    os.utime(lab.share / "x", ns=restore.times_ns(entry))

    assert ((lab.share / "x").stat().st_mtime < 0) == (mtime_ns < 0)


@pytest.mark.parametrize("name", ["n" * 230, "n" * 255, "é" * 127])
def test_a_long_name_that_differs_is_kept_under_a_shorter_one(lab: Lab, name: str) -> None:
    """A file system takes names of 255 bytes; each version has a name of its own, of whole characters."""
    (lab.share / name).write_text("old")
    (lab.share / "z").write_text("after it")
    backup = lab.back_up()
    (lab.share / "z").unlink()

    for text in ("mine", "mine again"):
        (lab.share / name).write_text(text)
        lab.restore(backup)

    kept = [path for path in lab.share.iterdir() if ".before-restore-" in path.name]
    assert (lab.share / name).read_text() == "old"
    assert sorted(path.read_text() for path in kept) == ["mine", "mine again"]
    assert {path.name[:100] for path in kept} == {name[:100]}
    assert (lab.share / "z").exists()


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_a_restore_that_is_repeated_gives_folders_their_modes_and_times(lab: Lab, number: int) -> None:
    """Also those that the one which ended has made; until then they are private."""
    for name, mode in (("shared", 0o775), ("fixed", 0o555)):
        for where in ("a/deep", "b"):
            (lab.share / name / where).mkdir(parents=True)
            (lab.share / name / where / "x").write_text(where)
        (lab.share / name).chmod(mode)
        os.utime(lab.share / name, (10**9, 10**9))
    before = tree(lab.share)
    backup = lab.back_up()
    lab.lose()
    lab.share.chmod(0o2775)  # which a folder in it inherits in part
    command = [sys.executable, "-c", ENDED, lab.task("restore", backup).to_json(), str(int(number))]
    ended = subprocess.run(command, capture_output=True, check=False)
    modes = [path.stat().st_mode for path in lab.share.rglob("*") if path.is_dir()]

    lab.restore(backup)

    assert ended.returncode
    assert modes
    assert not any(mode & 0o077 for mode in modes)
    assert before == tree(lab.share)


def test_a_restore_opens_no_folder_that_is_there(lab: Lab) -> None:
    """It was made private after the backup, and stays so."""
    (lab.share / "runs").mkdir()
    (lab.share / "runs/x").write_text("x")
    backup = lab.back_up()
    (lab.share / "runs").chmod(0o700)
    (lab.share / "runs/x").unlink()

    lab.restore(backup)

    assert (lab.share / "runs/x").read_text() == "x"
    assert (lab.share / "runs").stat().st_mode & 0o7777 == 0o700
