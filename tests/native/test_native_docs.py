"""`make docs` in a clean clone: its environment is installed from the package index once."""

from __future__ import annotations

import base64
import html
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import nbformat
import pytest
import yaml
from clones import Clone, clone

from rocmlab.base.arguments import options
from rocmlab.cli.parsers import parsers

pytestmark = pytest.mark.native

ONE_PIXEL = (
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNkYPhfDwAChwGA60e6kgAAAABJRU5ErkJggg=="  # a PNG file
)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Clone:
    """A clean clone in which `make docs` was called."""
    found = clone(tmp_path_factory.mktemp("docs") / "rocmlab")
    del found.settings["PORT"]
    assert "site/index.html" in found.make("docs").stdout
    return found


@pytest.fixture(scope="module")
def small(site: Clone, tmp_path_factory: pytest.TempPathFactory) -> Clone:
    """A clone of three pages and four notebooks that share the environment of the whole site: built in less time."""
    found = clone(tmp_path_factory.mktemp("small-docs") / "rocmlab")
    del found.settings["PORT"]
    (found.folder / ".venv-docs").symlink_to(site.folder / ".venv-docs")
    for page in found.folder.glob("docs/*.md"):
        page.unlink()
    for notebook in found.folder.glob("notebooks/*.ipynb"):
        if notebook.name >= "04":
            notebook.unlink()
        else:  # whose texts link to other pages
            content = nbformat.read(notebook, as_version=4)
            content.cells = [cell for cell in content.cells if "](" not in cell.source]
            nbformat.write(content, notebook)
    for name in ("index", "demo", "install"):
        (found.folder / f"docs/{name}.md").write_text(f"# Page {name}\n", encoding="utf-8")
    configuration = found.folder / "mkdocs.yml"
    before = configuration.read_text(encoding="utf-8").partition("\nnav:\n")[0]
    nav = "  - Home: index.md\n  - Demo: demo.md\n  - Install: install.md\n  - Tutorials:\n      - Notebooks: []\n"
    configuration.write_text(f"{before}\nnav:\n{nav}", encoding="utf-8")
    return found


def text(page: Path) -> str:
    """Return the text of a page, without its elements."""
    return html.unescape(re.sub(r"<[^>]+>", "", page.read_text(encoding="utf-8")))


def pages(nav: list[Any]) -> Iterator[str]:
    """Yield the pages of the navigation."""
    for entry in nav:
        for below in entry.values():
            yield from pages(below) if isinstance(below, list) else [below]


def test_every_page_of_the_navigation_is_built(site: Clone) -> None:
    """Those of the notebooks included, which show that no run has executed them."""
    listed = yaml.load((site.folder / "mkdocs.yml").read_text(encoding="utf-8"), Loader=yaml.BaseLoader)["nav"]
    notebooks = sorted(site.folder.glob("notebooks/*.ipynb"))

    for page in pages(listed):
        assert (site.folder / "site" / page).with_suffix(".html").is_file(), page
    for notebook in notebooks:
        shown = text(site.folder / "site/notebooks" / f"{notebook.stem}.html")
        assert "Not executed" in shown, notebook.name
        assert "Executed on" not in shown, notebook.name


def test_the_commands_page_lists_every_option(site: Clone) -> None:
    """Each is a heading, or the beginning of a piece of code, as it is typed."""
    page = (site.folder / "site/cli.html").read_text(encoding="utf-8")

    for command, parser in parsers():
        assert f'id="rocmlab-{command.replace(" ", "-")}"' in page
        for option in options(parser):
            assert option in ("-h", "--help") or f"<code>{option}" in page, f"{command} {option}"


def test_no_page_loads_anything_from_another_server(site: Clone) -> None:
    """Neither scripts, styles and fonts, nor images."""
    loads = re.compile(r"<(?:script|link|img|iframe|source)\b[^>]*?(?:src|href)=[\"']?(?:https?:)?//[^>]*>")

    for page in (site.folder / "site").rglob("*.html"):
        assert not loads.findall(page.read_text(encoding="utf-8")), page.name


@pytest.mark.parametrize(
    ("links", "reported"),
    [
        ("[a page](nowhere.md) and [a place](install.md#nowhere)", ("'nowhere.md'", "'#nowhere'")),
        ("[a file](../src/nowhere.py)", ("src/nowhere.py",)),
        ("<!-- generated: nowhere -->", ("no generated part is called nowhere",)),
    ],
)
def test_what_leads_nowhere_fails_the_build(small: Clone, links: str, reported: tuple[str, ...]) -> None:
    """And the message names it."""
    page = small.folder / "docs/demo.md"
    before = page.read_text(encoding="utf-8")
    page.write_text(f"{before}\n{links}\n", encoding="utf-8")

    done = small.make("docs", succeeds=False)
    page.write_text(before, encoding="utf-8")

    assert done.returncode != 0
    for each in reported:
        assert each in done.stdout


def execute(folder: Path, notebook: Path, *, simulated: bool = False, backend: str = "cpu", added: str = "") -> None:
    """Add a notebook to the folder of a run, as if executed there; `added` is code of an earlier version."""
    executed = nbformat.read(notebook, as_version=4)
    code = [cell for cell in executed.cells if cell.cell_type == "code"]
    code[0].outputs = [
        nbformat.v4.new_output("stream", name="stdout", text=f"printed by {notebook.stem}\n"),
        nbformat.v4.new_output("display_data", data={"image/png": ONE_PIXEL}),
    ]
    code[-1].source += added
    folder.mkdir(parents=True, exist_ok=True)
    nbformat.write(executed, folder / notebook.name)
    job = {
        **{"notebook": str(notebook), "status": "ok", "files": {"notebook": notebook.name}, "simulated": simulated},
        **{"started": "2026-11-20T10:00:00Z", "seconds": 12.3, "parameters": {"quick": True}},
        "devices": [{"backend": backend, "index": 0, "name": "A device"}],
    }
    results = folder / "results.json"
    jobs = json.loads(results.read_text(encoding="utf-8"))["jobs"] if results.exists() else []
    results.write_text(json.dumps({"jobs": [*jobs, job]}), encoding="utf-8")


def test_the_outputs_of_a_run_are_shown_with_its_device(small: Clone, tmp_path: Path) -> None:
    """And with its date and parameters; a simulated GPU has computed nothing."""
    names = ("00_hello_gpu", "01_mnist_fc", "02_mnist_cnn")
    for name, backend, simulated in zip(names, ("rocm", "rocm", "cpu"), (False, True, False), strict=True):
        execute(tmp_path / "run", small.folder / f"notebooks/{name}.ipynb", simulated=simulated, backend=backend)

    small.make("docs", RUN_FOLDER=str(tmp_path / "run"))

    built = small.folder / "site/notebooks"
    for name, device in zip(names, ("A device", "CPU of a SIMULATED host", "CPU"), strict=True):
        shown = text(built / f"{name}.html")
        assert f"Executed on: {device}\n" in shown
        assert "On 2026-11-20, in 12 seconds; with quick=true." in shown
        assert f"printed by {name}" in shown
        [image] = (built / f"{name}_files").iterdir()
        assert image.read_bytes() == base64.b64decode(ONE_PIXEL)
    assert "the run run did not execute it to its end" in text(built / "03_cpu_vs_gpu.html")


def test_the_newest_run_of_the_share_is_taken(small: Clone) -> None:
    """Where no folder is named; an output of other code than that of the page is marked."""
    run = small.folder / "share/runs/20261120T100000Z-notebooks"
    execute(run, small.folder / "notebooks/00_hello_gpu.ipynb", added="\n# changed")

    small.make("docs")

    shown = text(small.folder / "site/notebooks/00_hello_gpu.html")
    assert "an earlier version of the notebook" in shown


def test_a_run_folder_without_results_is_an_error(small: Clone, tmp_path: Path) -> None:
    """It is named, and nothing is shown as if it had been executed."""
    done = small.make("docs", RUN_FOLDER=str(tmp_path), succeeds=False)

    assert done.returncode != 0
    assert f"{tmp_path / 'results.json'} cannot be read: No such file" in done.stdout
    assert "Traceback" not in done.stdout
