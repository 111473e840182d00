"""Read an executed notebook: how far it came, what it recorded, what failed; and repair a wrong status.

papermill marks every cell "completed" when the kernel dies, and leaves cells "running" when it is ended itself
(facts: papermill 2.7, engines.py, `cell_complete` and `notebook_complete`). Our engine writes the truth by itself, as
long as its own process lives.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from rocmlab.base import files, formatting, safe
from rocmlab.base.formatting import ANSI
from rocmlab.notebook.notebooks import is_injected
from rocmlab.notebook.outcome import Executed, error_output

RECORD = "application/vnd.rocmlab.record+json"  # rocmlab.training.metrics writes it
OUR_ERRORS = ("Timeout", "Killed", "KernelDied")  # what cut a notebook short
DEEPEST_RECORD = 50  # levels; results, journal and report are written by code that recurses
SHOWN_LINES = 6  # of a failing cell

Notebook = dict[str, Any]


def load(path: Path) -> Notebook | None:
    """Return an executed notebook; None if it was never saved."""
    try:
        notebook = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return None
    return notebook if isinstance(notebook, dict) else None


def summarise(notebook: Notebook) -> Executed:
    """Return the results in an executed notebook. Content that is not a notebook's is skipped."""
    cells = _dicts(notebook.get("cells"))
    code = [cell for cell in cells if cell.get("cell_type") == "code"]
    own = [cell for cell in code if not is_injected(cell)]
    recorded: dict[str, Any] = {}
    warnings: list[str] = []
    for bundle in (_dict(output.get("data")).get(RECORD) for cell in code for output in _dicts(cell.get("outputs"))):
        if not isinstance(bundle, dict):
            continue
        if safe.is_deeper(bundle, DEEPEST_RECORD):
            warnings.append(f"a record that is nested deeper than {DEEPEST_RECORD} levels is omitted")
        else:
            recorded |= bundle
    return Executed(
        cells_done=sum(_status(cell) == "completed" for cell in own),
        cells_total=len(own),
        recorded=recorded,
        error=_error(cells),
        warnings=warnings,
    )


def _dict(value: object) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _dicts(value: object) -> list[dict[str, Any]]:
    return [each for each in value if isinstance(each, dict)] if isinstance(value, list) else []


def text_of(value: object) -> str:
    """Return a text of a notebook, which may be a list of lines."""
    return "".join(map(str, value)) if isinstance(value, list) else "" if value is None else str(value)


def _status(cell: Notebook) -> str | None:
    status = _dict(_dict(cell.get("metadata")).get("papermill")).get("status")
    return str(status) if status else None


def _error(cells: list[Notebook]) -> dict[str, Any] | None:
    number = 0
    for index, cell in enumerate(cells):
        number += cell.get("cell_type") == "code" and not is_injected(cell)
        if _status(cell) != "failed":
            continue
        outputs = [output for output in _dicts(cell.get("outputs")) if output.get("output_type") == "error"]
        last = outputs[-1] if outputs else {}
        lines = text_of(cell.get("source")).rstrip().splitlines()
        line = _failing_line(outputs)
        line = line if line and line <= len(lines) else None
        shown = formatting.around(lines, line or 1, SHOWN_LINES)
        return {
            "name": text_of(last.get("ename")) or "Error",
            "value": ANSI.sub("", text_of(last.get("evalue"))),
            "cell": max(1, number),  # counting code cells from 1, as on the screen
            "cell_index": index,  # in the executed notebook, from 0
            "source": "\n".join(lines[shown.start : shown.stop]),
            "first_line": shown.start + 1,
            **({"line": line} if line else {}),
        }
    return None


def _failing_line(outputs: list[dict[str, Any]]) -> int | None:
    """Return the line of the cell, from 1, at which its traceback points; None where it names none.

    Source: IPython's tracebacks, "Cell In[3], line 12"; of several, such as of functions of the cell, the last.
    """
    lists = [output.get("traceback") for output in outputs]
    lines = [line for each in lists if isinstance(each, list) for line in each if isinstance(line, str)]
    text = ANSI.sub("", "\n".join(lines))
    found = re.findall(r"Cell In\s*\[([0-9]{1,9})\], line ([0-9]{1,9})\b", text)
    own = [int(line) for cell, line in found if cell == found[0][0]]
    return own[-1] if own else None


def repair(path: Path, running: int | None, name: str, message: str) -> Notebook | None:
    """Correct an executed notebook whose run was interrupted, and return it; None if it was never saved.

    The cell that was `running` (its index; None: none was) gets an error of that name, with the message.
    """
    notebook = load(path)
    if notebook is None:
        return None
    notebook.setdefault("metadata", {}).setdefault("papermill", {})["exception"] = True
    for index, cell in enumerate(notebook["cells"]):
        state = cell.setdefault("metadata", {}).setdefault("papermill", {})
        if running is None:
            state["status"] = "pending" if state.get("status") == "running" else state.get("status")
        elif index < running:
            if state.get("status") in (None, "pending", "running"):  # it ended after the last save
                state |= {"status": "completed", "exception": False}
        elif index == running:
            state |= {"status": "failed", "exception": True}
            if cell["cell_type"] == "code":
                outputs = cell.setdefault("outputs", [])
                traceback: list[str] = []
                if outputs and outputs[-1].get("ename") in OUR_ERRORS:  # the engine's, which knew less about the cause
                    traceback = outputs.pop()["traceback"][1:]
                outputs.append(error_output(name, message, traceback))
        else:
            state |= {"status": "pending", "exception": None, "start_time": None, "end_time": None, "duration": None}
    files.write_text(path, json.dumps(notebook, indent=1, ensure_ascii=False) + "\n")
    return notebook
