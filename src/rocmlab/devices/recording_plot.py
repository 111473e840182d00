"""A recording as a small plot: busy share, memory and power over time, a line for each device.

It is SVG made here and not by a plotting library, so that `rocmlab record` needs none, and a report of a hundred jobs
takes no minute.
"""

from __future__ import annotations

import html
from collections.abc import Sequence
from typing import NamedTuple

from rocmlab.devices.recording import Recording, memory_field, series

WIDTH, PANEL_HEIGHT, GAP, LEFT, TOP, BOTTOM = 440, 62, 16, 66, 8, 20  # pixels
POINTS = 240  # of a line; of more, means are drawn
LINE = "#808080"  # readable on white and on black
COLOURS = ("#3987e5", "#d9662b", "#2e9e6b", "#b0589e", "#b08a00", "#d6496b", "#4aa6b5", "#8a77d9")
GIBIBYTE = 2.0**30

Points = Sequence[tuple[float, float]]


class _Panel(NamedTuple):
    """One of the curves."""

    title: str
    field: str
    scale: float
    most: float | None  # upper end of its axis; None: what there is


BUSY = _Panel("busy %", "busy_percent", 1.0, 100.0)
VRAM = _Panel("VRAM GiB", "vram_used_bytes", GIBIBYTE, None)
MEMORY = _Panel("memory GiB", "", GIBIBYTE, None)  # that of each device which `memory_field` names
POWER = _Panel("power W", "power_watts", 1.0, None)


def draw(recording: Recording, title: str) -> str | None:
    """Return an `svg` element, or None where there are no two readings to draw a line between."""
    times = [float(one["time_seconds"]) for samples in recording.samples.values() for one in samples]
    if not times or max(times) <= min(times):
        return None
    begin, seconds = min(times), max(times) - min(times)
    panels, top = [], TOP
    memory = {device: memory_field(recording, device) for device in recording.samples}
    for panel in (BUSY, VRAM if set(memory.values()) == {VRAM.field} else MEMORY, POWER):
        lines = [
            [(moment - begin, value / panel.scale) for moment, value in series(samples, panel.field or memory[device])]
            for device, samples in recording.samples.items()
        ]
        if any(len(line) > 1 for line in lines):
            panels.append(_panel(panel, lines, seconds, top))
            top += PANEL_HEIGHT + GAP
    if not panels:
        return None
    height = top - GAP + BOTTOM
    axis = _text(LEFT, height - 5, "0 s") + _text(WIDTH - 4, height - 5, _duration(seconds), "end")
    return (
        f'<svg viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}" role="img" font-size="11" '
        f'font-family="sans-serif"><title>{html.escape(title)}</title>{"".join(panels)}{axis}</svg>'
    )


def _panel(panel: _Panel, lines: Sequence[Points], seconds: float, top: int) -> str:
    highest = max(value for line in lines for _, value in line)
    most = panel.most or _round_up(highest)
    bottom, width = top + PANEL_HEIGHT, WIDTH - LEFT - 4
    drawn = []
    for number, line in enumerate(lines):
        places = " ".join(
            f"{LEFT + moment / seconds * width:.1f},{bottom - min(1.0, max(0.0, value / most)) * PANEL_HEIGHT:.1f}"
            for moment, value in _thinned(line)
        )
        if places:
            colour = COLOURS[number % len(COLOURS)]
            drawn.append(f'<polyline points="{places}" fill="none" stroke="{colour}" stroke-width="1.4"/>')
    frame = f'<path d="M{LEFT} {top}V{bottom}H{WIDTH - 4}" fill="none" stroke="{LINE}" stroke-width="0.8"/>'
    name, unit = panel.title.rsplit(" ", 1)
    labels = (
        _text(LEFT - 5, top + 9, f"{most:g}", "end")
        + _text(LEFT - 5, bottom, "0", "end")
        + _text(2, top + 26, name)
        + _text(2, top + 40, unit)
    )
    return frame + "".join(drawn) + labels


def _thinned(line: Points) -> Points:
    """Return at most POINTS points: means of as many neighbours."""
    step = -(-len(line) // POINTS)
    if step < 2:
        return line
    parts = [line[first : first + step] for first in range(0, len(line), step)]
    return [(sum(at for at, _ in part) / len(part), sum(value for _, value in part) / len(part)) for part in parts]


def _round_up(value: float) -> float:
    """Return the next number that is easy to read, such as 1, 2, 5 or 10."""
    if value <= 0:
        return 1.0
    step = 10.0 ** (len(str(int(value))) - 1) if value >= 1 else 0.1
    return next(step * factor for factor in (1, 1.5, 2, 3, 4, 5, 6, 8, 10, 15, 20) if step * factor >= value)


def _text(x: float, y: float, text: str, anchor: str = "start") -> str:
    return f'<text x="{x}" y="{y}" fill="{LINE}" text-anchor="{anchor}">{html.escape(text)}</text>'


def _duration(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.0f} s" if seconds >= 10 else f"{seconds:.1f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


def legend(recording: Recording) -> list[tuple[str, str]]:
    """Return colour and label of each line."""
    return [
        (
            COLOURS[number % len(COLOURS)],
            f"{facts.get('name') or device} ({device})" if device != "cpu" else str(facts.get("name")),
        )
        for number, (device, facts) in enumerate(recording.devices.items())
    ]
