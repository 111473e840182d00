"""What took the time of a profiled cell: from the events of a trace to a table."""

from __future__ import annotations

import html
import json
import os
import re
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

from rocmlab.base import formatting
from rocmlab.telemetry.cost import elapsed

TYPE_CHECKING = False  # `typing` itself would cost milliseconds at each start
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from typing import Any, TextIO

GPU_CATEGORIES = ("kernel", "gpu_memcpy", "gpu_memset")  # of PyTorch's traces
NODE = re.compile(r"(?:EagerLocalExecute: |[^:\s]+:)(\w+)")  # of TensorFlow's on the CPU: `dense/MatMul:MatMul`
FUNCTION = "__inference_"  # whose operators are events of their own
SHOWN = 15
LONGEST = 72  # names of kernels have whole C++ templates
HEADS = ("name", "calls", "total ms", "share")
PERFETTO = "https://ui.perfetto.dev"
BEGIN = re.compile(r'"traceEvents"\s*:\s*\[')
BETWEEN = re.compile(r"[\s,]*")
CHUNK_LETTERS = 1_000_000
MAX_EVENTS = 2_000_000  # that the table is made of, some 300 MB: memory that the notebook needs itself


@dataclass
class Row:
    """One kernel or operator."""

    name: str
    calls: int = 0
    seconds: float = 0.0


def read(file: TextIO, letters: int = CHUNK_LETTERS) -> Iterator[Mapping[str, Any]]:
    """Yield the events of a trace in Chrome's format one by one: as a whole it may need more memory than there is."""
    text = chunk = file.read(letters)
    while chunk and not BEGIN.search(text):
        text += (chunk := file.read(letters))
    found = BEGIN.search(text)
    at, decode = found.end() if found else len(text), json.JSONDecoder().raw_decode
    while True:
        at = BETWEEN.match(text, at).end()  # type: ignore[union-attr]  # it matches any text
        if text[at : at + 1] == "]":
            return
        try:
            event, at = decode(text, at)
        except ValueError:
            if not (chunk := file.read(letters)):
                raise
            text, at = text[at:] + chunk, 0
            continue
        yield event


def summarise(events: Iterable[Mapping[str, Any]], most: int = MAX_EVENTS) -> tuple[bool, list[Row]]:
    """Return whether a GPU ran kernels, and a row for each kernel, or else for each operator of the CPU.

    Raises:
        ValueError: there are more of them than the table is made of.
    """
    names: dict[tuple[str, Any, Any], str] = {}
    gpu: list[tuple[str, float, float, str]] = []
    cpu: list[tuple[str, float, float, str]] = []
    for event in events:
        process, thread = event.get("pid"), event.get("tid")
        if event.get("ph") == "M" and event["name"] in ("process_name", "thread_name"):
            names[event["name"], process, None if event["name"] == "process_name" else thread] = event["args"]["name"]
        elif event.get("ph") == "X":
            place = names.get(("process_name", process, None), ""), names.get(("thread_name", process, thread), "")
            if len(gpu) + len(cpu) >= most:
                raise ValueError(f"the trace has more than {most:,} kernels and operators")
            timed = sys.intern(f"{process} {thread}"), float(event["ts"]), float(event.get("dur", 0))
            if event.get("cat") in GPU_CATEGORIES or ("/device:" in place[0] and place[1].startswith("Stream")):
                gpu.append((*timed, sys.intern(event["name"])))
            elif name := _operator(event):
                cpu.append((*timed, sys.intern(name)))
    return bool(gpu), _rows(gpu, nested=False) if gpu else _rows(cpu, nested=True)


def _operator(event: Mapping[str, Any]) -> str | None:
    """Return the operator of the CPU that an event is of; None if it is of none."""
    name = str(event["name"])
    if event.get("cat") == "cpu_op" or "hlo_op" in (event.get("args") or {}):
        return name
    node = None if "cat" in event else NODE.fullmatch(name)
    return node[1] if node and not node[1].startswith(FUNCTION) else None


def _rows(events: Sequence[tuple[str, float, float, str]], *, nested: bool) -> list[Row]:
    """Add up events by name, the longest first; of one that contains others only what is its own."""
    rows: dict[str, Row] = {}
    around: list[tuple[str, float, Row]] = []
    for thread, start, duration, name in sorted(events, key=lambda event: (event[0], event[1], -event[2])):
        row = rows.setdefault(name, Row(name))
        row.calls += 1
        row.seconds += duration / 1e6
        while around and (around[-1][0] != thread or around[-1][1] <= start):
            around.pop()
        if nested and around:
            around[-1][2].seconds -= duration / 1e6
        around.append((thread, start + duration, row))
    return sorted(rows.values(), key=lambda row: -row.seconds)


@dataclass(frozen=True, repr=False)
class Profile:
    """What a profiler saw of a cell. As a text it is a table."""

    framework: str
    wall_seconds: float
    is_gpu: bool  # False: no kernel of a GPU was seen, and the rows are the CPU's operators
    rows: Sequence[Row]
    path: Path  # of the trace

    def __str__(self) -> str:
        calls, milliseconds = sum(row.calls for row in self.rows), self._total * 1e3
        kind = "GPU kernels and copies" if self.is_gpu else "operators on the CPU, no GPU kernel seen"
        whole = f"{self.framework} · {elapsed(self.wall_seconds)}"
        return f"{whole} · {calls} {kind}: {milliseconds:.1f} ms"

    @property
    def _total(self) -> float:
        return sum(row.seconds for row in self.rows)

    def _cells(self) -> list[tuple[str, str, str, str]]:
        total = self._total or 1.0
        return [
            (row.name, str(row.calls), f"{row.seconds * 1e3:.2f}", f"{100 * row.seconds / total:.1f} %")
            for row in self.rows[:SHOWN]
        ]

    def _notes(self) -> list[str]:
        left = len(self.rows) - SHOWN
        is_hinted = self.framework != "rocprofv3" and shutil.which("rocprofv3")
        return [
            *([f"{formatting.plural(left, 'more name')} in the trace"] if left > 0 else []),
            *(["with each call of HIP, as a script of its own: %%profile_gpu rocprofv3"] if is_hinted else []),
        ]

    def __repr__(self) -> str:
        """Return the table, and where the trace is."""
        cells = [(_short(name), *others) for name, *others in self._cells()]
        table = formatting.aligned(cells, HEADS, at_the_right=True) if cells else []
        return "\n".join([str(self), *table, *self._notes(), f"trace: {self.path} (open it in {PERFETTO})"])

    def _repr_html_(self) -> str:
        """Return the same, with a link to the trace."""
        heads = "".join(f"<th>{name}</th>" for name in HEADS)
        rows = "".join(
            f'<tr><td style="text-align:left" title="{html.escape(name)}"><code>'
            f"{html.escape(_short(name))}</code></td>" + "".join(f"<td>{text}</td>" for text in others) + "</tr>"
            for name, *others in self._cells()
        )
        notes = "".join(f"{html.escape(note)}<br>" for note in self._notes())
        is_run = self.path.parent.name == os.environ.get("ROCMLAB_RUN")  # its executed notebook is in the same folder
        link = quote(self.path.name if is_run else os.path.relpath(self.path))
        return (
            f"<div><code>{html.escape(str(self))}</code><table><thead><tr>{heads}</tr></thead><tbody>{rows}</tbody>"
            f'</table>{notes}trace: <a href="{link}" download><code>{html.escape(str(self.path))}</code></a> (open it '
            f'in <a href="{PERFETTO}" target="_blank" rel="noopener">{PERFETTO}</a>)</div>'
        )


def _short(name: str) -> str:
    """Return a name without its middle: kernels of one template differ at the end."""
    name = name.removeprefix("void ")
    half = (LONGEST - 1) // 2
    return name if len(name) <= LONGEST else f"{name[:half]}…{name[-half:]}"
