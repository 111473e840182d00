"""Writes the notebooks that the runner's tests run."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import nbformat

from rocmlab.runs.jobs import Job, Request, name_uniquely
from rocmlab.runs.spec.preflight import jobs_of

PARAMETERS = "# parameters\n"  # a code cell that starts with this is tagged `parameters`


def write(path: Path, *cells: str, kernel: str | None = "test-kernel", **metadata: object) -> Path:
    """Write a notebook of these cells; one that starts with `# ` and a capital and has no code is prose."""
    v4 = nbformat.v4
    head = {"kernelspec": {"name": kernel, "display_name": "Test"}} if kernel else {}
    notebook = v4.new_notebook(metadata={**head, **metadata})
    for source in cells:
        if source.startswith("## "):
            notebook.cells.append(v4.new_markdown_cell(source))
        elif source.startswith(PARAMETERS):
            tagged = {"tags": ["parameters"]}
            notebook.cells.append(v4.new_code_cell(source.removeprefix(PARAMETERS), metadata=tagged))
        else:
            notebook.cells.append(v4.new_code_cell(source))
    path.parent.mkdir(parents=True, exist_ok=True)
    nbformat.write(notebook, path)
    return path


def write_kernel(folder: Path, python: str, preload: Sequence[str] = ()) -> None:
    """Write a kernelspec, whose kernels are forked where it names modules to import before."""
    folder.mkdir(parents=True)
    specification = {
        "argv": [python, "-m", "ipykernel_launcher", "-f", "{connection_file}"],
        "display_name": "Test",
        "language": "python",
        "env": {"PYDEVD_DISABLE_FILE_VALIDATION": "1"},
        "metadata": {"rocmlab": {"preload": list(preload)}},
    }
    (folder / "kernel.json").write_text(json.dumps(specification), encoding="utf-8")


def jobs(paths: Sequence[Path], parameters: Mapping[str, Any] | None = None, kernel: str | None = None) -> list[Job]:
    """Return a job for each notebook, with a name of its own."""
    requests = [Request(str(path), str(path), dict(parameters or {}), kernel=kernel) for path in paths]
    return name_uniquely(jobs_of(requests))
