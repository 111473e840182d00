"""The parts of the reference that are made from the code: commands, settings, checks, the schema of results."""

from __future__ import annotations

import argparse
import html
import json
import os
import re
import textwrap
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from rocmlab import reports
from rocmlab.cli.main import ALIASES, COMMANDS, GROUPS
from rocmlab.cli.parsers import parsers
from rocmlab.doctor.checks import ALL
from rocmlab.doctor.report import page
from rocmlab.stack.setting_table import SETTINGS

CODE = re.compile(r"(`[^`]*`)")
SPECIAL = re.compile(r"([*_\[\]])")
PIPE = re.compile(r"(`[^`]*`)|\|")  # in code a pipe ends no cell
SCHEMA = Path(reports.__file__).with_name("results.schema.json")


def commands() -> str:
    """Return every command with its options, in the groups and the order of the help."""
    os.environ.update(COLUMNS="92", NO_COLOR="1")  # for argparse
    made = dict(parsers())
    parts = []
    for title, group in GROUPS.items():
        parts.append(f"## {title}")
        for name, parser in made.items():
            if name.split()[0] in group:
                parts.append(_command(name, parser))
    return "\n\n".join(parts)


def _command(name: str, parser: argparse.ArgumentParser) -> str:
    aliases = [f"`rocmlab {alias}`" for alias, command in ALIASES.items() if command == name]
    usage = textwrap.dedent(" " * len("usage: ") + parser.format_usage().removeprefix("usage: ")).rstrip()
    about = parser.description or COMMANDS.get(name, ("", ""))[1]
    parts = [
        f"{'####' if ' ' in name else '###'} `rocmlab {name}`",
        _escaped(about) + (f" Also: {', '.join(aliases)}." if aliases else ""),
        f"```text\n{usage}\n```",
    ]
    if rows := [row for action in parser._actions if (row := _option(parser, action))]:
        parts.append(_table(("argument", "meaning"), rows))
    if parser.epilog:
        parts.append(f"```text\n{parser.epilog % {'prog': parser.prog}}\n```")
    return "\n\n".join(parts)


def _option(parser: argparse.ArgumentParser, action: argparse.Action) -> tuple[str, str] | None:
    """Return the row of an argument; None: the help does not list it, or it is a command, which has its own table."""
    if action.help == argparse.SUPPRESS or isinstance(action, argparse._HelpAction | argparse._SubParsersAction):
        return None
    formatter = parser._get_formatter()
    value = (
        formatter._format_args(action, formatter._get_default_metavar_for_optional(action)) if action.nargs != 0 else ""
    )
    if not action.option_strings:
        if action.nargs == argparse.REMAINDER:  # of which argparse prints three dots
            action = argparse.Action([], action.dest, metavar=action.metavar, help=action.help)
        value = formatter._format_args(action, formatter._get_default_metavar_for_positional(action))
    names = ", ".join(f"`{f'{name} {value}'.strip()}`" for name in action.option_strings or [""])
    return names, _escaped(formatter._expand_help(action) if action.help else "")


def settings() -> str:
    """Return the table of the settings."""
    rows = []
    for each in SETTINGS:
        more = f" More: [{each.page.removesuffix('.md')}]({each.page})." if each.page else ""
        meaning = f"{_escaped(each.meaning)}. {each.details}".rstrip(" ") + more
        rows.append((f"`{each.name}`", f"`{each.default}`" if each.default else each.otherwise, meaning))
    return _table(("setting", "default", "meaning"), rows)


def checks() -> str:
    """Return the doctor's checks."""
    return page(ALL)


def results() -> str:
    """Return the fields of `results.json`, an object after the other."""
    schema = json.loads(SCHEMA.read_text(encoding="utf-8"))
    objects = {"results.json": schema, **{name: each for name, each in schema["$defs"].items() if "properties" in each}}
    return "\n\n".join(
        f"### `{name}`\n\n{_table(('field', 'type', 'meaning'), list(_fields(each, schema['$defs'])))}"
        for name, each in objects.items()
    )


def _fields(schema: dict[str, Any], known: dict[str, Any]) -> Iterator[tuple[str, str, str]]:
    for name, field in schema["properties"].items():
        optional = "" if name in schema.get("required", ()) else ", may be missing"
        reference = field.get("$ref", "").rpartition("/")[2]
        meaning = field.get("description") or known.get(reference, {}).get("description", "")
        yield f"`{name}`", _type(field, known) + optional, _escaped(meaning)


def _type(field: dict[str, Any], known: dict[str, Any]) -> str:
    """Return the type of a field, with a link where it is an object of its own."""
    if "$ref" in field:
        name = field["$ref"].rpartition("/")[2]
        return f"[`{name}`](#{name})" if "properties" in known[name] else _type(known[name], known)
    if "anyOf" in field:
        return " or ".join(_type(each, known) for each in field["anyOf"])
    if "enum" in field or "const" in field:
        return ", ".join(f"`{json.dumps(each)}`" for each in field.get("enum", [field.get("const")]))
    if field.get("type") == "array" and "$ref" in field.get("items", {}):
        return f"list of {_type(field['items'], known)}"
    types = field.get("type", "any")
    return " or ".join([types] if isinstance(types, str) else types)


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    cells = ((PIPE.sub(lambda found: found[1] or r"\|", cell) for cell in line) for line in lines)
    return "\n".join(f"| {' | '.join(line)} |" for line in cells)


def _escaped(text: str) -> str:
    """Return a help text as Markdown: code stays code, and what looks like an element or emphasis is neither."""
    parts = CODE.split(" ".join(text.split()))
    return "".join(
        part if number % 2 else SPECIAL.sub(r"\\\1", html.escape(part, quote=False))
        for number, part in enumerate(parts)
    )
