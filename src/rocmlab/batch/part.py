"""One job's part of a run that many processes write: its files lie with the others', its journal is its own."""

from __future__ import annotations

from pathlib import Path

from rocmlab.base import safe
from rocmlab.runs.folder import PARTS, RunFolder


class Part(RunFolder):
    """The folder of a run as one job sees it. Only one process at a time works on a part; `lock` sees to that."""

    has_report = False

    def __init__(self, path: Path, job: str) -> None:
        super().__init__(path)
        self.job = safe.job_name(job)
        self.journal_path = path / PARTS / f"{job}.jsonl"
        self.results_path = path / PARTS / f"{job}.json"

    def remove_drafts(self, job: str | None = None) -> None:
        """Remove what this job's processes have left half written; the drafts of other jobs are being written now."""
        super().remove_drafts(job or self.job)

    def has_begun(self) -> bool:
        """Return whether the job was ever begun: its journal has a complete line."""
        try:
            with self.journal_path.open("rb") as journal:
                return journal.readline().endswith(b"\n")
        except FileNotFoundError:
            return False
