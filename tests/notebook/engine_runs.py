"""Runs notebooks through papermill's interface with our engine, as `papermill --engine rocmlab` does."""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import Any

import notebook_files
import papermill
from papermill.engines import papermill_engines

from rocmlab.notebook.adapter import RocmlabEngine

papermill_engines.register("rocmlab", RocmlabEngine)  # as the entry point does where rocmlab is installed

# What a process of its own does to run papermill with our engine.
PROGRAM = """
import sys
import papermill
from papermill.engines import papermill_engines
from rocmlab.notebook.adapter import RocmlabEngine
papermill_engines.register("rocmlab", RocmlabEngine)
papermill.execute_notebook(sys.argv[1], sys.argv[2], engine_name="rocmlab", progress_bar=False)
"""


class Ran:
    """What came of a notebook."""

    def __init__(self, path: Path, error: BaseException | None) -> None:
        self.path = path
        self.error = error
        self.notebook: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))

    @property
    def states(self) -> list[str]:
        """The states of the code cells."""
        cells = [cell for cell in self.notebook["cells"] if cell["cell_type"] == "code"]
        return [cell["metadata"]["papermill"]["status"] for cell in cells]

    def outputs(self, number: int) -> list[dict[str, Any]]:
        """Return the outputs of a cell, texts joined."""
        found = self.notebook["cells"][number]["outputs"]
        for output in found:
            if isinstance(output.get("text"), list):
                output["text"] = "".join(output["text"])
        return found


def run(folder: Path, *cells: str, metadata: dict[str, Any] | None = None, **options: Any) -> Ran:
    """Run cells; an error is kept, not raised."""
    path = notebook_files.write(folder / "in.ipynb", *cells, **(metadata or {}))
    output = folder / "out.ipynb"
    error: BaseException | None = None
    options = {"engine_name": "rocmlab", "progress_bar": False, "language": "python", **options}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of papermill's own imports
        try:
            papermill.execute_notebook(str(path), str(output), **options)
        except BaseException as err:
            error = err
    return Ran(output, error)
