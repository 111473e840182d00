"""Each event of a journal and each job of an export, checked field by field before anything is done by it."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any

from rocmlab.base import safe
from rocmlab.runs.jobs import EXIT_CODES
from rocmlab.runs.spec.options import ENGINES, MAX_RETRIES

Check = Callable[[object], bool]
MAX_JOBS = 1_000_000  # of one run


def is_time(value: object) -> bool:
    """Return whether this is a time in ISO 8601."""
    try:
        return isinstance(value, str) and len(value) < 40 and bool(datetime.fromisoformat(value.replace("Z", "+00:00")))
    except ValueError:
        return False


def _is_text(value: object) -> bool:
    return isinstance(value, str)


def _is_path(value: object) -> bool:
    return isinstance(value, str) and "\0" not in value and value != ""


def _is_flag(value: object) -> bool:
    return isinstance(value, bool)


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**63


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value) and value >= 0


def _is_mapping(value: object) -> bool:
    return isinstance(value, Mapping) and not safe.is_deeper(value)


def _is_gpus(value: object) -> bool:
    return value == "all" or _is_count(value)


def _is_error(value: object) -> bool:
    return safe.is_error(value) and isinstance(value, Mapping) and _is_mapping(value) and not wrong(value, ERROR)


def _or_none(check: Check) -> Check:
    return lambda value: value is None or check(value)


def _one_of(*choices: object) -> Check:
    return lambda value: isinstance(value, str) and value in choices


def _list_of(check: Check) -> Check:
    return lambda value: isinstance(value, list) and all(map(check, value))


def _is_files(value: object) -> bool:
    return safe.files_of(value) is not None


def _is_attempt(value: object) -> bool:
    return isinstance(value, Mapping) and _is_mapping(value) and not wrong(value, ATTEMPT)


STATUS = _one_of(*EXIT_CODES, "not run")
ASKED: Mapping[str, Check] = {
    "word": _is_path,
    "notebook": _is_path,
    "name": _is_text,
    "kernel": _is_path,
    "gpus": _is_gpus,
    "vram_bytes": _is_count,
    "is_mixed": _is_flag,
    "timeout_seconds": _is_number,
    "source": _one_of("words", "yaml", "csv"),
}
OPTIONS: Mapping[str, Check] = {
    "gpus": _or_none(_is_text),
    "mixed": _is_flag,
    "timeout": _or_none(_is_number),
    "cell_timeout": _or_none(_is_number),
    "memory": _or_none(_is_count),
    "retries": lambda value: _is_count(value) and isinstance(value, int) and value <= MAX_RETRIES,
    "fail_fast": _is_flag,
    "engine": _or_none(_one_of(*ENGINES, "papermill")),  # of a run of an earlier version
    "warm": _one_of("auto", "off"),
    "compare": _or_none(_is_path),
}
ERROR: Mapping[str, Check] = {  # beside its name and value
    "why": _or_none(_is_text),
    "fix": _or_none(_is_text),
    "source": _or_none(_is_text),
    "cell": _or_none(_is_count),
    "cell_index": _or_none(_is_count),
    "line": _or_none(_is_count),
    "first_line": _or_none(_is_count),
}
ATTEMPT: Mapping[str, Check] = {
    "status": STATUS,
    "message": _is_text,
    "started": _or_none(is_time),
    "seconds": _or_none(_is_number),
    "devices": _list_of(_is_mapping),
    "files": _is_files,
}
RESULT: Mapping[str, Check] = {
    "name": safe.is_job_name,
    "notebook": _is_path,
    "parameters": _is_mapping,
    "kernel": _or_none(_is_text),
    "status": STATUS,
    "exit_code": _or_none(_is_count),
    "started": _or_none(is_time),
    "seconds": _or_none(_is_number),
    "cells_done": _or_none(_is_count),
    "cells_total": _or_none(_is_count),
    "devices": _list_of(_is_mapping),
    "recorded": _is_mapping,
    "error": _or_none(_is_error),
    "files": _is_files,
    "warnings": _list_of(_is_text),
    "simulated": _is_flag,
    "attempts": _list_of(_is_attempt),
    "defaults": _is_mapping,
}
EXPORTED: Mapping[str, Check] = {
    "name": safe.is_job_name,
    "notebook": _is_path,
    "kernel": _or_none(_is_text),
    "gpus": _is_count,
    "key": _or_none(_is_text),
}
LAYOUT: Mapping[str, Check] = {
    "run": safe.is_file_name,
    "share": _is_path,
    "backend": _one_of("rocm", "cuda", "cpu"),
    "retries": _is_count,
}
GROUP: Mapping[str, Check] = {
    "gpus": _is_count,
    "first": _is_count,
    "count": _is_count,
    "seconds": _or_none(_is_number),
}


def wrong(found: Mapping[str, Any], checks: Mapping[str, Check]) -> str:
    """Return what is wrong with the fields that are there: `gpus is 'many'`; empty if nothing is."""
    for name, check in checks.items():
        if name in found and not check(found[name]):
            return f"{name} is {safe.shown(found[name])}"
    return ""


def check(found: object, checks: Mapping[str, Check], what: str, needed: tuple[str, ...] = ()) -> dict[str, Any]:
    """Return an object with fields that were checked.

    Raises:
        ValueError: it is none, lacks a field, or a field has another type or meaning.
    """
    if not isinstance(found, dict):
        raise ValueError(f"{what} is {safe.shown(found)}")
    if lacking := [name for name in needed if name not in found]:
        raise ValueError(f"{what} has no {', '.join(lacking)}")
    if problem := wrong(found, checks):
        raise ValueError(f"{what}: {problem}")
    return found


def jobs(found: object) -> list[dict[str, Any]]:
    """Return the `jobs` of the event `run started`: names that are safe and unique, whatever the file system.

    Raises:
        ValueError: they are not.
    """
    if not isinstance(found, list) or len(found) > MAX_JOBS:
        raise ValueError("its jobs are not a list")
    names: dict[str, str] = {}
    for number, each in enumerate(found):
        what = f"jobs[{number}]"
        job = check(each, {"name": safe.is_job_name}, what, ("name", "asked"))
        asked = check(job["asked"], ASKED, f"{what}.asked", ("word",))
        if unknown := asked.keys() - ASKED.keys():
            raise ValueError(f"{what}.asked has {safe.shown(sorted(unknown))}, which is not known")
        if (other := names.setdefault(job["name"].casefold(), what)) != what:
            raise ValueError(f"{what} has the name {safe.shown(job['name'])}, as {other} has")
    return found


def values(job: Mapping[str, Any], what: str) -> dict[str, Any]:
    """Return the parameters of a job, with the infinity and NaN that strict JSON has no word for.

    Raises:
        ValueError: they are no mapping of names, or nested too deep.
    """
    exact = job.get("parameters_exact")
    if exact is not None and not isinstance(exact, str):
        raise ValueError(f"{what}.parameters_exact is {safe.shown(exact)}")
    found = json.loads(exact) if exact else job.get("parameters")
    if not isinstance(found, dict) or safe.is_deeper(found):
        raise ValueError(f"{what}.parameters is {safe.shown(found)}")
    return found
