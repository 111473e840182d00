"""What `rocmlab smi` shows of one instant: as a screen, as JSON, as CSV. Nothing here reads hardware."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

from rocmlab.telemetry import smi_cells as cells
from rocmlab.telemetry import smi_processes, smi_table
from rocmlab.telemetry.smi_text import clean, cut, fit, line_width, wrap

TYPE_CHECKING = False  # `typing` itself would cost milliseconds at each start
if TYPE_CHECKING:
    from typing import Any

    from rocmlab.telemetry.smi_cells import Row
    from rocmlab.telemetry.smi_text import Line, Span

MIN_PROCESS_LINES = 4  # title and two processes are kept on a low screen, and the line that counts the others


@dataclass(frozen=True)
class View:
    """All devices at one instant, with the processes on them, as texts, numbers, None, lists and dicts."""

    time_seconds: float  # Unix time
    devices: Sequence[
        Row
    ]  # as `Device.as_dict()`, with `id` and `sample` (None: it could not be read) and energy_joules
    processes: Sequence[Row] | None  # as `GpuProcess.as_dict()`; None: unknown
    kernels: Sequence[Row] | None = None  # as the lab tells; None: it was not asked, or does not answer
    problems: Sequence[Row] = ()
    hung: Sequence[str] = ()  # ids of the devices whose driver does not answer
    simulated_root: str | None = None  # of a simulated host
    host: str = ""  # its name
    hidden: int = 0  # how many devices were not requested

    def as_dict(self) -> dict[str, Any]:
        """Return what `--json` prints."""
        return {
            "simulated": self.simulated_root is not None,
            "time_seconds": self.time_seconds,
            "devices": self.devices,
            "processes": self.processes,
            "kernels": self.kernels,
            "problems": self.problems,
        }


def screen(view: View, columns: int, rows: int | None = None) -> list[Line]:
    """Return the lines to show; where `rows` limits them, processes are omitted first."""
    gpus = [device for device in view.devices if device["backend"] != "cpu"]
    samples = {device["id"]: device.get("sample") or {} for device in view.devices}
    head = _head(view, columns)
    if gpus:
        head += smi_table.table(gpus, samples, columns, view.hung)
    else:
        head += [[(line, "")] for line in wrap(_only_cpu(view), columns)]
    is_cut = rows is not None
    problems = [line for problem in view.problems for line in _problem(problem, columns, is_cut=is_cut)]
    below = _processes(view, gpus, columns)
    if rows is not None:
        room = max(rows - len(head) - len(problems) - 1, MIN_PROCESS_LINES) if below else 0
        below = _shortened(below, room, "more processes", columns)
    lines = [*head, *([[], *below] if below else []), *problems]
    return lines if rows is None else _shortened(lines, rows, "more lines: the window is too low", columns)


def _head(view: View, columns: int) -> list[Line]:
    lines: list[Line] = []
    if view.simulated_root is not None:
        text = f" SIMULATED: read from {clean(view.simulated_root)}, not from this machine "
        lines.append([(cut(text, columns), "mark")])
    moment = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(view.time_seconds))
    facts: list[Span] = [("rocmlab smi", "bold"), (moment, "")]
    facts += [(clean(view.host), "")] if view.host else []
    facts += [(text, "") for text in _facts(view)]
    line: Line = []
    for fact in facts:
        more: Line = [("  ", ""), fact] if line else [fact]
        if line_width(line) + line_width(more) <= columns:
            line += more
    return [*lines, line]


def _facts(view: View) -> list[str]:
    """Return the facts shown once: the driver, and the load of the host."""
    gpus = [device for device in view.devices if device["backend"] != "cpu"]
    if not gpus:
        return []
    drivers = dict.fromkeys(clean(device["driver"]) for device in gpus if device.get("driver"))
    facts = [", ".join(drivers)] if drivers else []
    processor = _processor(view)
    if processor.get("busy_percent") is not None:
        facts.append(f"CPU {processor['busy_percent']:.0f}%")
    used, total = processor.get("gtt_used_bytes"), processor.get("gtt_total_bytes")
    if used is not None and total:
        facts.append(f"RAM {used / cells.GIB:.1f}/{total / cells.GIB:.1f} GiB")
    return facts


def _processor(view: View) -> Row:
    return next((device.get("sample") or {} for device in view.devices if device["backend"] == "cpu"), {})


def _only_cpu(view: View) -> str:
    """Return one sentence: no GPU was found, and what the CPU does."""
    device = next((device for device in view.devices if device["backend"] == "cpu"), None)
    if device is None:
        return "No device is selected."
    sample, facts = _processor(view), [clean(device["name"])]
    if device.get("compute_units"):
        facts.append(f"{device['compute_units']} cores")
    if sample.get("busy_percent") is not None:
        facts.append(f"busy {sample['busy_percent']:.0f}%")
    used, total = sample.get("gtt_used_bytes"), sample.get("gtt_total_bytes")
    if used is not None and total:
        facts.append(f"memory {used / cells.GIB:.1f} of {total / cells.GIB:.1f} GiB in use")
    return f"{'The CPU' if view.hidden else 'No GPU here, only the CPU'}: {', '.join(facts)}."


def _problem(problem: Row, columns: int, *, is_cut: bool) -> list[Line]:
    """Return a problem; its fix is not wrapped, so that it can be pasted, but where no line may be too long."""
    what = wrap(f"problem: {clean(problem['what'])}", columns, "", "  ")
    lines: list[Line] = [[], *([(text, "bad")] for text in what)]
    if problem["why"]:
        lines += [[(text, "")] for text in wrap(f"why: {clean(problem['why'])}", columns, "  ", "       ")]
    for turn, text in enumerate(problem["fix"].split("\n") if problem["fix"] else ()):
        begin = "       " if turn else "  fix: "
        wrapped = wrap(clean(text), columns, begin, "       ") if is_cut else [begin + clean(text)]
        lines += [[(part, "")] for part in wrapped]
    return [fit(line, columns) for line in lines] if is_cut else lines


def _processes(view: View, gpus: Sequence[Row], columns: int) -> list[Line]:
    if not gpus:
        return []
    if view.processes is None:
        return [[("what runs on the GPUs is not known", "dim")]]
    return smi_processes.table(view.processes, gpus, columns)


def _shortened(lines: list[Line], most: int, what: str, columns: int) -> list[Line]:
    """Return at most `most` lines; the last shows how many are omitted."""
    if len(lines) <= most:
        return lines
    kept = max(0, most - 1)
    return [*lines[:kept], [(cut(f"… {len(lines) - kept} {what}", columns), "dim")]]
