"""The page of `rocmlab record --html`: it has no script and loads nothing."""

from __future__ import annotations

import shlex
import time
from html import escape

from rocmlab.devices.recording import Recording, Summary, summarise
from rocmlab.devices.recording_plot import draw, legend

STYLE = """
:root { color-scheme: light dark; --ink: #1c2128; --soft: #57606a; --page: #fff; --line: #d9dde2; --idle: #7a5200; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e4e7eb; --soft: #9aa4af; --page: #14171b; --line: #343a42; --idle: #e8b95b; }
}
body { margin: 0 auto; max-width: 60rem; padding: 1.5rem; color: var(--ink); background: var(--page);
  font: 15px/1.5 system-ui, sans-serif; }
h1 { font-size: 1.3rem; overflow-wrap: anywhere; }
svg { width: 100%; max-width: 46rem; height: auto; } svg text { fill: var(--ink); }
table { border-collapse: collapse; margin: 1rem 0; }
th, td { padding: .3rem .9rem .3rem 0; text-align: right; border-bottom: 1px solid var(--line); }
th:first-child, td:first-child { text-align: left; }
.soft { color: var(--soft); }
.simulated { color: var(--idle); border: 1px solid; border-radius: .3em; padding: 0 .4em; }
.key { display: inline-block; width: .8em; height: .8em; border-radius: .2em; margin: 0 .3em 0 1em; }
"""
CSP = "default-src 'none'; style-src 'unsafe-inline'"


def render(recording: Recording) -> str:
    """Return the page."""
    command = shlex.join(recording.command or ())
    began = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(recording.started))
    mark = ' <span class="simulated">SIMULATED</span>' if recording.simulated else ""
    code = "" if recording.exit_code is None else f", exit code {recording.exit_code}"
    keys = "".join(
        f'<span class="key" style="background:{colour}"></span><bdi>{escape(label)}</bdi>'
        for colour, label in legend(recording)
    )
    plot = draw(recording, f"use of the devices by {command}") or '<p class="soft">It was too short for a plot.</p>'
    rows = "".join(_row(one) for one in summarise(recording))
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{CSP}">'
        f'<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(command[:120])}</title><style>{STYLE}</style></head><body>"
        f'<h1><bdi>{escape(command)}</bdi>{mark}</h1><p class="soft">{began}{code}</p>'
        f"{plot}<p>{keys}</p>"
        "<table><thead><tr><th>device</th><th>seconds</th><th>mean busy</th><th>max busy</th><th>peak memory</th>"
        f"<th>mean power</th><th>energy</th></tr></thead><tbody>{rows}</tbody></table></body></html>\n"
    )


def _row(one: Summary) -> str:
    peak = None if one.peak_vram_bytes is None else one.peak_vram_bytes / 2**30
    cells = (
        _cell(one.seconds, "{:.1f}"),
        _cell(one.mean_busy_percent, "{:.0f} %"),
        _cell(one.max_busy_percent, "{:.0f} %"),
        _cell(peak, "{:.1f} GiB"),
        _cell(one.mean_power_watts, "{:.0f} W"),
        _cell(one.energy_joules, "{:.0f} J"),
    )
    return f"<tr><td><bdi>{escape(one.name)} {escape(one.device)}</bdi></td>{''.join(cells)}</tr>"


def _cell(value: float | None, form: str) -> str:
    return f"<td>{'' if value is None else form.format(value)}</td>"
