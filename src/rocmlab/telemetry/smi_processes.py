"""The processes of `rocmlab smi`: which GPU, how much of it, and the notebook, job or container they belong to."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rocmlab.devices.processes import MIN_BYTES
from rocmlab.telemetry.smi_cells import GIB, UNKNOWN, number
from rocmlab.telemetry.smi_text import clean, cut, cut_start, pad, width

TYPE_CHECKING = False  # `typing` itself would cost milliseconds at each start
if TYPE_CHECKING:
    from rocmlab.telemetry.smi_cells import Row
    from rocmlab.telemetry.smi_text import Line, Span

TITLES = {"gpu": "GPU", "pid": "PID", "host": "host PID", "user": "user", "memory": "VRAM", "units": "CU%"}
AT_THE_LEFT = ("gpu", "user")
LEAVING = ("units", "user", "host")  # in this order where the screen is narrow
BELONGS = "belongs to"
MIN_BELONGS = 24
MIN_NAME = 12  # of what is kept of a name next to its state
SEPARATOR = " · "
MAX_USER = 12
NOT_SEEN = "another user or container"
LONG_IDLE_SECONDS = 600  # a kernel that holds memory and did nothing for that long is worth a look


def table(processes: Sequence[Row], devices: Sequence[Row], columns: int) -> list[Line]:
    """Return title and a line for each process, the largest of each GPU first; what no driver reports is omitted.

    Args:
        processes: `GpuProcess.as_dict()`.
        devices: all devices as `Device.as_dict()` with their `id`, in the order to show them in.
        columns: the width of the screen.
    """
    if not processes:
        is_limited = any(device["backend"] == "rocm" for device in devices)
        does = f"has {MIN_BYTES >> 20} MiB or more of" if is_limited else "uses"
        return [[(cut(f"no process {does} a GPU", columns), "dim")]]
    order = {device["id"]: place for place, device in enumerate(devices)}
    labels = {device["id"]: number(device) for device in devices}
    found = sorted(
        processes,
        key=lambda each: (order.get(each["device"], len(order)), -(each["vram_bytes"] or 0), each["pid"]),
    )
    differ = any(each["local_pid"] not in (None, each["pid"]) for each in found)
    is_seen = any(each["local_pid"] is not None for each in found)  # else the driver's numbers mean nothing here
    titles = TITLES if is_seen else {**TITLES, "pid": TITLES["host"]}
    rows = [_spans(each, labels, differ) for each in found]
    kept = [name for name in TITLES if name in ("gpu", "pid") or any(row[name] != UNKNOWN for row in rows)]
    sizes = {name: max([len(titles[name]), *(width(row[name][0]) for row in rows)]) for name in kept}
    gap = 1 if columns < 60 else 2
    for name in LEAVING:
        if sum(sizes.values()) + gap * len(sizes) + MIN_BELONGS > columns:
            sizes.pop(name, None)
    room = max(1, columns - sum(sizes.values()) - gap * len(sizes))
    space: Line = [(" " * gap, "")]
    title: Line = []
    for name, size in sizes.items():
        title += [(pad(titles[name], size, right=name not in AT_THE_LEFT), "dim"), *space]
    lines = [[*title, (cut(BELONGS, room), "dim")]]
    for row, process in zip(rows, found, strict=True):
        line: Line = []
        for name, size in sizes.items():
            line += [(pad(row[name][0], size, right=name not in AT_THE_LEFT), row[name][1]), *space]
        lines.append([*line, *belonging(process, room)])
    return lines


def _spans(process: Row, labels: Mapping[str, str], differ: bool) -> dict[str, Span]:
    """Return the content of every column; `differ`: this namespace counts processes otherwise than the driver."""
    memory, units = process["vram_bytes"], process["compute_units_percent"]
    is_guess = "~" if process["is_estimated"] else ""
    shown = process["local_pid"] if differ else process["pid"]
    return {
        "gpu": (labels.get(process["device"], clean(process["device"])), "bold"),
        "pid": UNKNOWN if shown is None else (f"{is_guess}{shown}", ""),
        "host": (str(process["pid"]), "") if differ else UNKNOWN,
        "user": (cut(clean(process["user"]), MAX_USER), "") if process["user"] else UNKNOWN,
        "memory": UNKNOWN if memory is None else (_size(memory), ""),
        "units": UNKNOWN if units is None else (f"{units:.0f}%", ""),
    }


def _size(count: int) -> str:
    return f"{count / GIB:.1f} GiB" if count >= GIB / 10 else f"{count / 2**20:.0f} MiB"


def belonging(process: Row, room: int) -> Line:
    """Return what a process belongs to, in at most `room` columns: of a path the end, of the state what fits."""
    owner = process["owner"] or {}
    name, is_path = _name(process, owner)
    states, level = _states(owner)
    beside = room - len(SEPARATOR)
    state = next((each for each in states if width(name) + width(each) <= beside), "")
    if not state and states and min(width(name), MIN_NAME) + width(states[-1]) <= beside:
        state = states[-1]
    left = room - (len(SEPARATOR) + width(state) if state else 0)
    line: Line = [((cut_start if is_path else cut)(name, left), "")]
    return [*line, (SEPARATOR, "dim"), (state, level)] if state else line


def _name(process: Row, owner: Row) -> tuple[str, bool]:
    """Return what names it, and whether that is a path."""
    if owner.get("notebook"):
        return clean(owner["notebook"]), True
    if owner.get("job"):
        return clean(owner["job"]), False
    program, space, arguments = (process["command"] or "").partition(" ")
    return clean(program.rpartition("/")[2] + space + arguments or process["name"] or NOT_SEEN), False


def _states(owner: Row) -> tuple[list[str], str]:
    """Return what else is known of the owner, from all of it to the least, and how urgent it is."""
    idle, level = owner.get("idle_seconds"), "dim"
    now = f"idle {_duration(idle)}" if idle is not None else clean(owner.get("kernel_state") or "")
    if idle is not None and idle >= LONG_IDLE_SECONDS:
        level = "warn"
    elif now == "busy":
        level = "good"
    kernel = f"kernel {clean(owner['kernel_name'])}" if owner.get("kernel_name") else ""
    job = f"job {clean(owner['job'])}" if owner.get("job") and owner.get("notebook") else ""
    run = f"run {clean(owner['run'])}" if owner.get("run") else ""
    container = f"container {clean(owner['container'])}" if owner.get("container") else ""
    kind = "job" if run or job else "container" if container else ""
    guess = "estimated" if owner.get("is_estimated") else ""
    forms = [
        (job, run, container, kernel, now, guess),
        (run, container, now, guess),
        (run or container, now, guess),
        (now or kind, guess),
        (now or kind or guess,),
    ]
    states = [", ".join(filter(None, form)) for form in forms]
    return [state for state in dict.fromkeys(states) if state], level


def _duration(seconds: float) -> str:
    if seconds < 60:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.0f} h"
