"""What an executed notebook says: how far it came, what it recorded, what went wrong; and the truth where it is wrong.

papermill marks every cell "completed" when the kernel dies, and leaves cells "running" when it is ended itself
(facts: papermill 2.7, engines.py, `cell_complete` and `notebook_complete`). Our engine writes the truth by itself, as
long as its own process lives.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rocmlab.runner import files

RECORD = "application/vnd.rocmlab.record+json"  # rocmlab.training.metrics writes it
OUR_ERRORS = ("Timeout", "Killed", "KernelDied")  # what cut a notebook short
SHOWN_LINES = 12  # of a failing cell
ANSI = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]")

Notebook = dict[str, Any]


@dataclass(frozen=True)
class Executed:
    """The content of an executed notebook, as far as a result needs it."""

    cells_done: int  # code cells that ran to their end
    cells_total: int  # code cells
    recorded: dict[str, Any]
    error: dict[str, Any] | None


def load(path: Path) -> Notebook | None:
    """Return an executed notebook; None if it was never saved."""
    try:
        notebook = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return notebook if isinstance(notebook, dict) else None


def summarise(notebook: Notebook) -> Executed:
    """Return what a notebook says of its execution."""
    code = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    recorded: dict[str, Any] = {}
    for cell in code:
        for output in cell.get("outputs", []):
            bundle = output.get("data", {}).get(RECORD)
            recorded |= bundle if isinstance(bundle, dict) else {}
    return Executed(
        cells_done=sum(_status(cell) == "completed" for cell in code),
        cells_total=len(code),
        recorded=recorded,
        error=_error(notebook["cells"]),
    )


def _status(cell: Notebook) -> str | None:
    status = cell.get("metadata", {}).get("papermill", {}).get("status")
    return str(status) if status else None


def _error(cells: list[Notebook]) -> dict[str, Any] | None:
    number = 0
    for index, cell in enumerate(cells):
        number += cell["cell_type"] == "code"
        if _status(cell) != "failed":
            continue
        outputs = [output for output in cell.get("outputs", []) if output["output_type"] == "error"]
        last = outputs[-1] if outputs else {"ename": "Error", "evalue": ""}
        return {
            "name": last["ename"],
            "value": ANSI.sub("", last["evalue"]),
            "cell": number,  # counting code cells from 1, as on the screen
            "cell_index": index,  # in the executed notebook, from 0
            "source": "\n".join("".join(cell["source"]).strip().splitlines()[:SHOWN_LINES]),
        }
    return None


def tell_truth(path: Path, running: int | None, name: str, message: str) -> None:
    """Correct an executed notebook whose run was cut short, so that whoever reads only this file is not misled.

    Args:
        path: the executed notebook; nothing happens if it was never saved.
        running: index of the cell that was running; None if none was.
        name: the kind of end, shown as the error of that cell.
        message: what happened, in a sentence.
    """
    notebook = load(path)
    if notebook is None:
        return
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
                words: list[str] = []
                if outputs and outputs[-1].get("ename") in OUR_ERRORS:  # the engine's, which knew less about the cause
                    words = outputs.pop()["traceback"][1:]
                outputs.append(_error_output(name, message, words))
        else:
            state |= {"status": "pending", "exception": None, "start_time": None, "end_time": None, "duration": None}
    files.write_text(path, json.dumps(notebook, indent=1, ensure_ascii=False) + "\n")


def _error_output(name: str, message: str, words: list[str]) -> Notebook:
    return {"output_type": "error", "ename": name, "evalue": message, "traceback": [f"{name}: {message}", *words]}
