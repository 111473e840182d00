"""The folder of one run: `<share>/runs/<UTC time>-<name>/`."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from rocmlab.errors import RocmlabError
from rocmlab.runner import files
from rocmlab.runner.jobs import safe_name

KINDS = {"notebook": ".ipynb", "html": ".html", "log": ".log"}


def now() -> str:
    """Return the time, UTC, in ISO 8601."""
    return datetime.now(timezone.utc).isoformat(timespec="milliseconds").replace("+00:00", "Z")


class RunFolder:
    """Where a run keeps its journal, what the jobs leave, and its results."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.journal_path = path / "journal.jsonl"
        self.results_path = path / "results.json"

    @classmethod
    def create(cls, share: Path, name: str) -> RunFolder:
        """Make a new folder below `<share>/runs`, never one that is there already.

        Raises:
            RocmlabError: the share cannot be written.
        """
        time = datetime.now(timezone.utc).strftime("%Y%m%dT%H%M%SZ")
        runs = share.absolute() / "runs"
        try:
            runs.mkdir(parents=True, exist_ok=True)
            for number in range(1, 1000):
                path = runs / (f"{time}-{safe_name(name)}" + (f"-{number}" if number > 1 else ""))
                try:
                    path.mkdir()
                except FileExistsError:
                    continue
                return cls(path)
        except OSError as err:
            raise RocmlabError(
                f"the run folder cannot be made in {runs}",
                f"{err.strerror}: {err.filename}",
                "choose another: --share DIR",
            ) from err
        raise RocmlabError(f"{runs} has a thousand runs of this second", "a loop?", "try again in a second")

    def file(self, job: str, kind: str) -> Path:
        """Return the path of a job's file: its executed `notebook`, its `html` or its `log`."""
        return self.path / f"{job}{KINDS[kind]}"

    def files(self, job: str) -> dict[str, str]:
        """Return the names of the files that a job has left, by kind."""
        return {kind: path.name for kind in KINDS if (path := self.file(job, kind)).exists()}

    def log(self, event: str, **facts: object) -> None:
        """Add a line to the journal and wait until the disk has it."""
        line = files.to_json({"event": event, "time": now(), **facts}, indent=None)
        with self.journal_path.open("a", encoding="utf-8") as journal:
            journal.write(line + "\n")
            journal.flush()
            os.fsync(journal.fileno())

    def journal(self) -> Iterator[dict[str, Any]]:
        """Yield the journal's events; a last line torn by a crash is left out."""
        for line in self.journal_path.read_text(encoding="utf-8").splitlines():
            try:
                yield json.loads(line)
            except ValueError:
                return

    def save_results(self, results: dict[str, Any]) -> None:
        """Write `results.json`."""
        files.write_text(self.results_path, files.to_json(results) + "\n")
