"""The `.env` file: read as Compose reads it, changed line by line so that nothing that a user wrote is lost."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path

from rocmlab.base.errors import RocmlabError

TYPE_CHECKING = False  # `typing` itself would cost `smi` milliseconds
if TYPE_CHECKING:
    from typing import Any

ASSIGNMENT = re.compile(r"^\s*(?:export\s+)?([A-Za-z_]\w*)\s*=(.*)$")
VARIABLE = re.compile(r"(?<![\\$])\$[A-Za-z_{]")
PLAIN = re.compile(r"[\w./:@%+,=~-]*", re.ASCII)


def parse(text: str) -> dict[str, str]:
    """Return the assignments of a `.env` text; the last one of a name counts, as for Compose."""
    found = (ASSIGNMENT.match(line) for line in text.splitlines())
    return {match[1]: _unquote(match[2]) for match in found if match}


def expanded(text: str) -> list[str]:
    """Return the names whose values have a variable, which Compose would replace and rocmlab does not."""
    found = (ASSIGNMENT.match(line) for line in text.splitlines())
    return [match[1] for match in found if match and _has_variable(match[2].strip())]


def _has_variable(raw: str) -> bool:
    if raw.startswith("'"):
        return False
    text = raw if raw.startswith('"') else _unquote(raw)
    return VARIABLE.search(text) is not None


def _unquote(raw: str) -> str:
    raw = raw.strip()
    if single := re.match(r"'([^']*)'", raw):
        return single[1]
    if double := re.match(r'"((?:[^"\\]|\\.)*)"', raw):
        return re.sub(r"\\(.)", r"\1", double[1])
    return re.split(r"(?:^|\s+)#", raw, maxsplit=1)[0]


def _quote(value: str) -> str:
    if PLAIN.fullmatch(value):
        return value
    if "'" not in value:
        return f"'{value}'"
    return '"' + re.sub(r'(["\\$])', r"\\\1", value) + '"'


def update(text: str, values: Mapping[str, str | None], comments: Mapping[str, str]) -> str:
    """Return `text` with these values: changed in place, added at the end with a comment, removed where None."""
    lines: list[str] = []
    present: set[str] = set()
    old = parse(text)
    for line in text.splitlines():
        match = ASSIGNMENT.match(line)
        name = str(match[1]) if match else ""
        if name not in values:
            lines.append(line)
            continue
        value = values[name]
        if value is None:
            if lines and lines[-1] == f"# {comments.get(name)}":
                lines.pop()
            continue
        present.add(name)
        lines.append(line if old[name] == value else f"{name}={_quote(value)}")
    for name, value in values.items():
        if value is not None and name not in present:
            lines += [f"# {comments[name]}"] if name in comments else []
            lines.append(f"{name}={_quote(value)}")
    return "".join(f"{line}\n" for line in lines)


def read(path: Path) -> str:
    """Return the file's text, empty if there is none; raise RocmlabError if it cannot be read."""
    try:
        return path.read_text(encoding="utf-8-sig")  # some editors begin a file with a mark
    except FileNotFoundError:
        return ""
    except PermissionError as err:  # as after `sudo make up` of an earlier version
        from shlex import quote

        fix = f'sudo chown "$USER" {quote(str(path))} && chmod u+r {quote(str(path))}'
        raise RocmlabError(f"{path} cannot be read", str(err), fix) from err
    except (OSError, UnicodeDecodeError) as err:
        raise RocmlabError(f"{path} cannot be read", str(err), f"fix or remove it: rm {path}") from err


def read_json(path: Path) -> dict[str, Any]:
    """Return the JSON object in a file, empty where there is none."""
    try:
        return json_object(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError):
        return {}


def json_object(text: str) -> dict[str, Any]:
    """Return the JSON object of a text, empty where it is not one."""
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def write(path: Path, text: str, mode: int = 0o600) -> None:
    """Replace a file atomically, readable by its owner alone: it may hold the token; an error if it cannot.

    Its owner is this user; under sudo the one who called it, in a folder of theirs.
    """
    from rocmlab.base import files, identity  # not before: `smi` reads only, and starts in milliseconds

    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        content = text.encode()
        with files.replacing(path, mode) as file:
            file.write(content)
            identity.give_to_caller(file.fileno(), path.parent)
    except UnicodeEncodeError as err:
        raise RocmlabError(
            f"{path} cannot be written", f"a value is not UTF-8: {err}", "rename the file or folder"
        ) from err
    except OSError as err:
        raise RocmlabError(
            f"{path} cannot be written",
            str(err),
            "free some space, or clone the project into a folder that you own",
        ) from err
