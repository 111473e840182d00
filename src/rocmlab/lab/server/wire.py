"""What goes over the wire: JSON that every browser can read, and server-sent events made of it."""

from __future__ import annotations

import gzip
import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

from rocmlab.base.errors import Problem, RocmlabError

RETRY = b"retry: 2000\n\n"  # milliseconds until a page that lost us tries again
HEARTBEAT = b": alive\n\n"
PACKING = 3  # of 9; more makes it slower and hardly smaller


class WrongRequestError(RocmlabError):
    """The request itself is wrong."""


class UnknownKernelError(RocmlabError):
    """There is no such kernel."""


def to_json(value: Any) -> str:  # noqa: ANN401
    """Return JSON without NaN and infinities, which are none: they become null."""
    try:
        return json.dumps(value, allow_nan=False, separators=(",", ":"))
    except ValueError:
        return json.dumps(_finite(value), allow_nan=False, separators=(",", ":"))


def _finite(value: Any) -> Any:  # noqa: ANN401
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: _finite(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(each) for each in value]
    return value


def history_json(
    times: Mapping[str, Sequence[float]],
    series: Mapping[str, Mapping[str, Sequence[float | None]]],
    is_packed: bool,
) -> bytes:
    """Return times and series, by device, as JSON, perhaps compressed; it takes a second: not on the event loop.

    Values have six significant digits, which is what the 32-bit floats that they were kept as are good for, and times
    milliseconds: in full length they would be four times as many bytes.
    """
    instants = ",".join(
        f"{json.dumps(name)}:[{','.join(f'{each:.3f}' for each in all_of)}]" for name, all_of in times.items()
    )
    devices = []
    for name, metrics in series.items():
        lists = (
            f"{json.dumps(metric)}:[{','.join('null' if each is None else f'{each:.6g}' for each in values)}]"
            for metric, values in metrics.items()
        )
        devices.append(f"{json.dumps(name)}:{{{','.join(lists)}}}")
    data = f'{{"times":{{{instants}}},"series":{{{",".join(devices)}}}}}'.encode()
    return gzip.compress(data, PACKING) if is_packed else data


def event(name: str, value: Any) -> bytes:  # noqa: ANN401
    """Return a server-sent event. JSON has no line ends, so one `data` line holds it."""
    return f"event: {name}\ndata: {to_json(value)}\n\n".encode()


def problem_json(problem: Problem, check: str | None = None, status: str = "blocks") -> dict[str, Any]:
    """Return a problem as all views get it.

    Args:
        problem: what is wrong.
        check: the id of the doctor's check that found it.
        status: `blocks`, or `warns` where everything works, only worse.
    """
    return {"what": problem.what, "why": problem.why, "fix": problem.fix, "check": check, "status": status}


def failure(what: str, error: BaseException) -> dict[str, Any]:
    """Return an exception as a problem."""
    return problem_json(problem_of(what, error))


def problem_of(what: str, error: BaseException) -> Problem:
    """Return an exception as a Problem; a RocmlabError keeps its texts."""
    if isinstance(error, RocmlabError):
        return error.problem
    if isinstance(error, ImportError) and error.name and not error.name.startswith("rocmlab"):
        return Problem(what, f"the package {error.name} is not installed in the lab's environment", "make build")
    return Problem(what, f"{type(error).__name__}: {error}", "on the host: make doctor; the server's log: make logs")
