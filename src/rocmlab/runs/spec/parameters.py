"""Parameters: those of the command line, `NAME=VALUE[,VALUE…]` as YAML, and a notebook's own."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, ClassVar

from rocmlab.base.errors import RocmlabError

CLOSING = {"[": "]", "{": "}"}


def parse(assignments: Iterable[str], read: Callable[[str, str], Any] | None = None) -> dict[str, list[Any]]:
    """Return the values that `-p NAME=VALUE[,VALUE…]` arguments give to each parameter: several are the axis of a grid.

    `read` reads one value, by default as YAML, which needs PyYAML.

    Raises:
        RocmlabError: one has no `=`, no Python name before it, or a value that is not YAML, missing, or there twice;
            or a name appears twice.
    """
    found: dict[str, list[Any]] = {}
    for assignment in assignments:
        name, values = _parse(assignment, read or read_value)
        if name in found:
            raise RocmlabError(
                f"-p {name} is given twice",
                "only one of them could count",
                f"name it once; several values make a grid: -p {name}=A,B",
            )
        found[name] = values
    return found


def _parse(assignment: str, read: Callable[[str, str], Any]) -> tuple[str, list[Any]]:
    name, _, text = check_pair(assignment).partition("=")
    texts = list(split(text))
    if len(texts) > 1 and not all(texts):
        raise RocmlabError(
            f"-p {assignment} has an empty value",
            "commas separate the values of a grid",
            f"quote it: -p {name}=\"'a,b'\"",
        )
    values = [read(each, f"-p {assignment}") for each in texts]
    if len({json.dumps(value, sort_keys=True) for value in values}) < len(values):
        raise RocmlabError(
            f"-p {assignment} has a value twice", "each value of a grid makes a job", "name each value once"
        )
    return name, values


def check_pair(text: str) -> str:
    """Return an argument of `-p` if it has a name and `=`; its values are read later, for that needs PyYAML.

    Raises:
        RocmlabError: it has not.
    """
    name, equals, _ = text.partition("=")
    if equals and name.isidentifier():
        return text
    if not equals:
        why, fix = "a parameter needs a name and a value", "-p epochs=2"
    elif not name:
        why, fix = "the name is missing", f"-p epochs{text}"
    else:
        near = re.sub(r"\W+", "_", name.strip()).strip("_") or "epochs"
        why = f"{name!r} is no name of a parameter: letters, digits and _, with no spaces around"
        fix = f"-p {near if near.isidentifier() else '_' + near}{text[len(name) :]}"
    raise RocmlabError(f"-p {text} is not NAME=VALUE", why, fix)


def split(text: str) -> Iterator[str]:
    """Yield the values between the commas of a text.

    A value that begins with a quote, `[` or `{` continues to where that is closed, so commas within are its own; any
    other value ends at the next comma.
    """
    begin = 0
    while True:
        first = len(text) - len(text[begin:].lstrip())
        end = text.find(",", _closed(text, first))
        if end < 0:
            yield text[begin:].strip()
            return
        yield text[begin:end].strip()
        begin = end + 1


def _closed(text: str, begin: int) -> int:
    """Return where the quote or bracket at `begin` is closed; `begin` if there is none, the end if it never is."""
    if begin >= len(text) or text[begin] not in "\"'[{":
        return begin
    if text[begin] in "\"'":
        return _unquoted(text, begin)
    expected, at, is_start = [CLOSING[text[begin]]], begin + 1, True
    while at < len(text) and expected:
        sign = text[at]
        if is_start and sign in "\"'":
            at, is_start = _unquoted(text, at), False
            continue
        if sign in CLOSING:
            expected.append(CLOSING[sign])
        elif sign == expected[-1]:
            expected.pop()
        is_start = sign in "[{,:" or (is_start and sign.isspace())
        at += 1
    return at


def _unquoted(text: str, begin: int) -> int:
    """Return where the quoted text that begins at `begin` has ended, by the rules of YAML."""
    quote = re.compile(r"'(?:[^']|'')*'" if text[begin] == "'" else r'"(?:[^"\\]|\\.)*"', re.DOTALL)
    found = quote.match(text, begin)
    return found.end() if found else len(text)


def read_value(text: str, where: str) -> Any:  # noqa: ANN401  any YAML value
    """Return one value, read as YAML; an error calls it `where`.

    Raises:
        RocmlabError: it is not YAML, or something that a notebook cannot be given.
    """
    import yaml  # type: ignore[import-untyped]  # papermill needs it, so it is there wherever notebooks run

    try:
        value = yaml.load(text, Loader=loader())
    except (yaml.YAMLError, ValueError, RecursionError) as err:
        raise RocmlabError(
            f"{where} cannot be read",
            f"the value is not YAML: {' '.join(str(err).split())[:300]}",
            "quote it: -p 'name=\"text: with a colon\"'",
        ) from err
    check_value(value, where)
    return value


def check_value(value: object, where: str) -> None:
    """Refuse what cannot be handed to a notebook: dates, bytes and sets, which YAML makes on request.

    Raises:
        RocmlabError: the value is one.
    """
    try:
        json.dumps(value)
    except (TypeError, ValueError, RecursionError) as err:
        raise RocmlabError(
            f"{where} cannot be a parameter",
            f"only text, numbers, true, false, null, lists and mappings can: {err}",
            "write it as text, in quotes",
        ) from err


def check_names(given: Iterable[str], known: Mapping[str, str]) -> None:
    """Refuse parameters that a notebook's cell does not name; `known` has what an error shows of each that it does.

    Raises:
        RocmlabError: it does not name one.
    """
    if unknown := [name for name in given if name not in known]:
        raise RocmlabError(
            f"it has no parameter{'s' * (len(unknown) > 1)} {', '.join(unknown)}",
            f"it has these: {', '.join(known.values())}" if known else "it has no cell tagged `parameters`",
            "correct the name, or name only notebooks that have it",
        )


def loader() -> Any:  # noqa: ANN401  a class of PyYAML, which has no types
    """Return a YAML loader that reads a value as users mean it on a command line.

    Like papermill it makes no dates. Beyond YAML 1.1 it knows `1e-3` (a learning rate, not text) and `None`, and it
    keeps `no`, `on`, `012` and `1:30` as they are: a country code or a time is not a number.
    """
    import yaml

    class Loader(yaml.SafeLoader):  # type: ignore[misc]
        yaml_implicit_resolvers: ClassVar[dict[str, list[tuple[str, re.Pattern[str]]]]] = {}

    def resolve(tag: str, pattern: str, first: str) -> None:
        Loader.add_implicit_resolver(f"tag:yaml.org,2002:{tag}", re.compile(pattern), list(first))

    resolve("bool", r"^(?:true|True|TRUE|false|False|FALSE)$", "tTfF")
    resolve("null", r"^(?:~|null|Null|NULL|None)$", "~nN")
    resolve("int", r"^[-+]?(?:0|[1-9][0-9]*)$", "-+0123456789")
    resolve("float", r"^[-+]?(?:\.[0-9]+|[0-9]+\.[0-9]*|[0-9]+(?=[eE]))(?:[eE][-+]?[0-9]+)?$", "-+0123456789.")
    resolve("float", r"^(?:[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN))$", "-+.")
    resolve("merge", r"^<<$", "<")
    return Loader


def defaults(notebook: Mapping[str, Any], language: str) -> dict[str, Any]:
    """Return the plain values that the cell tagged `parameters` sets: `lr: float = 0.01`; what it computes is omitted.

    Of other languages than Python nothing is known.
    """
    cells = (cell for cell in notebook["cells"] if "parameters" in cell.get("metadata", {}).get("tags", ()))
    cell = next(cells, None)
    if cell is None or language != "python":
        return {}
    lines = ("" if line.lstrip().startswith(("%", "!")) else line for line in cell["source"].splitlines())
    try:
        statements = ast.parse("\n".join(lines)).body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return {}
    found: dict[str, Any] = {}
    for name, value in _assigned(statements):
        found.pop(name, None)
        try:
            plain = ast.literal_eval(value)
            json.dumps(plain)
        except (ValueError, TypeError, SyntaxError, RecursionError, MemoryError):
            continue
        found[name] = plain
    return found


def _assigned(statements: list[ast.stmt]) -> Iterator[tuple[str, ast.expr]]:
    for each in statements:
        if isinstance(each, ast.Assign):
            yield from ((target.id, each.value) for target in each.targets if isinstance(target, ast.Name))
        elif isinstance(each, ast.AnnAssign) and isinstance(each.target, ast.Name) and each.value is not None:
            yield each.target.id, each.value
