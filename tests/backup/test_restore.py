"""Restoring what is unusual: odd times, long names, and what an interrupted restore has left."""

from __future__ import annotations

import dataclasses
import os

import pytest
from backup_labs import Lab, tree

from rocmlab.backup import model, restore


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
