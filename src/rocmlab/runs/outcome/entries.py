"""What the events of a journal contain, checked before anything is done by it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import fields
from typing import Annotated, Any, Literal, TypedDict

from rocmlab.base import records, safe
from rocmlab.runs.jobs import Request, Used
from rocmlab.runs.spec.options import ENGINES, MAX_RETRIES

MAX_JOBS = 1_000_000  # of one run
ASKED = tuple(each.name for each in fields(Request) if each.name not in ("parameters", "problem"))


class Options(TypedDict, total=False):
    """Those of the command line that `--resume` needs."""

    gpus: str | None
    mixed: bool
    timeout: float | None
    cell_timeout: float | None
    memory: int | None
    retries: Annotated[int, lambda value: type(value) is int and 0 <= value <= MAX_RETRIES]
    fail_fast: bool
    engine: Annotated[str, lambda value: value in (*ENGINES, "papermill")] | None  # papermill's own: until 2026-11-23
    warm: Literal["auto", "off"]
    compare: records.FilePath | None
    reproduce: records.FilePath | None


class Started(TypedDict, total=False):
    """Of a job."""

    devices: list[Annotated[dict[str, Any], Used]]


class _Job(TypedDict):
    name: records.JobName
    asked: Annotated[dict[str, Any], Request]


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
        job = records.check(each, _Job, what)
        if unknown := job["asked"].keys() - ASKED:
            raise ValueError(f"{what}.asked has {safe.shown(sorted(unknown))}, which is not known")
        if (other := names.setdefault(job["name"].casefold(), what)) != what:
            raise ValueError(f"{what} has the name {safe.shown(job['name'])}, as {other} has")
    return found


def values(job: Mapping[str, Any], what: str) -> dict[str, Any]:
    """Return the parameters of a job, with the infinity and NaN that strict JSON cannot represent.

    Raises:
        ValueError: they are not a mapping of names, or nested too deep.
    """
    exact = job.get("parameters_exact")
    if exact is not None and not isinstance(exact, str):
        raise ValueError(f"{what}.parameters_exact is {safe.shown(exact)}")
    found = json.loads(exact) if exact else job.get("parameters")
    if not isinstance(found, dict) or safe.is_deeper(found):
        raise ValueError(f"{what}.parameters is {safe.shown(found)}")
    return found
