"""Results of runs that never ran: what `rocmlab run` would have left, quickly."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from rocmlab import reports
from rocmlab.base import files
from rocmlab.runs.jobs import EXIT_CODES, Result

GPU = {"backend": "rocm", "index": 0, "name": "Radeon RX 7900 XTX", "gfx": "gfx1100", "pci_address": "0000:03:00.0"}
CPU = {"backend": "cpu", "index": 0, "name": "a processor", "gfx": None, "pci_address": None}
TRACEBACK = [
    "\x1b[0;31m---------------------------------------------------------------------------\x1b[0m",
    "\x1b[0;31mZeroDivisionError\x1b[0m                         Traceback (most recent call last)",
    "Cell \x1b[0;32mIn[3], line 2\x1b[0m\n\x1b[1;32m      1\x1b[0m \x1b[38;5;66;03m# Divide\x1b[39;00m\n"
    "\x1b[0;32m----> 2\x1b[0m \x1b[43mx\x1b[49m \x1b[38;5;241m/\x1b[39m \x1b[38;5;241m0\x1b[39m",
    "\x1b[0;31mZeroDivisionError\x1b[0m: division by zero",
]


def job(name: str, status: str = "ok", *, notebook: str = "", **fields: Any) -> dict[str, Any]:
    """Return the entry of a job in `results.json`, with the files that such an end leaves."""
    is_ok, has_run = status == "ok", status != "not run"
    error = {"name": "Problem", "value": "no such kernel: julia-9", "why": "none has that name", "fix": "install it"}
    if has_run:
        error = {
            "name": "ZeroDivisionError",
            "value": "division by zero",
            "cell": 2,
            "cell_index": 2,
            "source": "x / 0",
        }
    result = Result(
        name=name,
        notebook=notebook or f"/a/work/{name}.ipynb",
        parameters=fields.pop("parameters", {}),
        kernel="python3",
        status=status,
        exit_code=EXIT_CODES.get(status, 2),
        started="2026-11-21T02:47:51.000Z" if has_run else None,
        seconds=fields.pop("seconds", 12.5) if has_run else None,
        cells_done=(5 if is_ok else 1) if has_run else None,
        cells_total=5 if has_run else None,
        devices=fields.pop("devices", [GPU]) if has_run else [],
        error=fields.pop("error", None if is_ok else error),
        files={kind: f"{name}{end}" for kind, end in files_of(has_run).items()},
        **fields,
    )
    return json.loads(json.dumps(result.as_dict()))


def schema() -> dict[str, Any]:
    """Return the published JSON Schema of `results.json`."""
    return json.loads(Path(reports.__file__).with_name("results.schema.json").read_text(encoding="utf-8"))


def files_of(has_run: bool) -> dict[str, str]:
    """Return the endings of a job's files by kind."""
    return {"notebook": ".ipynb", "html": ".html", "log": ".log"} if has_run else {}


def results(*jobs: dict[str, Any], status: str | None = None, name: str = "20261121T024751Z-night") -> dict[str, Any]:
    """Return the content of a `results.json`."""
    is_ok = all(job["status"] == "ok" for job in jobs)
    return {
        "schema": 1,
        "run": {
            "name": name,
            "folder": f"/share/runs/{name}",
            "status": status or ("ok" if is_ok else "failed"),
            "started": "2026-11-21T02:47:51.123Z",
            "seconds": 3661.25,
            "slots": 2,
        },
        "versions": {"rocmlab": "0.3.0", "papermill": "2.7.0", "python": "3.12.3", "image": None},
        "simulated": any(job["simulated"] for job in jobs),
        "jobs": list(jobs),
    }


def write_failed_notebook(folder: Path, name: str, *, source: str = "# Divide\nx / 0", printed: str = "") -> None:
    """Write the executed notebook of a job whose third cell, the second with code, failed; its HTML and its log too."""
    error = {"output_type": "error", "ename": "ZeroDivisionError", "evalue": "division by zero", "traceback": TRACEBACK}
    stream = [{"output_type": "stream", "name": "stdout", "text": printed}] if printed else []
    cells = [
        {"cell_type": "markdown", "metadata": {}, "source": "# Title"},
        {"cell_type": "code", "metadata": {}, "source": "x = 1", "outputs": [], "execution_count": 1},
        {"cell_type": "code", "metadata": {}, "source": source, "outputs": [*stream, error], "execution_count": 2},
    ]
    notebook = {"cells": cells, "metadata": {}, "nbformat": 4, "nbformat_minor": 4}
    files.write_text(folder / f"{name}.ipynb", json.dumps(notebook))
    files.write_text(folder / f"{name}.html", "<p>the executed notebook</p>")
    files.write_text(folder / f"{name}.log", "the log\n")
