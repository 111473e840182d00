"""What a run says afterwards, for a person (`report.html`) and for a CI system (`junit.xml`), from its results."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

HTML = "report.html"
JUNIT = "junit.xml"


def write(results: Mapping[str, Any], folder: Path) -> None:
    """Write `report.html` and `junit.xml` into a run folder, each at once.

    Args:
        results: the content of the folder's `results.json`.
        folder: where the executed notebooks lie, from which the failing cells are read.

    Raises:
        OSError: the folder cannot be written.
    """
    from rocmlab.base import files
    from rocmlab.reports import junit, page
    from rocmlab.reports.failures import read

    failures = {job["name"]: read(job, folder) for job in results["jobs"] if job["error"] is not None}
    files.write_text(folder / JUNIT, junit.render(results, failures))
    files.write_text(folder / HTML, page.render(results, failures, folder))
