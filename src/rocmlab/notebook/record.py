"""papermill's record of an execution in the notebook's metadata, with states that are true, saved now and then.

Source: papermill 2.7, engines.py, `NotebookExecutionManager`.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from datetime import datetime, timezone
from typing import Any

from rocmlab.notebook.outcome import Aborted, error_output

Notebook = dict[str, Any]
RETRY_SECONDS = 10.0
BOUNDARY_SECONDS = 2.0  # between two saves where a cell starts, if those in between are to be rarer
SLOWEST_SHARE = 0.05  # of the time that saving may take


class Recorder:
    """Writes states and times into a notebook's metadata, and saves it."""

    def __init__(
        self, notebook: Notebook, save: Callable[[], None], every_seconds: float, warn: Callable[[str], None]
    ) -> None:
        self.notebook = notebook
        self._save = save
        self._every_seconds = every_seconds
        self._warn = warn
        self.is_changed = True  # whether the notebook may differ from what was saved last
        self._next_save = self._next_boundary = 0.0  # of `time.monotonic`: while a cell runs, and when one starts
        self._is_aborted = False
        self._started = datetime.now(timezone.utc)

    def start(self) -> None:
        """Clear what an earlier execution has left, and save."""
        self._started = datetime.now(timezone.utc)
        whole = self.notebook["metadata"].setdefault("papermill", {})
        whole |= {"start_time": self._started.isoformat(), "end_time": None, "duration": None, "exception": None}
        for cell in self.notebook["cells"]:
            cell["metadata"]["papermill"] = _state("pending", None)
            if cell["cell_type"] == "code":
                cell |= {"execution_count": None, "outputs": []}
        self.save()

    def cell_start(self, cell: Notebook) -> None:
        """Note that a cell runs."""
        cell["metadata"]["papermill"] |= _state("running", False) | {
            "start_time": datetime.now(timezone.utc).isoformat()
        }
        self.is_changed = True
        self._next_save = min(self._next_save, self._next_boundary)
        self.save_changes()

    def cell_end(self, cell: Notebook, is_failed: bool) -> None:
        """Note that a cell has ended by itself; it is saved with what comes next."""
        state = cell["metadata"]["papermill"]
        end = datetime.now(timezone.utc)
        state["status"] = "failed" if is_failed else "completed"
        state["end_time"] = end.isoformat()
        state["duration"] = (end - datetime.fromisoformat(state["start_time"])).total_seconds()
        if is_failed:
            state["exception"] = True
            self.notebook["metadata"]["papermill"]["exception"] = True
        self.is_changed = True

    def abort(self, aborted: Aborted) -> None:
        """Note that the notebook was aborted short: the cell that ran has failed, those behind it were not reached."""
        self._is_aborted = True
        self.notebook["metadata"]["papermill"]["exception"] = True
        for cell in self.notebook["cells"]:
            if cell["metadata"]["papermill"]["status"] == "running":
                self.cell_end(cell, is_failed=True)
                if cell["cell_type"] == "code":
                    details = [aborted.output] if aborted.output else []
                    cell["outputs"].append(error_output(aborted.name, aborted.message, details))

    def finish(self) -> None:
        """Note the end, and save."""
        end = datetime.now(timezone.utc)
        whole = self.notebook["metadata"]["papermill"]
        whole |= {"end_time": end.isoformat(), "duration": (end - self._started).total_seconds()}
        self.save_at_last()

    @property
    def due(self) -> float:
        """When changes are to be saved, of `time.monotonic`; infinite where there are none."""
        return self._next_save if self.is_changed else math.inf

    def save_changes(self) -> None:
        """Save changes if the last time is long enough ago; a notebook that takes long to save is saved less often."""
        if time.monotonic() < self.due:
            return
        try:
            self.save()
        except OSError as err:  # a full disk may have room later; the save at the end is the one that counts
            self._next_save = self._next_boundary = time.monotonic() + RETRY_SECONDS
            self._warn(f"the notebook could not be saved yet: {err}")

    def save_at_last(self) -> None:
        """Save, but let nothing hide why a notebook was aborted short.

        Raises:
            OSError: the notebook came to its end, and cannot be saved.
        """
        try:
            self.save()
        except OSError as err:
            if not self._is_aborted:
                raise
            self._warn(f"the notebook could not be saved: {err}")

    def save(self) -> None:
        """Save."""
        begin = time.monotonic()
        self._save()
        self.is_changed = False
        took = time.monotonic() - begin
        self._next_save = begin + took + max(self._every_seconds, took / SLOWEST_SHARE)
        every = BOUNDARY_SECONDS if self._every_seconds == math.inf else self._every_seconds
        self._next_boundary = begin + took + max(every, took / SLOWEST_SHARE)


def _state(status: str, exception: bool | None) -> dict[str, Any]:
    return {"exception": exception, "start_time": None, "end_time": None, "duration": None, "status": status}
