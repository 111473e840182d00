"""What MkDocs calls while it builds the site: generated parts, notebooks, and links that leave the documentation.

A page asks for a generated part with a comment, `<!-- generated: NAME -->`, so it can also be read in the repository.
"""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parents[2]
sys.path += [str(ROOT / "src"), str(Path(__file__).parent)]

import executed  # noqa: E402
import found_run  # noqa: E402
import reference  # noqa: E402

PARTS = {
    "commands": reference.commands,
    "settings": reference.settings,
    "checks": reference.checks,
    "results": reference.results,
}
GENERATED = re.compile(r"<!-- generated: (\S+) -->")
OUTSIDE = re.compile(r"\[([^\]]*)\]\((?:\.\./)+([^)#\s]+)[^)]*\)")  # a link to a file of the repository
SECTION = "Notebooks"  # of the navigation


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """List the notebooks in the navigation."""
    pages = [{each.title: each.address} for each in executed.notebooks(ROOT)]
    section = _section(config.nav or [], SECTION)
    if section is None:
        raise PluginError(f"mkdocs.yml: the navigation has no section {SECTION}")
    section.extend(pages)
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add a page for each notebook, with its images."""
    try:
        run = found_run.run_folder(ROOT, os.environ.get("RUN_FOLDER", ""))
    except found_run.UnreadableRun as err:
        raise PluginError(f"{err}; name another run: make docs RUN_FOLDER=share/runs/…") from err
    for notebook in executed.notebooks(ROOT):
        markdown, images = notebook.convert(run)
        files.append(File.generated(config, notebook.address, content=markdown))
        for name, content in images.items():
            files.append(File.generated(config, f"notebooks/{name}", content=content))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Insert the generated parts, and lead links to files outside of `docs/` to what the site has of them."""
    return OUTSIDE.sub(_inside, GENERATED.sub(lambda found: _part(found[1], page), markdown))


def _part(name: str, page: Page) -> str:
    if name not in PARTS:
        raise PluginError(f"{page.file.src_uri}: no generated part is called {name}; choose of {', '.join(PARTS)}")
    return PARTS[name]()


def _inside(found: re.Match[str]) -> str:
    """Return the link to a notebook's page, or else the file's path.

    Raises:
        PluginError: the repository has no such file.
    """
    text, path = found[1], found[2]
    if not (ROOT / path).exists():
        raise PluginError(f"a link leads to {path}, which is not in the repository")
    if path.startswith("notebooks/") and path.endswith(".ipynb"):
        return f"[{text}]({Path(path).with_suffix('.md')})"
    return f"`{path}`"


def _section(nav: list[Any], title: str) -> list[Any] | None:
    """Return the pages of a section, wherever it is in the navigation."""
    for entry in nav:
        for name, below in entry.items() if isinstance(entry, dict) else ():
            if isinstance(below, list) and (found := below if name == title else _section(below, title)) is not None:
                return found
    return None
