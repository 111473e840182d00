"""File names that a terminal cannot show, or would obey: the work is complete before they are printed, and escaped."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from backup_labs import CREATE, RESTORE, Lab

from rocmlab.backup import create, model
from rocmlab.backup.model import Task

NAME = os.fsdecode(b"caf\xe9 \x1b[2J")  # not UTF-8; then what clears a screen


def printed(program: str, task: Task) -> str:
    """Run a program whose output takes only UTF-8, and return it; it must succeed."""
    environment = {**os.environ, "PYTHONIOENCODING": "utf-8:strict"}
    command = [sys.executable, "-c", program, task.to_json()]
    done = subprocess.run(command, env=environment, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.decode()


def test_a_backup_is_complete_whatever_its_files_are_called(lab: Lab) -> None:
    """One that is omitted has its line, in which nothing reaches the terminal as it is."""
    os.mkfifo(lab.share / NAME)

    output = printed(CREATE, lab.task("create", lab.backups))

    assert r"omitted 'share/caf\udce9 \x1b[2J' (a pipe" in output
    assert "\x1b" not in output
    (backup,) = lab.backups.iterdir()
    assert backup == lab.find()


def test_a_restore_is_completed_whatever_its_files_are_called(lab: Lab) -> None:
    """A file that is kept, and a link that is not restored, have their lines."""
    (lab.share / NAME).write_text("older")
    (lab.share / f"{NAME}.link").symlink_to(f"/etc/{NAME}")
    backup = lab.back_up()
    (lab.share / NAME).write_text("mine")
    (lab.share / f"{NAME}.link").unlink()

    output = printed(RESTORE, lab.task("restore", backup))

    assert r"kept 'share/caf\udce9 \x1b[2J' as 'caf\udce9 \x1b[2J.before-restore-" in output
    assert r"'share/caf\udce9 \x1b[2J.link' -> '/etc/caf\udce9 \x1b[2J'" in output
    assert "\x1b" not in output
    assert (lab.share / NAME).read_text() == "older"


def test_the_backup_has_its_name_before_anything_is_printed_about_it(lab: Lab) -> None:
    """Whatever ends the output, as a closed pipe does, does not make it incomplete."""
    os.mkfifo(lab.share / "pipe")

    def say(line: str) -> None:
        if "omitted" in line:
            raise BrokenPipeError

    with pytest.raises(BrokenPipeError):
        create.create(lab.task("create", lab.backups), say)

    assert lab.find().name.startswith("rocmlab-2")


def test_a_damaged_file_is_named_in_a_line_that_is_safe() -> None:
    """In the error as well."""
    problem = model.damaged("x", "why", f"share/{NAME}", "share/plain").problem

    assert r"affected: 'share/caf\udce9 \x1b[2J', share/plain" in problem.why
