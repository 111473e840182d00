"""Databases of SQLite that other programs write to while they are backed up."""

from __future__ import annotations

import contextlib
import os
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from backup_labs import CREATE, NEEDS_ROOT, Lab, as_second_user
from second_user import UID, open_to_others

from rocmlab.backup import databases, model

LIMIT_SECONDS = 120  # for what takes a second or two, on a loaded machine
HOLD = """
import sqlite3, sys
database = sqlite3.connect(sys.argv[1], isolation_level=None)
database.execute("PRAGMA cache_size=50")  # so that the transaction is written to the file before its end
database.execute("CREATE TABLE history (line TEXT)")
database.execute("INSERT INTO history VALUES ('committed')")
database.execute("BEGIN")
database.executemany("INSERT INTO history VALUES (?)", [("x" * 10_000,)] * 600)
print("held", flush=True)
sys.stdin.read()
"""
COUNT = """
import sqlite3, sys, time
database = sqlite3.connect(sys.argv[1], isolation_level=None)
database.execute("PRAGMA journal_mode=WAL")
database.execute("PRAGMA synchronous=OFF")
database.execute("CREATE TABLE first AS SELECT 0 AS number")
database.execute("CREATE TABLE filler AS SELECT zeroblob(20000000)")
database.execute("CREATE TABLE last AS SELECT 0 AS number")
print("counting", flush=True)
while True:
    database.executescript("BEGIN; UPDATE first SET number = number + 1; UPDATE last SET number = number + 1; COMMIT")
    time.sleep(0.0001)
"""


@contextlib.contextmanager
def running(program: str, database: Path) -> Iterator[None]:
    """Run a program on a database, until it has printed a line and then until the end of the test."""
    command = [sys.executable, "-c", program, str(database)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout
        child.stdout.readline()
        try:
            yield
        finally:
            child.kill()


@pytest.mark.slow
def test_a_database_that_stays_locked_ends_no_backup(lab: Lab) -> None:
    """What was committed before is saved, and the database is named as one that changes."""
    path = lab.share / "history.sqlite"
    command = [sys.executable, "-c", CREATE, lab.task("create", lab.backups).to_json(), "1"]
    with running(HOLD, path):
        done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_SECONDS, check=False)
    backup = lab.find()
    lab.lose()
    lab.restore(backup)

    assert done.returncode == 0, done.stderr
    assert "changed during backup: share/history.sqlite" in done.stdout
    assert model.read(backup).entries["share/history.sqlite"].was_changing
    assert os.listdir(lab.share) == ["history.sqlite"]
    with contextlib.closing(sqlite3.connect(path)) as database:
        assert database.execute("PRAGMA integrity_check").fetchone() == ("ok",)
        assert database.execute("SELECT * FROM history").fetchall() == [("committed",)]


@pytest.mark.slow
def test_a_signal_ends_the_wait_for_a_locked_database(lab: Lab) -> None:
    """SIGTERM is answered long before the time for the database is over."""
    command = [sys.executable, "-c", CREATE, lab.task("create", lab.backups).to_json(), str(100 * LIMIT_SECONDS)]
    with (
        running(HOLD, lab.share / "history.sqlite"),
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as stopped,
    ):
        assert stopped.stdout
        stopped.stdout.readline()
        while not list(lab.backups.glob("*/database.draft")):
            assert stopped.poll() is None
            time.sleep(0.01)
        stopped.send_signal(signal.SIGTERM)
        try:
            said = stopped.communicate(timeout=LIMIT_SECONDS)[1]
        finally:
            stopped.kill()

    assert "the backup was interrupted" in said


@pytest.mark.slow
def test_a_database_that_is_written_to_all_the_time_is_saved_as_one_version(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is copied in steps, and each write changes its first and its last page."""
    monkeypatch.setattr(databases, "STEP_PAGES", 1)
    path = lab.share / "history.sqlite"
    with running(COUNT, path):
        backup = lab.back_up()
    lab.lose()
    lab.restore(backup)

    assert not model.read(backup).entries["share/history.sqlite"].was_changing
    with contextlib.closing(sqlite3.connect(path)) as database:
        assert database.execute("PRAGMA integrity_check").fetchone() == ("ok",)
        assert database.execute("SELECT first.number - last.number FROM first, last").fetchone() == (0,)


def test_a_database_whose_name_is_not_text_is_saved_with_its_log(lab: Lab) -> None:
    """A name of Latin-1."""
    path = lab.share / os.fsdecode(b"caf\xe9.sqlite")
    with contextlib.closing(sqlite3.connect(path)) as database:
        database.execute("PRAGMA journal_mode=WAL")
        database.execute("CREATE TABLE history (line TEXT)")
        backup = lab.back_up()
    lab.lose()
    lab.restore(backup)

    with contextlib.closing(sqlite3.connect(path)) as database:
        assert database.execute("SELECT count(*) FROM history").fetchone() == (0,)


def test_a_database_that_cannot_be_copied_leaves_no_draft_in_the_backup(lab: Lab) -> None:
    """Its bytes and its log are saved as they are."""
    (lab.share / "a.sqlite").write_bytes(databases.MAGIC + b"damaged" * 1000)
    (lab.share / "a.sqlite-wal").write_bytes(b"log")

    backup = lab.back_up()

    assert {"share/a.sqlite", "share/a.sqlite-wal"} <= set(model.read(backup).entries)
    assert {path.name for path in backup.iterdir()} == {"files-0001.tar", "manifest.jsonl", "SHA256SUMS"}


@NEEDS_ROOT
@pytest.mark.parametrize("end", ["-wal", ""])
def test_a_database_that_cannot_be_read_stops_no_backup(lab: Lab, end: str) -> None:
    """It or its log is root's, with a real second user; it is listed, and the rest is saved."""
    path = lab.share / "history.sqlite"
    (lab.share / "z").write_text("after it")
    with contextlib.closing(sqlite3.connect(path)) as database:
        database.execute("PRAGMA journal_mode=WAL")
        database.execute("CREATE TABLE history (line TEXT)")
        for each in (lab.folder, *lab.folder.rglob("*")):
            os.chown(each, UID, UID)
        os.chown(f"{path}{end}", 0, 0)
        os.chmod(f"{path}{end}", 0o600)
        task = lab.task("create", lab.backups).to_json()
        open_to_others(lab.folder)

        done = as_second_user(CREATE, task)

    assert done.returncode == 1, done.stderr
    assert f"NOT in the backup, could not be read: share/history.sqlite{end}: Permission denied" in done.stdout
    (backup,) = lab.backups.iterdir()
    saved = set(model.read(backup).entries)
    assert {"share/z", "share/history.sqlite"} - saved == ({"share/history.sqlite"} if not end else set())
