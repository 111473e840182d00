"""Executed notebooks as HTML, in a process next to the jobs: `python -m rocmlab.runs.workers.converting DESCRIPTOR`.

The conversion's libraries take a second to import, which a run pays once; and a notebook that is converted holds up
neither a slot nor a GPU. Notebooks that run go first: this process is nice to them.
"""

from __future__ import annotations

import contextlib
import functools
import json
import logging
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rocmlab.base import files
from rocmlab.runs.workers.commands import Commands, block_slow_import

if TYPE_CHECKING:
    from nbconvert.exporters import HTMLExporter

NICENESS = 10
# The template `lab` fetches three scripts from the network. Each is omitted where the notebook has no use for it, so
# that the file is whole without a network; a formula without one stays readable as TeX.
BLOCKS = {"html_head_js_requirejs": "require", "html_head_js_mathjax": "$", "html_head_js_mermaidjs": "mermaid"}


def main(arguments: list[str]) -> int:
    """Convert what the runner at the other end of a socket wants converted."""
    commands = Commands(int(arguments[0]), lambda: None)
    with contextlib.suppress(OSError):
        os.nice(NICENESS)
    block_slow_import()
    import nbformat
    from nbconvert.exporters import HTMLExporter

    _ = nbformat, HTMLExporter  # before there is something to convert
    while (taken := commands.take()) is not None:
        command, _ = taken
        try:
            write(Path(command["notebook"]), Path(command["target"]))
            message = None
        except Exception as err:
            message = f"{type(err).__name__}: {err}"[:500]
        commands.report("converted", message=message)
    return 0


def write(notebook: Path, target: Path) -> None:
    """Convert an executed notebook."""
    import nbformat

    node = nbformat.read(notebook, as_version=4)
    needed = _texts(node)
    exporter = _exporter(tuple(block for block, sign in BLOCKS.items() if sign not in needed[block]))
    resources = {"metadata": {"name": target.stem, "path": str(notebook.parent)}}
    text, _ = exporter.from_notebook_node(node, resources)
    files.write_text(target, text)


@functools.cache
def _exporter(unused: tuple[str, ...]) -> HTMLExporter:
    """Return what converts, without some blocks of its template; most of a short conversion is compiling that."""
    from jinja2 import DictLoader
    from nbconvert.exporters import HTMLExporter

    template = "{% extends 'lab/index.html.j2' %}" + "".join(f"{{% block {name} %}}{{% endblock %}}" for name in unused)
    exporter = HTMLExporter(
        extra_loaders=[DictLoader({"run.html.j2": template})], template_file="run.html.j2", embed_images=True
    )
    exporter.log = logging.getLogger("rocmlab.nbconvert")
    exporter.log.setLevel(logging.ERROR)  # it warns of each plot without alternative text, which no runner needs
    return exporter


def _texts(node: dict[str, Any]) -> dict[str, str]:
    """Return, by script, the text that could need it: HTML outputs for require.js, else prose and formulas."""
    outputs = [output.get("data", {}) for cell in node["cells"] for output in cell.get("outputs", [])]
    html = "".join(
        json.dumps(data.get("text/html", "")) + json.dumps(data.get("application/javascript", "")) for data in outputs
    )
    formulas = "".join("$" for data in outputs if "text/latex" in data)
    prose = "".join(cell["source"] for cell in node["cells"] if cell["cell_type"] == "markdown")
    math = "$" if "\\(" in prose or "\\[" in prose or "\\begin" in prose else ""
    return {
        "html_head_js_requirejs": html,
        "html_head_js_mathjax": prose + formulas + math,
        "html_head_js_mermaidjs": prose,
    }


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
