"""The documentation in the repository, and what is generated for the site; `native/test_native_docs.py` builds it."""

from __future__ import annotations

import dataclasses
import re
import sys
from pathlib import Path
from types import ModuleType
from xml.etree import ElementTree

import pytest
import test_floors

from rocmlab.base.arguments import options
from rocmlab.cli.main import COMMANDS
from rocmlab.cli.parsers import parsers
from rocmlab.doctor import checks
from rocmlab.lab.server.handlers import routes
from rocmlab.notebook.options import Limits
from rocmlab.stack import settings

LINK = re.compile(r"(?<!!)\[[^\]]*\]\(([^)#\s:]+)(?:#[^)\s]*)?\)")
CODE = re.compile(r"^```.*?^```|`[^`\n]*`", re.DOTALL | re.MULTILINE)


@pytest.fixture
def reference(repository: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The module of the site that generates the reference."""
    monkeypatch.syspath_prepend(repository / "scripts/docs")
    monkeypatch.setenv("COLUMNS", "80")  # which it changes
    monkeypatch.setenv("NO_COLOR", "1")
    sys.modules.pop("reference", None)
    import reference

    return reference


def test_every_link_between_files_leads_to_a_file(repository: Path) -> None:
    """In the repository also, where generated parts are missing."""
    pages = [*repository.glob("*.md"), *repository.glob("docs/**/*.md")]

    for page in pages:
        for target in LINK.findall(CODE.sub("", page.read_text(encoding="utf-8"))):
            assert (page.parent / target).exists(), f"{page.name} links to {target}"


def test_the_readme_has_at_most_700_words(repository: Path) -> None:
    """Without its blocks of code; what is longer is no first look."""
    text = (repository / "README.md").read_text(encoding="utf-8")

    assert len(re.sub(r"^```.*?^```$", "", text, flags=re.DOTALL | re.MULTILINE).split()) <= 700


def test_what_the_first_page_says_is_tested_is(repository: Path) -> None:
    """Each question has one row, with files of tests that exist and targets that make has."""
    page = (repository / "docs/index.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| ([^|]+) \| ([^|]+) \| \[[^|]+ \| ([^|]+) \|$", page, re.MULTILINE)
    targets = re.findall(r"^([a-z-]+):.* ## ", (repository / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)

    assert len(rows) == 8
    for question, command, tests in rows:
        paths = re.findall(r"`([^`]+)`", tests)
        assert paths, question
        assert [path for path in paths if not (repository / path).exists()] == []
        assert {*re.findall(r"`make ([a-z-]+)", command)} <= {*targets}


def test_the_commands_page_has_every_command_and_option(reference: ModuleType) -> None:
    """Subcommands included, each below a heading of its own."""
    sections = dict(re.findall(r"^#{3,4} `rocmlab ([^`]+)`\n(.*?)(?=^#|\Z)", reference.commands(), re.M | re.S))

    assert sections.keys() >= COMMANDS.keys()
    for command, parser in parsers():
        for option in options(parser):
            assert option in ("-h", "--help") or f"`{option}" in sections[command], f"{command} {option}"


def test_the_rest_of_a_command_line_is_called_as_in_the_help(reference: ModuleType) -> None:
    """A command with its arguments is COMMAND on the page as well."""
    [record] = [parser for name, parser in parsers() if name == "record"]

    assert "| `COMMAND` | what to run, with its arguments |" in reference._command("record", record)


def test_a_pipe_in_an_option_does_not_end_its_cell(reference: ModuleType) -> None:
    """Code keeps it as it is, and text has it escaped."""
    assert reference._table(("a", "b"), [("`N|all`", "x|y")]).splitlines()[-1] == r"| `N|all` | x\|y |"


def test_a_help_text_is_shown_as_it_is_written(reference: ModuleType) -> None:
    """Its underscores, stars, brackets and angles are not Markdown, and code stays code."""
    assert reference._escaped("a_b <DIR> [x] *") == r"a\_b &lt;DIR&gt; \[x\] \*"
    assert reference._escaped("run `a_b <c>` now") == "run `a_b <c>` now"


def test_the_other_references_have_what_the_code_has(reference: ModuleType) -> None:
    """Settings, checks, and the objects of `results.json`."""
    listed = re.findall(r"^\| `(\w+)` \|", reference.settings(), re.MULTILINE)

    assert listed == [setting.name for setting in settings.SETTINGS]
    assert all(f"`{check.id}`" in reference.checks() for check in checks.ALL)
    assert "| `peak_vram_bytes` | integer or null, may be missing |" in reference.results()
    assert "| `devices` | list of [`device`](#device) |" in reference.results()


def test_every_route_of_the_server_is_documented(repository: Path) -> None:
    """With its method, by its path before what varies."""
    page = (repository / "docs/http-api.md").read_text(encoding="utf-8")
    paths = {each[0].removeprefix("/rocmlab/").partition("(")[0] for each in routes(lambda: None, "")}
    served = {path for path in paths if path.startswith(("api/", "metrics"))}

    assert served >= {"api/devices", "api/kernels/", "metrics"}
    assert [path for path in served if f"`GET {path}" not in page and f"`POST {path}" not in page] == []


def test_the_limits_of_a_notebook_are_those_of_the_code(repository: Path) -> None:
    """Each has its row, with its default."""
    page = (repository / "docs/running.md").read_text(encoding="utf-8")
    rows = dict(re.findall(r"^\| `(\w+_(?:seconds|bytes))` \|.*\| ([\d,]*) ?\|$", page, re.MULTILINE))

    known = {field.name: field.default for field in dataclasses.fields(Limits)}
    assert {name: float(text.replace(",", "")) if text else None for name, text in rows.items()} == known


def test_decisions_are_listed_newest_first(repository: Path) -> None:
    """As the page says."""
    page = (repository / "docs/decisions.md").read_text(encoding="utf-8")
    dates = re.findall(r"^## (\d{4}-\d\d-\d\d): ", page, re.MULTILINE)

    assert len(dates) > 100
    assert dates == sorted(dates, reverse=True)


def test_the_diagram_shows_every_package(repository: Path) -> None:
    """Each as a box of its own."""
    drawing = ElementTree.parse(repository / "docs/images/floors.svg")

    shown = {text.text for text in drawing.iter("{http://www.w3.org/2000/svg}text")}
    assert shown >= {*test_floors.ALLOWED, "cli"}
