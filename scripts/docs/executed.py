"""The notebooks as pages: with their outputs where a run has executed them, and without where none has."""

from __future__ import annotations

import functools
import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import nbformat
from found_run import Run, heading
from latex2mathml.converter import convert as to_mathml
from nbconvert import MarkdownExporter

MATH = re.compile(r"(\$\$?)(?!\s)([^$\n]+?)(?<!\s)\1")
NOT_EXECUTED = (
    '!!! note "Not executed"\n    This page has no outputs: {why}. '
    "`make docs RUN_FOLDER=share/runs/…` adds those of a run."
)


@dataclass(frozen=True)
class Notebook:
    """One notebook of the repository."""

    path: Path

    @property
    def address(self) -> str:
        """The path of its page."""
        return f"notebooks/{self.path.stem}.md"

    @functools.cached_property
    def title(self) -> str:
        """The first heading, after the number."""
        return f"{self.path.stem[:2]} {heading(self.path).lstrip('# ')}"

    def convert(self, run: Run | None) -> tuple[str, dict[str, bytes]]:
        """Return the page as Markdown, and its images by name."""
        job = run.jobs.get(self.path.stem) if run else None
        path = run.folder / job["files"]["notebook"] if run and job else self.path
        notebook = nbformat.read(path, as_version=4)
        for cell in notebook.cells:
            if cell.cell_type == "markdown":
                cell.source = MATH.sub(lambda found: to_mathml(found[2]), cell.source)
        markdown, resources = MarkdownExporter().from_notebook_node(
            notebook, {"unique_key": self.path.stem, "output_files_dir": f"{self.path.stem}_files"}
        )
        title, _, body = markdown.lstrip().partition("\n")
        why = f"the run {run.folder.name} did not execute it to its end" if run else "no run was found"
        about = self._origin(job, notebook) if job else NOT_EXECUTED.format(why=why)
        return f"{title}\n\n{about}\n{body}", resources.get("outputs") or {}

    def _origin(self, job: dict[str, Any], executed: nbformat.NotebookNode) -> str:
        """Return where and when the outputs came from; a simulated GPU computes nothing, so the CPU is named."""
        gpus = [] if job["simulated"] else [each["name"] for each in job["devices"] if each["backend"] != "cpu"]
        device = ", ".join(gpus) or ("CPU of a SIMULATED host" if job["simulated"] else "CPU")
        given = ", ".join(f"`{name}={json.dumps(value)}`" for name, value in job["parameters"].items())
        parts = [
            f"On {job['started'][:10]}, in {job['seconds']:.0f} seconds",
            f"with {given}" if given else "",
            ""
            if _code(executed) == _code(nbformat.read(self.path, as_version=4))
            else "an earlier version of the notebook",
        ]
        return f'!!! success "Executed on: {device}"\n    {"; ".join(filter(None, parts))}.'


def notebooks(root: Path) -> list[Notebook]:
    """Return the notebooks of the repository, in the order of their names."""
    return [Notebook(path) for path in sorted((root / "notebooks").glob("*.ipynb"))]


def _code(notebook: nbformat.NotebookNode) -> list[str]:
    """Return the sources of the code, without the parameters that a run adds."""
    return [
        cell.source
        for cell in notebook.cells
        if cell.cell_type == "code" and "injected-parameters" not in cell.metadata.get("tags", ())
    ]
