"""How times, devices and recorded values read on the screen."""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

ANSI = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]")  # a colour or another sequence of a terminal
LABELS = {"rocm": "GPU", "cuda": "GPU", "metal": "GPU", "cpu": "CPU"}


def duration(seconds: float | None) -> str:
    """Return a time as `4.2 s`, `3:07` or `1:02:45`; empty if unknown."""
    if seconds is None:
        return ""
    if seconds < 60:
        return f"{seconds:.1f} s"
    return clock(seconds)


def clock(seconds: float) -> str:
    """Return a time as `0:07`, `3:07` or `1:02:45`."""
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def utc(moment: datetime) -> str:
    """Return a moment of UTC as ISO 8601 in seconds: `2026-11-26T05:00:00Z`."""
    return moment.isoformat(timespec="seconds").replace("+00:00", "Z")


def device_label(devices: Sequence[Mapping[str, Any]]) -> str:
    """Return the devices of a job in short: `CPU`, `GPU 1`, `GPU 0,1`, `GPU 0 on lab2` in a cluster."""
    if not devices:
        return ""
    label = LABELS.get(devices[0]["backend"], str(devices[0]["backend"]))
    numbers = [str(device["index"]) for device in devices if device["backend"] != "cpu" and device["index"] is not None]
    where = f" on {devices[0]['node']}" if devices[0].get("node") else ""
    return f"{label} {','.join(numbers)}".strip() + where


def recorded(values: Mapping[str, Any], limit: int = 3) -> str:
    """Return the recorded values a user looks for: `accuracy 0.9812  loss 0.06`, then other measurements."""
    if isinstance(values.get("skipped"), str):  # by `rocmlab.skip`
        return str(values["skipped"])
    shown = {name: value for name, value in values.items() if isinstance(value, int | float | str)}
    for name in ("simulated", "workload"):  # these are in other columns
        shown.pop(name, None)
    accepted = values.get("acceptance")  # what the notebook is judged by: name, value, threshold, ok
    if isinstance(accepted, Mapping) and isinstance(accepted.get("value"), int | float):
        shown = {str(accepted.get("name")): accepted["value"], **shown}
    first = sorted(shown, key=lambda name: _rank(name, shown[name]))[:limit]
    return "  ".join(f"{name} {_short(shown[name])}" for name in first)


def _rank(name: str, value: float | str) -> int:
    for rank, is_wanted in enumerate(("accuracy" in name, "loss" in name, isinstance(value, float))):
        if is_wanted:
            return rank
    return 4 if isinstance(value, str) else 3


def _short(value: float | str) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return number(value)
    text = str(value)
    return text if len(text) <= 24 else f"{text[:23]}…"


def number(value: float) -> str:
    """Return a number as it is read: `0.9812`, `1.2e-05`, `12700`."""
    if not isinstance(value, float):
        return str(value)
    return f"{value:.0f}" if 1000 <= abs(value) < 1e7 else f"{value:.4g}"


def value(of: object) -> str:
    """Return the value of a parameter in short: `0.01`, `adam`, `[1, 2]`."""
    if isinstance(of, str):
        return of
    if isinstance(of, float):
        return f"{of:g}"
    return json.dumps(of, ensure_ascii=False, default=str)


def short(text: str, longest: int = 60) -> str:
    """Return a text that a hostile name cannot fill a page with."""
    return text if len(text) <= longest else f"{text[: longest - 1]}…"


def spread(mean: float, deviation: float | None) -> str:
    """Return a mean with its standard deviation, both to the digit that means something: `0.981 ± 0.012`."""
    if deviation is None:
        return number(float(mean))
    if deviation == 0:
        return f"{number(float(mean))} ± 0"
    digits = 1 - math.floor(math.log10(deviation))  # two digits of the deviation
    if not 0 <= digits <= 6:
        return f"{number(float(mean))} ± {deviation:.2g}"
    return f"{mean:.{digits}f} ± {deviation:.{digits}f}"


def ordinal(count: int) -> str:
    """Return `1st`, `2nd`, `3rd`, `4th`."""
    ending = "th" if 10 <= count % 100 <= 20 else {1: "st", 2: "nd", 3: "rd"}.get(count % 10, "th")
    return f"{count}{ending}"


def parameters(values: Mapping[str, Any]) -> str:
    """Return parameters in one line: `lr=0.01, seed=1`."""
    return ", ".join(f"{name}={value(each)}" for name, each in values.items())


def size(count: float | None) -> str:
    """Return bytes as `512 MiB` or `11.2 GiB`; empty if unknown."""
    if count is None:
        return ""
    return f"{count / 2**30:.1f} GiB" if count >= 2**30 else f"{count / 2**20:.0f} MiB"


def amount(size_bytes: float) -> str:
    """Return bytes in the units of disks and downloads: `512 B`, `1.5 GB`."""
    for unit in ("B", "kB", "MB", "GB"):
        if size_bytes < 1000:
            return f"{size_bytes:.0f} {unit}" if unit == "B" else f"{size_bytes:.1f} {unit}"
        size_bytes /= 1000
    return f"{size_bytes:.1f} TB"


def energy(joules: float | None) -> str:
    """Return an energy as `830 J`, `41.2 Wh` or `2.66 kWh`; empty if unknown."""
    if joules is None:
        return ""
    if joules >= 3.6e6:
        return f"{joules / 3.6e6:.2f} kWh"
    return f"{joules / 3600:.1f} Wh" if joules >= 3600 else f"{joules:.0f} J"


def error(of: Mapping[str, Any] | None) -> str:
    """Return the `error` of a result in one line; empty if it has none."""
    if of is None:
        return ""
    name, text = str(of["name"]), (str(of["value"]).strip().splitlines() or [""])[0]
    if name in ("Problem", "Timeout", "Killed", "KernelDied"):
        return text
    return f"{name}: {text}" if text else name


def change(then: float, now: float) -> str:
    """Return how a number has changed: `+3.2 %`; the difference itself where there is nothing to divide by."""
    if then == now:
        return "="
    if not then:
        return f"{now - then:+.4g}"
    percent = 100 * (now - then) / abs(then)
    return f"{percent:+.1f} %" if abs(percent) >= 0.05 else f"{percent:+.1g} %"


def path(where: Path) -> str:
    """Return a path as short as it can be pasted: relative to here if it lies below."""
    relative = os.path.relpath(where)
    return str(where) if relative.startswith("..") else relative


def around(lines: Sequence[str], line: int, count: int) -> range:
    """Return which lines, from 0, to show of a text so that a line (from 1) is among them, with what is before it."""
    start = max(0, min(line - 1 - count // 2, len(lines) - count))
    return range(start, min(start + count, len(lines)))


def plural(count: int, word: str) -> str:
    """Return `1 notebook`, `2 notebooks`."""
    return f"{count} {word}" + ("" if count == 1 else "s")


def stem(notebook: str) -> str:
    """Return the file name of a notebook without `.ipynb`, which names its job."""
    return Path(notebook).name.removesuffix(".ipynb")


def aligned(rows: Sequence[Sequence[str]], heads: Sequence[str] = (), *, at_the_right: bool = False) -> list[str]:
    """Return rows of cells as lines, in columns below their heads; columns in which no row has anything are omitted.

    `at_the_right` puts all but the first column at their right edge, as for numbers.
    """
    kept = [column for column, cells in enumerate(zip(*rows, strict=True)) if any(cells)]
    listed = [*([heads] if heads else []), *rows]
    widths = {column: max(len(row[column]) for row in listed) for column in kept}
    return [
        "  ".join(
            row[column].rjust(width) if at_the_right and column != kept[0] else row[column].ljust(width)
            for column, width in widths.items()
        ).rstrip()
        for row in listed
    ]
