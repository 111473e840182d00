"""Records that were read, such as those of a journal: each field is checked by its type before anything uses it.

A record is a dataclass or a TypedDict. Its numbers are finite and not negative, a dict is not nested too deep, and what
is `Annotated` is checked by that function, or as that record, alone. Whoever wrote a record is not trusted.
"""

from __future__ import annotations

import dataclasses
import functools
import sys
from collections.abc import Callable
from datetime import datetime
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

from rocmlab.base import safe

Read = Callable[[object], str]  # returns what is wrong with a value, such as `[2].gpus is 'many'`; empty: nothing


def is_time(value: object) -> bool:
    """Return whether this is a time in ISO 8601."""
    try:
        return isinstance(value, str) and len(value) < 40 and bool(datetime.fromisoformat(value.replace("Z", "+00:00")))
    except ValueError:
        return False


def is_path(value: object) -> bool:
    """Return whether this can be a path, or the name of something."""
    return isinstance(value, str) and "\0" not in value and value != ""


JobName = Annotated[str, safe.is_job_name]
FileName = Annotated[str, safe.is_file_name]
FilePath = Annotated[str, is_path]
Files = Annotated[dict[str, str], safe.is_files]
Time = Annotated[str, is_time]


def check(found: object, record: type, what: str) -> dict[str, Any]:
    """Return an object with fields that were checked; those that the record does not have are left as they are.

    Raises:
        ValueError: it is not an object, lacks a field without a default, or a field has another type or meaning.
    """
    if problem := _of_record(record)(found):
        raise ValueError(f"{what}{problem}")
    assert isinstance(found, dict)
    return found


def fits(found: object, record: type) -> bool:
    """Return whether an object is such a record."""
    return not _of_record(record)(found)


@functools.cache
def _of_record(record: type) -> Read:
    read = {name: _of_type(hint) for name, hint in get_type_hints(record, include_extras=True).items()}
    needed = getattr(record, "__required_keys__", None)
    if needed is None:
        missing = dataclasses.MISSING
        known = dataclasses.fields(record)
        needed = [each.name for each in known if each.default is missing and each.default_factory is missing]

    def of_record(found: object) -> str:
        if not isinstance(found, dict):
            return f" is {safe.shown(found)}"
        if lacking := [name for name in read if name in needed and name not in found]:
            return f" has no {', '.join(lacking)}"
        known = ((name, field) for name, field in read.items() if name in found)
        return next((f".{name}{problem}" for name, field in known if (problem := field(found[name]))), "")

    return of_record


def _of_type(hint: Any) -> Read:  # noqa: ANN401  a type as it is written
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is Annotated:
        return _nested(arguments[1]) if isinstance(arguments[1], type) else _if(arguments[1])
    if origin in (Union, UnionType):
        choices = [_of_type(each) for each in arguments]
        return lambda value: "" if any(not read(value) for read in choices) else choices[0](value)
    if origin is Literal:
        return _if(lambda value: value in arguments)
    if origin in (list, tuple):
        return functools.partial(_of_list, _of_type(arguments[0]))
    return _if(PLAIN[origin or hint]) if (origin or hint) in PLAIN else _nested(hint)


def _nested(record: type) -> Read:
    levels = safe.MAX_LEVELS + 1  # its fields may be that deep

    def read(value: object) -> str:
        return f" is nested deeper than {levels} levels" if safe.is_deeper(value, levels) else _of_record(record)(value)

    return read


def _of_list(read: Read, found: object) -> str:
    if not isinstance(found, list):
        return f" is {safe.shown(found)}"
    return next((f"[{number}]{problem}" for number, each in enumerate(found) if (problem := read(each))), "")


def _if(is_right: Callable[[Any], bool]) -> Read:
    return lambda value: "" if is_right(value) else f" is {safe.shown(value)}"


PLAIN: dict[type, Callable[[Any], bool]] = {
    str: lambda value: isinstance(value, str),
    bool: lambda value: isinstance(value, bool),
    int: lambda value: isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**63,
    float: lambda value: (
        isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= sys.float_info.max
    ),
    dict: lambda value: isinstance(value, dict) and not safe.is_deeper(value),
    NoneType: lambda value: value is None,
}
