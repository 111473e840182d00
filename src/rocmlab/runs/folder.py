"""The folder of one run: `<share>/runs/<UTC time>-<name>/`."""

from __future__ import annotations

import contextlib
import fcntl
import glob
import logging
import os
import re
import time
import weakref
from collections.abc import Iterator
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from rocmlab.base import files, private, safe
from rocmlab.base.errors import RocmlabError
from rocmlab.runs import journal
from rocmlab.runs.jobs import safe_name

log = logging.getLogger("rocmlab")

DRAFT = files.draft_of(r".+\.(ipynb|html|json|xml)")
PARTS = "parts"  # of the folder of an exported run, each of which one job writes
KINDS = {"notebook": ".ipynb", "html": ".html", "log": ".log", "samples": ".samples.jsonl"}


def now() -> str:
    """Return the time, UTC, in ISO 8601."""
    return datetime.now(timezone.utc).isoformat(timespec="milliseconds").replace("+00:00", "Z")


class RunFolder:
    """Where a run keeps its journal, what the jobs leave, and its results."""

    has_report = True  # a part of a run has none: `collect` writes it

    def __init__(self, path: Path) -> None:
        self.path = path
        self.journal_path = path / "journal.jsonl"
        self.results_path = path / "results.json"
        self._journal: int | None = None  # a descriptor
        self._is_torn = False  # whether the last line may have no end

    @classmethod
    def create(cls, share: Path, name: str) -> RunFolder:
        """Make a new folder below `<share>/runs`, never one that is there already.

        Raises:
            RocmlabError: the share cannot be written.
        """
        begin = datetime.now(timezone.utc).strftime("%Y%m%dT%H%M%SZ")
        runs = share.absolute() / "runs"
        try:
            runs.mkdir(parents=True, exist_ok=True)
            for number in range(1, 1000):
                path = runs / (f"{begin}-{safe_name(name)}" + (f"-{number}" if number > 1 else ""))
                try:
                    path.mkdir(mode=private.folder_mode())
                except FileExistsError:
                    continue
                return cls(path)
        except OSError as err:
            raise RocmlabError(
                f"could not create a run folder in {runs}",
                f"{err.strerror}: {err.filename}",
                "choose another: --share DIR",
            ) from err
        raise RocmlabError(
            f"could not create a unique run folder in {runs}",
            "1,000 runs started this second",
            "check for a loop in your script, then retry",
        )

    @property
    def share(self) -> Path:
        """The share that contains it."""
        return self.path.parent.parent

    def file(self, job: str, kind: str) -> Path:
        """Return the path of a job's file: its executed `notebook`, its `html`, `log` or `samples`.

        Raises:
            RocmlabError: the job's name would lead elsewhere.
        """
        return self.path / f"{safe.job_name(job)}{KINDS[kind]}"

    def files(self, job: str) -> dict[str, str]:
        """Return the names of the files that a job has left, by kind."""
        return {kind: path.name for kind in KINDS if os.path.lexists(path := self.file(job, kind))}

    def lock(self) -> None:
        """Keep others from continuing this run while this process does; the lock ends with the process.

        Raises:
            RocmlabError: another process has it, or the journal is a link.
        """
        safe.check_link(self.journal_path)
        try:
            self._flock()
        except BlockingIOError:
            self.close()
            raise RocmlabError(
                f"the run {self.path.name} is still running",
                f"{self._owner()} works on it",
                "wait for its end, or stop it with Ctrl-C where it runs",
            ) from None
        except OSError as err:  # a network folder, perhaps
            log.warning("%s cannot be locked (%s); make sure that this run is not continued twice", self.path.name, err)

    def _flock(self) -> None:
        for is_last in (False, False, True):
            try:
                fcntl.flock(self._open(), fcntl.LOCK_EX | fcntl.LOCK_NB)
                return
            except BlockingIOError:  # perhaps `is_going` of another process, which looks for an instant
                if is_last:
                    raise
                time.sleep(0.1)

    def is_going(self) -> bool | None:
        """Return whether a process works on the run; None: unknown, for its file system has no locks."""
        return files.lock_state(self.journal_path)

    def is_stub(self) -> bool:
        """Return whether it ended before it had begun: no complete line in its journal, no results, no process."""
        try:
            with self.journal_path.open("rb") as journal:
                has_begun = journal.readline().endswith(b"\n")
        except OSError:
            return False
        return not has_begun and not self.results_path.exists() and not self.is_going()

    def remove_stub(self) -> None:
        """Remove the folder if nothing but an empty journal is in it: the run never began."""
        with contextlib.suppress(OSError):
            if self.path.is_dir() and self.is_stub() and self.journal_path.stat().st_size == 0:
                self.journal_path.unlink()
        with contextlib.suppress(OSError):
            self.path.rmdir()

    def remove_drafts(self, job: str | None = None) -> None:
        """Remove the drafts of processes killed while they saved: of one job, or of all where nothing saves now.

        `tune-lr=0` is not `tune-lr=0.1`, which may be saving.
        """
        drafts = DRAFT if job is None else files.draft_of(rf"{re.escape(job)}\.(ipynb|html)")
        begin = "" if job is None else glob.escape(job)
        for path in self.path.glob(f".{begin}*"):
            if drafts.fullmatch(path.name):
                with contextlib.suppress(OSError):
                    path.unlink()

    def _owner(self) -> str:
        starts = [event for event in self.journal() if event.get("event") in ("run started", "run resumed")]
        if not starts:
            return "a process"
        return f"process {starts[-1].get('pid')} on {starts[-1].get('host')}, since {starts[-1].get('time')},"

    def log(self, event: str, **facts: object) -> None:
        """Add a line to the journal and wait until the disk has it.

        Raises:
            OSError: the disk does not take it; the next line then begins on a line of its own.
        """
        line = files.to_json({"event": event, "time": now(), **facts}, indent=None) + "\n"
        rest = line.encode("utf-8", errors="backslashreplace")  # of half a character; in JSON that is its proper form
        descriptor = self._open()
        try:
            self._end_torn_line(descriptor)
            while rest:
                rest = rest[os.write(descriptor, rest) :]
            os.fsync(descriptor)
        except OSError:
            self._is_torn = True
            raise

    def _open(self) -> int:
        """Return the journal, open for the whole run."""
        if self._journal is None:
            flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
            self._journal = private.create(str(self.journal_path), flags)
            self._closer = weakref.finalize(self, os.close, self._journal)
            self._is_torn = True
        return self._journal

    def _end_torn_line(self, journal: int) -> None:
        if self._is_torn:
            size = os.fstat(journal).st_size
            if size and os.pread(journal, 1, size - 1) != b"\n":
                os.write(journal, b"\n")
            self._is_torn = False

    def close(self) -> None:
        """Close the journal, and give up the lock."""
        if self._journal is not None:
            self._closer()
            self._journal = None

    def journal(self) -> Iterator[dict[str, Any]]:
        """Yield the journal's events; a line truncated by a crash is skipped."""
        with self.journal_path.open("rb") as file:
            yield from (event for _, event in journal.read(file) if isinstance(event, dict))

    def lines(self) -> Iterator[tuple[int, dict[str, Any]]]:
        """Yield the journal's events with the numbers of their lines; a line truncated by a crash is skipped.

        Raises:
            BadLineError: a line is neither an event nor truncated.
            OSError: the journal cannot be read.
        """
        with safe.reading(self.journal_path) as file:
            for number, (line, event) in enumerate(journal.read(file), 1):
                if isinstance(event, dict) and isinstance(event.get("event"), str):
                    yield number, event
                elif not journal.is_torn(line):
                    raise journal.BadLineError(number, "it is not an event")

    def save_results(self, results: dict[str, Any]) -> None:
        """Write `results.json`."""
        files.write_text(self.results_path, files.to_json(results) + "\n")
