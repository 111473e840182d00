"""A run against an earlier one: what ends otherwise, what takes longer, which recorded numbers have moved."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Hashable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, TypedDict

from rocmlab.base import records, safe
from rocmlab.base.errors import RocmlabError
from rocmlab.reports import SCHEMA_VERSION
from rocmlab.reports.values import canonical, is_number, numbers, used

LAST = "last"
MAX_LEVELS = 2 * safe.MAX_LEVELS
MAX_BYTES = 2_000_000_000  # of a results.json; one of 100,000 jobs has a tenth of that
RESULTS = "results.json"

Job = Mapping[str, Any]  # of results.json
Pair = tuple[Job | None, Job | None]  # then, now


class _Optional(TypedDict, total=False):
    defaults: dict[str, Any]


class _Needed(_Optional):
    """What a comparison needs of a job."""

    name: str
    notebook: str
    parameters: dict[str, Any]
    status: str
    seconds: float | None
    devices: list[dict[str, Any]]
    recorded: dict[str, Any]


class _Named(TypedDict):
    name: str


class _Results(TypedDict):
    run: Annotated[dict[str, Any], _Named]
    jobs: list[Annotated[dict[str, Any], _Needed]]


def load(which: str, runs: Path) -> dict[str, Any]:
    """Return the results of an earlier run: by its folder, its name in `runs`, or `last`.

    Raises:
        RocmlabError: the run was not found, or its results cannot be read.
    """
    path = _last(runs) if which == LAST else _find(which, runs)
    try:
        if path.stat().st_size > MAX_BYTES:
            raise ValueError(f"it is larger than {MAX_BYTES / 1e9:g} GB")
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as err:
        raise RocmlabError(f"{path} cannot be read", f"{type(err).__name__}: {err}", _other(runs)) from err
    _check(found, path, runs)
    return {**found, "folder": str(path.parent.absolute())}


def compare(jobs: Sequence[Job], earlier: Mapping[str, Any]) -> dict[str, Any]:
    """Return the `comparison` of `results.json`: these jobs, and what `load` returned."""
    pairs = list(_pairs(earlier["jobs"], jobs))
    return {
        "run": earlier["run"]["name"],
        "folder": earlier["folder"],
        "started": earlier["run"].get("started"),
        "simulated": earlier.get("simulated") is True,
        "jobs": [_compared(then, now) for then, now in pairs if now is not None],
        "gone": [_named(then) for then, now in pairs if then is not None and now is None],
    }


def _find(which: str, runs: Path) -> Path:
    for folder in (Path(which).expanduser(), runs / which):
        if folder.name == RESULTS and folder.is_file():
            return folder
        if folder.is_dir():
            if (folder / RESULTS).is_file():
                return folder / RESULTS
            why = f"{folder} has no {RESULTS}: it is not a run, or did not finish"
            raise RocmlabError(f"--compare {which} is not a run with results", why, _other(runs))
    raise RocmlabError(f"--compare {which}: run not found", f"neither {which} nor {runs / which}", _other(runs))


def _last(runs: Path) -> Path:
    """Return the results of the newest run that has ended and of which a job has run.

    The name begins with the time, to the second.
    """
    found = [path for path in runs.glob(f"*/{RESULTS}") if path.is_file()] if runs.is_dir() else []
    if not found:
        raise RocmlabError(
            "--compare last: no earlier run found",
            f"{runs} has none that ended",
            "omit --compare the first time",
        )
    newest = sorted(found, key=lambda path: (path.parent.name[:16], path.stat().st_mtime), reverse=True)
    return next((path for path in newest if not _is_empty(path)), newest[0])


def _is_empty(results: Path) -> bool:
    """Return whether none of a run's jobs has run; False where that cannot be read, which is then reported."""
    try:
        jobs = json.loads(results.read_text(encoding="utf-8"))["jobs"]
        return all(job["status"] == "not run" for job in jobs)
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return False


def _other(runs: Path) -> str:
    return f"choose one of `ls {runs}`, or omit --compare"


def _check(found: object, path: Path, runs: Path) -> None:
    """Refuse what is not the `results.json` of a run, or is that of a newer rocmlab."""
    if isinstance(found, dict) and isinstance(found.get("schema"), int) and found["schema"] > SCHEMA_VERSION:
        why = f"its schema is {found['schema']}, and this one reads up to {SCHEMA_VERSION}"
        raise RocmlabError(f"{path} is of a newer rocmlab", why, "update rocmlab, or omit --compare")
    try:
        records.check(found, _Results, "it")
        if safe.is_deeper(found, MAX_LEVELS):
            raise ValueError(f"it is nested deeper than {MAX_LEVELS} levels")
    except ValueError as err:
        raise RocmlabError(f"{path} is not the {RESULTS} of a run", str(err), _other(runs)) from err


def _pairs(then: Sequence[Job], now: Sequence[Job]) -> Iterator[Pair]:
    """Yield jobs of the same notebook and parameters, defaults included; those of this run first, in their order.

    A notebook is the same by its path, else by its file name: in a container its path differs from the host's. Where
    several jobs are alike, the first goes with the first.
    """
    found: dict[int, int] = {}  # place in `now` -> place in `then`
    for file in (_path, _name):
        taken = set(found.values())
        free: dict[Hashable, deque[int]] = {}
        for place, job in enumerate(then):
            if place not in taken:
                free.setdefault((file(job), _effective(job)), deque()).append(place)
        for place, job in enumerate(now):
            if place not in found and (alike := free.get((file(job), _effective(job)))):
                found[place] = alike.popleft()
    yield from ((then[found[place]] if place in found else None, job) for place, job in enumerate(now))
    taken = set(found.values())
    yield from ((job, None) for place, job in enumerate(then) if place not in taken)


def _path(job: Job) -> str:
    return str(job["notebook"])


def _name(job: Job) -> str:
    return Path(job["notebook"]).name


def _effective(job: Job) -> str:
    return canonical(_plain(_values(job)))


def _values(job: Job) -> dict[str, Any]:
    """Return what the notebook ran with."""
    return {**job.get("defaults", {}), **job["parameters"]}


def _plain(value: Any) -> Any:  # noqa: ANN401  any JSON value
    """Return a value whose numbers are equal where Python's are: 1.0 is 1."""
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, dict):
        return {name: _plain(each) for name, each in value.items()}
    return [_plain(each) for each in value] if isinstance(value, list | tuple) else value


def _named(job: Job) -> dict[str, Any]:
    return {name: job[name] for name in ("name", "notebook", "parameters", "status")}


def _compared(then: Job | None, now: Job) -> dict[str, Any]:
    """Return one job: how it ends, takes and measures, each as [then, now]; None is unknown."""
    before, after = (_numbers(job) for job in (then, now))
    return {
        **_named(now),
        "outcome": _outcome(then, now),
        "statuses": [then["status"] if then else None, now["status"]],
        "seconds": [_seconds(then), _seconds(now)],
        "same_devices": then is not None and _devices(then) == _devices(now),
        "usage": _usage(then, now),
        "metrics": {name: [before.get(name), after.get(name)] for name in dict.fromkeys((*after, *before))},
    }


def _outcome(then: Job | None, now: Job) -> str:
    if then is None:
        return "new"
    if then["status"] == now["status"]:
        return "same"
    if "skipped" in (then["status"], now["status"]):
        return "other"
    return "mended" if now["status"] == "ok" else "broken" if then["status"] == "ok" else "other"


def _seconds(job: Job | None) -> float | None:
    """Return how long a job took; None unless it completed, for a failure may come at any time."""
    return job["seconds"] if job and job["status"] == "ok" and is_number(job["seconds"]) else None


def _usage(then: Job | None, now: Job) -> dict[str, list[float | None]]:
    """Return peak VRAM and energy as [then, now]; None unless the job completed, as of its time."""
    before, after = (used(job["devices"] if job and job["status"] == "ok" else []) for job in (then, now))
    return {name: [before[name], after[name]] for name in ("peak_vram_bytes", "energy_joules")}


def _numbers(job: Job | None) -> dict[str, float]:
    """Return the recorded numbers less those that repeat a parameter."""
    if job is None:
        return {}
    values = _values(job)
    return {name: value for name, value in numbers(job["recorded"]).items() if values.get(name) != value}


def _devices(job: Job) -> list[str]:
    """Return the products, not their numbers: two cards of a kind take the same time."""
    return sorted(canonical([device.get("backend"), device.get("name")]) for device in job["devices"])
