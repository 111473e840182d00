"""Job lists: a YAML or CSV file in place of notebooks. A mistake is reported with its line, before anything runs.

A list is data: nothing in it is executed, and a name in it is made safe before it becomes a file name.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from rocmlab.base import formatting
from rocmlab.base.errors import RocmlabError
from rocmlab.runs.jobs import Request
from rocmlab.runs.spec import parameters, resources
from rocmlab.runs.spec.grid import MAX_JOBS, Entry, check

MAX_BYTES = 8_000_000
MAX_LINE_BYTES = 1_000_000  # bytes
MAX_NODES = 1_000_000  # values of a YAML file with all its aliases followed
FIELDS = ("notebook", "name", "kernel", "gpus", "vram", "mixed", "timeout")
COLUMNS = ("notebook", "kernel", "gpus", "vram", "name", "timeout")
SEPARATORS = {";": "semicolons", "\t": "tabs"}  # of spreadsheets in countries that write 0,5
MARKS = {b"\xff\xfe": "UTF-16", b"\xfe\xff": "UTF-16", b"\x00\x00\xfe\xff": "UTF-32"}

RESOURCES: Mapping[str, tuple[str, Callable[[object, str], Any]]] = {
    "gpus": ("gpus", resources.gpus),
    "vram": ("vram_bytes", resources.vram),
    "mixed": ("is_mixed", resources.mixed),
    "timeout": ("timeout_seconds", resources.seconds),
}

Fail = Callable[[str, str, str], RocmlabError]
Fields = tuple[dict[str, Any], dict[str, list[Any]]]  # fields of a `Request`, and the values of its parameters


def read(path: Path) -> list[Entry]:
    """Return the entries of a job list.

    Raises:
        RocmlabError: it cannot be read, or anything in it is wrong.
    """
    text = _text(path)
    entries = list(_rows(path, text) if path.suffix.lower() == ".csv" else _yaml(path, text))
    if not entries:
        raise _empty(path, text)
    check(len(entries), f"{path.name} lists one each")
    names: dict[str, int] = {}
    for number, entry in enumerate(entries, 1):
        name = entry.request.name
        if name is not None and names.setdefault(name, number) != number:
            what = f"{path.name}: entry {number} has the name {name!r}, as entry {names[name]} has"
            raise RocmlabError(what, "a name belongs to one job", "give it another, or omit `name`")
    return entries


def _empty(path: Path, text: str) -> RocmlabError:
    if path.suffix.lower() != ".csv":
        why = "nothing in it begins with `- `" if text.strip() else "it is empty"
        return RocmlabError(f"{path.name} lists no job", why, "write an entry:\n- notebook: 01_mnist_fc")
    if text.strip():
        return RocmlabError(f"{path.name} lists no job", "it has column names only", "add a line: 01_mnist_fc")
    return RocmlabError(f"{path.name} lists no job", "it is empty", "write two lines:\nnotebook\n01_mnist_fc")


def _text(path: Path) -> str:
    try:
        with path.open("rb") as file:
            content = file.read(MAX_BYTES + 1)
    except OSError as err:
        raise RocmlabError(f"{path.name} cannot be read", str(err), "correct its path or its permissions") from err
    for mark, encoding in MARKS.items():
        if content.startswith(mark):
            raise RocmlabError(f"{path.name}, line 1: it is {encoding}", "a list is UTF-8", "save it as UTF-8")
    for number, line in enumerate(content.split(b"\n"), 1):
        if len(line) > MAX_LINE_BYTES:
            what = f"{path.name}, line {number}: it is longer than {MAX_LINE_BYTES / 1e6:g} MB"
            raise RocmlabError(
                what, "this is not a list of jobs, or it is truncated", "look at that line and shorten it"
            )
    if len(content) > MAX_BYTES:
        what = f"{path.name} is larger than {MAX_BYTES / 1e6:g} MB"
        raise RocmlabError(what, f"a run has at most {MAX_JOBS:,} jobs", "make several lists")
    try:
        return content.decode("utf-8-sig")  # the mark that spreadsheets write says nothing else
    except UnicodeDecodeError as err:
        number = content[: err.start].count(b"\n") + 1
        what = f"{path.name}, line {number}: byte {content[err.start]:#04x} is not UTF-8"
        raise RocmlabError(what, "a list is UTF-8", "save it as UTF-8") from err


# -- YAML


def _yaml(path: Path, text: str) -> Iterator[Entry]:
    import yaml  # type: ignore[import-untyped]

    try:
        loader = parameters.loader()(text)
        node = loader.get_single_node()
        _check_nodes(node, path)
        yield from _Yaml(path, loader).entries(node)
    except yaml.MarkedYAMLError as err:
        mark = err.problem_mark or err.context_mark
        where = f", line {mark.line + 1}" if mark else ""
        why = " ".join(filter(None, (err.context, err.problem)))
        raise RocmlabError(f"{path.name}{where}: this is not YAML", why, "correct that line") from err
    except yaml.reader.ReaderError as err:
        line = text.count("\n", 0, err.position) + 1
        why = f"{err.reason}: #x{err.character:04x}" if isinstance(err.character, int) else str(err.reason)
        raise RocmlabError(f"{path.name}, line {line}: this is not YAML", why, "remove that character") from err
    except (RecursionError, ValueError) as err:
        raise RocmlabError(f"{path.name} cannot be read", f"{type(err).__name__}: {err}", "simplify it") from err


def _check_nodes(root: Any, path: Path) -> None:  # noqa: ANN401  a node of PyYAML
    """Refuse aliases that lead in a circle, or that make a giant of a small file."""
    import yaml

    sizes: dict[int, int] = {}

    def size(node: Any) -> int:  # noqa: ANN401
        if id(node) in sizes:
            if not sizes[id(node)]:
                raise _at(path, node)("an alias contains itself", "it has no end", "write it out")
            return sizes[id(node)]
        sizes[id(node)] = 0
        children: list[Any] = []
        if isinstance(node, yaml.SequenceNode):
            children = node.value
        elif isinstance(node, yaml.MappingNode):
            children = [each for pair in node.value for each in pair]
        sizes[id(node)] = 1 + sum(map(size, children))
        return sizes[id(node)]

    if root is not None and size(root) > MAX_NODES:
        raise _at(path, root)(
            "its aliases expand to too many values", f"more than {MAX_NODES:,} values", "write it out"
        )


def _at(path: Path, node: Any, entry: int | None = None) -> Fail:  # noqa: ANN401  a node of PyYAML
    """Return a function that makes an error with its position."""
    of = f" (entry {entry})" if entry else ""
    where = f"{path.name}, line {node.start_mark.line + 1}{of}"
    return lambda what, why, fix: RocmlabError(f"{where}: {what}", why, fix)


class _Yaml:
    def __init__(self, path: Path, loader: Any) -> None:  # noqa: ANN401  a loader of PyYAML
        self.path = path
        self.loader = loader

    def entries(self, root: Any) -> Iterator[Entry]:  # noqa: ANN401  a node of PyYAML, as below
        """Yield the entries of a document: a list of them, or a mapping of `jobs` and `defaults`."""
        import yaml

        if root is None or (isinstance(root, yaml.ScalarNode) and not root.value):
            return
        defaults: Fields = {}, {}
        if isinstance(root, yaml.MappingNode):
            parts = self._mapping(root, ("defaults", "jobs"), None)
            if "defaults" in parts:
                known = (*(name for name in FIELDS if name != "name"), "parameters", "grid")
                defaults = self._fields(parts["defaults"], known, None)
            if "jobs" not in parts:
                raise _at(self.path, root)(
                    "it has no `jobs`", "it lists the jobs to run", "write jobs: and entries below"
                )
            root = parts["jobs"]
        if not isinstance(root, yaml.SequenceNode):
            raise _at(self.path, root)(
                "this is not a list of jobs", "each entry begins with `- `", "write - notebook: a.ipynb"
            )
        for number, node in enumerate(root.value, 1):
            yield self._entry(node, number, defaults)

    def _entry(self, node: Any, number: int, defaults: Fields) -> Entry:  # noqa: ANN401
        fields, axes = self._fields(node, (*FIELDS, "parameters", "grid"), number)
        fields = {**defaults[0], **fields}
        if "word" not in fields:
            raise _at(self.path, node, number)(
                "it does not name a notebook", "each entry needs one", "add notebook: a.ipynb"
            )
        return Entry(Request(source="yaml", **fields), {**defaults[1], **axes}, self.path.absolute().parent)

    def _fields(self, node: Any, known: Sequence[str], number: int | None) -> Fields:  # noqa: ANN401
        parts = self._mapping(node, known, number)
        fields: dict[str, Any] = {}
        axes: dict[str, list[Any]] = {}
        for part in ("parameters", "grid"):
            if part not in parts:
                continue
            for name, value in self._values(parts[part], number).items():
                if name in axes:
                    fail = _at(self.path, parts[part], number)
                    raise fail(f"{name} is a parameter and of the grid", "it can be one of them", "remove one of them")
                axes[name] = self._axis(name, value, number) if part == "grid" else [self._value(value, number)]
        for name in FIELDS:
            if name in parts:
                key, value = _field(name, self._value(parts[name], number), _at(self.path, parts[name], number))
                fields[key] = value
        return fields, axes

    def _mapping(self, node: Any, known: Sequence[str], number: int | None) -> dict[str, Any]:  # noqa: ANN401
        parts = self._values(node, number)
        for name in parts:
            if name not in known:
                fail = _at(self.path, node, number)
                raise fail(f"unknown key {name!r}", f"these are known: {', '.join(known)}", "correct or remove it")
        return parts

    def _values(self, node: Any, number: int | None) -> dict[str, Any]:  # noqa: ANN401
        """Return the nodes of a mapping by their keys, each of them once."""
        import yaml

        fail = _at(self.path, node, number)
        if not isinstance(node, yaml.MappingNode):
            raise fail("here a mapping is expected", "`name: value`, each on a line of its own", "correct that line")
        own = [key.value for key, _ in node.value if isinstance(key, yaml.ScalarNode)]
        self.loader.flatten_mapping(node)  # `<<: *base`, whose keys come first
        if len(own) != len(set(own)):
            twice = next(name for name in own if own.count(name) > 1)
            raise fail(f"{twice!r} appears twice", "only one of them would count", "remove one of them")
        found: dict[str, Any] = {}
        for key, value in node.value:
            name = self._value(key, number)
            if not isinstance(name, str):
                raise fail(f"the key {name!r} is no name", "it is not text", "put it in quotes, or correct it")
            found[name] = value
        return found

    def _axis(self, name: str, node: Any, number: int | None) -> list[Any]:  # noqa: ANN401
        values, fail = self._value(node, number), _at(self.path, node, number)
        if not isinstance(values, list) or not values:
            raise fail(f"grid: {name} is not a list", "a grid has values to go through", f"write {name}: [1, 2]")
        if len({json.dumps(value, sort_keys=True) for value in values}) < len(values):
            raise fail(f"grid: {name} has a value twice", "each value makes a job", "name each value once")
        return values

    def _value(self, node: Any, number: int | None) -> Any:  # noqa: ANN401
        value = self.loader.construct_document(node)
        try:
            parameters.check_value(value, "this value")
        except RocmlabError as err:
            raise _at(self.path, node, number)(err.problem.what, err.problem.why, err.problem.fix) from err
        return value


def _field(name: str, value: object, fail: Fail) -> tuple[str, Any]:
    """Return a field of a `Request` and its value."""
    if name in ("notebook", "name", "kernel"):
        if not isinstance(value, str) or not value.strip() or "\0" in value:
            raise fail(
                f"{name} = {value!r}",
                "this is empty, or not text",
                f"{name}: 01_mnist_fc" if name == "notebook" else f"{name}: a name in letters",
            )
        return {"notebook": "word"}.get(name, name), value
    key, read_value = RESOURCES[name]
    try:
        return key, read_value(value, name)
    except RocmlabError as err:
        raise fail(err.problem.what, err.problem.why, err.problem.fix) from err


# -- CSV


def _rows(path: Path, text: str) -> Iterator[Entry]:
    lines = csv.reader(io.StringIO(text, newline=""), strict=True)
    header: list[str] = []
    before = 0
    try:
        for row in lines:
            line, before = before + 1, lines.line_num

            def fail(what: str, why: str, fix: str, line: int = line) -> RocmlabError:
                return RocmlabError(f"{path.name}, line {line}: {what}", why, fix)

            if not any(cell.strip() for cell in row):
                continue
            if not header:
                header = _header(row, fail)
                continue
            if len(row) != len(header):
                why = f"the first line names {formatting.plural(len(header), 'column')}"
                raise fail(
                    f"it has {formatting.plural(len(row), 'cell')}", why, 'a comma in a cell needs quotes: "a,b"'
                )
            yield _row(dict(zip(header, row, strict=True)), path, fail)
    except csv.Error as err:
        raise RocmlabError(f"{path.name}, line {before + 1}: this is not CSV", str(err), "close the quotes") from err


def _header(row: Sequence[str], fail: Fail) -> list[str]:
    header = [cell.strip() for cell in row]
    if len(header) == 1 and (sign := next((each for each in SEPARATORS if each in header[0]), None)):
        name = SEPARATORS[sign]
        fix = 'save it with commas; a cell that has a comma needs quotes then: "0,5"'
        raise fail(f"its columns are separated by {name}", f"{header[0]!r} is one name: columns end at a comma", fix)
    if "notebook" not in header:
        raise fail("the column `notebook` is missing", f"its columns are {', '.join(header)}", "name the columns first")
    for name in header:
        if header.count(name) > 1:
            raise fail(f"the column {name!r} appears twice", "only one would count", "remove one of them")
        if name not in COLUMNS and not name.isidentifier():
            why = f"columns are {', '.join(COLUMNS)}, and parameters"
            raise fail(f"the column {name!r} is no parameter", why, "give it a name of letters, digits and _")
    return header


def _row(cells: Mapping[str, str], path: Path, fail: Fail) -> Entry:
    fields: dict[str, Any] = {}
    axes: dict[str, list[Any]] = {}
    for name, cell in cells.items():
        text = cell.strip()
        if not text:  # not given
            continue
        if name in COLUMNS:
            key, field_value = _field(name, text, fail)
            fields[key] = field_value
            continue
        try:
            axes[name] = [parameters.read_value(text, name)]
        except RocmlabError as err:
            raise fail(
                err.problem.what, err.problem.why, "put quotes of its own around the text: 'text: and a colon'"
            ) from err
    if "word" not in fields:
        raise fail("it does not name a notebook", "each line needs one", "fill the column `notebook`")
    return Entry(Request(source="csv", **fields), axes, path.absolute().parent)
