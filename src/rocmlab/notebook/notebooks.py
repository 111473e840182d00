"""Notebooks in files, read as papermill reads them, written atomically and quickly; and what their cells are called."""

from __future__ import annotations

import json
import os
import secrets
from collections.abc import Iterator, Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

from rocmlab.base import files, safe

Notebook = dict[str, Any]
INJECTED = "injected-parameters"  # tag of papermill's own cell behind the one that is tagged `parameters`
ERROR_MARKER = "papermill-error-cell-tag"  # of the cells that papermill adds to a failed notebook
TOP_KEYS = ("metadata", "nbformat", "nbformat_minor")
TRANSIENT = ("orig_nbformat", "orig_nbformat_minor")
END_BYTES = 64  # of a file, at which is looked
CELL_KEYS = {"code": ("outputs", "execution_count"), "markdown": (), "raw": ()}


def prepare(
    path: str, output: str, parameters: Mapping[str, Any], kernel: str, language: str, source: str | None = None
) -> Notebook:
    """Return a notebook ready to run, with its parameters and papermill's metadata.

    Without parameters, and in today's format, this is done here; all else is papermill's work.

    Args:
        path: where it is, which its metadata names.
        output: where it will be saved.
        parameters: by name.
        kernel: its name.
        language: of the kernel.
        source: the file to read, which has what it was when the run began; None: itself.
    """
    source = source or path
    if not parameters and (notebook := _plain(source)) is not None:
        notebook["metadata"]["papermill"] |= {"input_path": path, "output_path": output}
        return notebook
    from papermill.execute import execute_notebook

    prepared: Notebook = execute_notebook(
        escape(source),
        escape(output),
        parameters=dict(parameters),
        kernel_name=kernel,
        language=language,
        progress_bar=False,
        prepare_only=True,
    )
    prepared["metadata"]["papermill"]["input_path"] = path
    return prepared


def without_outputs(text: str) -> str:
    """Return a notebook of format 4 without what its execution discards: old outputs, and keys that it cannot have."""
    found = json.loads(text)
    if not isinstance(found, dict) or found.get("nbformat") != 4 or not isinstance(found.get("cells"), list):
        return text
    for cell in found["cells"]:
        if isinstance(cell, dict) and cell.get("cell_type") == "code":
            cell |= {"outputs": [], "execution_count": None}
    return json.dumps({name: value for name, value in found.items() if name in ("cells", *TOP_KEYS)})


def _plain(path: str) -> Notebook | None:
    """Return a notebook of format 4.4 or later; None if it is anything else, and papermill's to read."""
    try:
        notebook = json.loads(Path(path).read_text(encoding="utf-8"))
        if notebook["nbformat"] != 4 or notebook["nbformat_minor"] < 4:
            return None
        notebook["cells"] = [cell for cell in map(_cell, notebook["cells"]) if cell is not None]
        notebook["nbformat_minor"] = max(5, notebook["nbformat_minor"])
        fresh: Notebook = {"default_parameters": {}, "parameters": {}, "environment_variables": {}}
        notebook["metadata"].setdefault("papermill", fresh | {"version": metadata.version("papermill")})
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None
    return dict(notebook)


def _cell(cell: Notebook) -> Notebook | None:
    """Return a cell as format 4.5 has it; None if papermill added it to an earlier failure."""
    if cell["cell_type"] not in CELL_KEYS:
        msg = "no cell of format 4"
        raise ValueError(msg)
    tags = cell["metadata"].setdefault("tags", [])
    cell["metadata"].setdefault("papermill", {})
    cell.setdefault("id", secrets.token_hex(4))
    cell["source"] = cell["source"] if isinstance(cell["source"], str) else "".join(cell["source"])
    return None if ERROR_MARKER in tags else cell


def pieces(notebook: Mapping[str, Any]) -> Iterator[str]:
    """Yield a notebook as JSON, a cell a line: that is ten times as fast as indenting everything."""
    yield '{\n "cells": ['
    for number, cell in enumerate(notebook["cells"]):
        yield (",\n  " if number else "\n  ") + json.dumps(cell, ensure_ascii=False)
    rest = {name: notebook[name] for name in TOP_KEYS if name in notebook}
    if "metadata" in rest:  # nbformat notes there what it converted, for itself
        rest["metadata"] = {name: value for name, value in rest["metadata"].items() if name not in TRANSIENT}
    yield "\n ]," + json.dumps(rest, ensure_ascii=False, indent=1)[1:] + "\n"


def save(notebook: Mapping[str, Any], path: Path) -> None:
    """Replace a file by a notebook, atomically: a reader sees the old one or the new one."""
    files.write_pieces(path, pieces(notebook))


def is_whole(path: Path) -> bool:
    """Return whether a saved notebook is there, and begins and ends as one.

    What a power cut leaves is empty, cut short or full of zeros; to read all of thousands would take minutes.
    """
    try:
        with safe.reading(path) as file:
            begin = file.read(END_BYTES)
            file.seek(max(0, file.seek(0, os.SEEK_END) - END_BYTES))
            return begin.lstrip().startswith(b"{") and file.read().rstrip().endswith(b"}")
    except OSError:
        return False


def mark_errors(notebook: Notebook) -> tuple[Notebook, str]:
    """Return a notebook with papermill's pointers to the failing cell, and papermill's description of the failure.

    Nothing is changed or reported where papermill sees no failure, such as in `sys.exit(0)`.
    """
    import nbformat
    from papermill.exceptions import PapermillExecutionError
    from papermill.execute import raise_for_execution_errors

    node = nbformat.from_dict(notebook)
    expected = [(cell, cell["outputs"]) for cell in node["cells"] if may_fail(cell) and "outputs" in cell]
    for cell, _ in expected:
        cell["outputs"] = []  # for papermill any error is a failure
    try:
        raise_for_execution_errors(node, None)
    except PapermillExecutionError as err:
        return node, str(err)
    finally:
        for cell, outputs in expected:
            cell["outputs"] = outputs
    return node, ""


def has_errors(notebook: Notebook) -> bool:
    """Whether any cell has an error in its output that is not expected."""
    outputs = (output for cell in notebook["cells"] if not may_fail(cell) for output in cell.get("outputs", []))
    return any(output["output_type"] == "error" for output in outputs)


def escape(path: str) -> str:
    """Return a path that survives papermill, which takes `{name}` in it for a parameter."""
    return path.replace("{", "{{").replace("}", "}}")


def numbered(cells: list[Any]) -> dict[int, int]:
    """Return the number of each code cell by its place; papermill's own has that of the one before."""
    numbers: dict[int, int] = {}
    count = 0
    for index, cell in enumerate(cells):
        if cell["cell_type"] == "code":
            count += not is_injected(cell)
            numbers[index] = max(1, count)
    return numbers


def is_injected(cell: Mapping[str, Any]) -> bool:
    """Return whether a cell is papermill's own, and not the notebook's."""
    metadata = cell.get("metadata")
    tags = metadata.get("tags") if isinstance(metadata, Mapping) else None
    return isinstance(tags, list) and INJECTED in tags


def may_fail(cell: Mapping[str, Any]) -> bool:
    """Whether an error of a cell is expected: it has papermill's and nbclient's tag for that."""
    return "raises-exception" in (cell["metadata"].get("tags") or [])


def title_of(cells: list[Any], index: int) -> str:
    """Return what to call a cell: `parameters`, its first comment, the heading above it, or its first line."""
    if {"parameters", INJECTED} & set(cells[index]["metadata"].get("tags", [])):
        return "parameters"
    lines = [line.strip() for line in cells[index]["source"].splitlines() if line.strip()]
    first = lines[0] if lines else "(empty)"
    if first.startswith("#") and not first.startswith("#!"):
        return first.lstrip("#% ").strip()[:80] or "(comment)"
    return _heading(cells[:index]) or first[:80]


def _heading(above: list[Any]) -> str | None:
    """Return the nearest heading; the notebook's own title only where it is right above."""
    for distance, cell in enumerate(reversed(above)):
        if cell["cell_type"] == "markdown":
            level = "#" if distance == 0 else "##"
            headings = [line for line in cell["source"].splitlines() if line.startswith(level)]
            if headings:
                return str(headings[-1].lstrip("# ").strip()[:80])
    return None
