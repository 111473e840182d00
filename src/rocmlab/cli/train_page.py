"""The page of `rocmlab bench train`: one file without a script that loads nothing, its plots made here as SVG."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from rocmlab.benchmarking.rows import span, text

Json = Mapping[str, Any]
CSP = "default-src 'none'; style-src 'unsafe-inline'"
WIDTH, LABELS, RIGHT, BAR, GAP, TOP = 860, 190, 100, 15, 16, 24  # pixels
COLOURS = ("#3987e5", "#d9662b")  # ours or the GPU, theirs or the CPU; readable on white and on black
STYLE = """
:root { color-scheme: light dark; --ink: #1c2128; --soft: #57606a; --page: #fff; --raised: #f5f6f8; --line: #d9dde2;
  --idle: #7a5200; --bad: #b3201f; }
@media screen and (prefers-color-scheme: dark) {
  :root { --ink: #e4e7eb; --soft: #9aa4af; --page: #14171b; --raised: #1d2126; --line: #343a42; --idle: #e8b95b;
    --bad: #ff8f8a; }
}
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 72rem; padding: 1.5rem; color: var(--ink); background: var(--page);
  font: 15px/1.5 system-ui, sans-serif; }
header { padding: 1.1rem 1.4rem; border-radius: .5rem; border-left: .4rem solid #3987e5; background: var(--raised); }
h1 { font-size: 1.5rem; line-height: 1.25; margin: 0 0 .3rem; } h2 { font-size: 1.15rem; margin: 2rem 0 .5rem; }
p { margin: .35rem 0; } .soft, small { color: var(--soft); font-size: .87rem; }
small { display: block; font-weight: 400; } td:nth-child(2) { min-width: 11rem; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; margin: .6rem 0; }
th, td { padding: .35rem .9rem .35rem 0; text-align: left; vertical-align: top; border-bottom: 1px solid var(--line); }
thead th { font-size: .82rem; font-weight: 500; color: var(--soft); white-space: nowrap; vertical-align: bottom; }
.number { text-align: right; white-space: nowrap; font-variant-numeric: tabular-nums; }
.ratio { font-weight: 600; } .bad { color: var(--bad); } .published { min-width: 13rem; }
.simulated { color: var(--idle); border: 1px solid; border-radius: .3em; padding: 0 .4em; font-weight: 700;
  font-size: .8rem; }
.key { display: inline-block; width: .8em; height: .8em; border-radius: .2em; margin: 0 .35em 0 1em; }
.key:first-child { margin-left: 0; }
figure { margin: .6rem 0; } svg { width: 100%; max-width: 54rem; height: auto; display: block; }
svg text { fill: var(--ink); font: 12px system-ui, sans-serif; } svg .tick { fill: var(--soft); font-size: 11px; }
svg line { stroke: var(--line); } svg .span { stroke: var(--ink); stroke-width: 1.2; }
footer { margin-top: 2rem; padding-top: .6rem; border-top: 1px solid var(--line); }
"""


def render(report: Json) -> str:
    """Return the page."""
    mark = ' <span class="simulated">SIMULATED</span>' if report["simulated"] else ""
    versions = " · ".join(f"{escape(name)} {escape(version)}" for name, version in report["versions"].items())
    notebooks = _notebooks(report["notebooks"]) if "notebooks" in report else ""
    when = escape(report["measured"].replace("T", " ").replace("Z", " UTC"))
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{CSP}">'
        f'<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>rocmlab bench train</title><style>{STYLE}</style></head><body>"
        f"<header><h1>Training on {escape(report['device'])}{mark}</h1><p class='soft'>{when} · {versions}</p></header>"
        f"{_rows(report)}{notebooks}"
        f'<footer class="soft">rocmlab bench train; how it is measured and repeated: docs/bench.md</footer>'
        f"</body></html>\n"
    )


def bars(rows: Sequence[tuple[str, Sequence[tuple[float | None, Sequence[float] | None, int]]]], unit: str) -> str:
    """Return horizontal bars as an `svg` element, on a logarithmic axis; empty where there is nothing to draw.

    Args:
        rows: a label, and for each of its bars the value, least and most or None, and the number of its colour.
        unit: of the values.
    """
    found = [
        limit
        for _, sides in rows
        for value, spread, _ in sides
        if value
        for limit in (value, *(spread or ()))
        if limit > 0
    ]
    if not found:
        return ""
    low, high = math.floor(math.log10(min(found)) - 0.05), math.ceil(math.log10(max(found)) + 0.05)
    room = WIDTH - LABELS - RIGHT

    def place(value: float) -> float:
        return LABELS + room * (math.log10(value) - low) / (high - low)

    parts, top = [], TOP
    for label, sides in rows:
        drawn = [side for side in sides if side[0]]
        middle = top + BAR * len(drawn) / 2
        parts.append(f'<text x="{LABELS - 10}" y="{middle + 4:.1f}" text-anchor="end">{escape(label)}</text>')
        for value, spread, colour in drawn:
            parts.append(_bar(place, value or 0.0, spread, colour, top))
            top += BAR
        top += GAP
    height = top + 6
    axis = [
        f'<line x1="{place(10.0**power):.1f}" y1="{TOP - 6}" x2="{place(10.0**power):.1f}" y2="{height - GAP}"/>'
        f'<text class="tick" x="{place(10.0**power):.1f}" y="{TOP - 10}" text-anchor="middle">{10.0**power:g}</text>'
        for power in range(low, high + 1)
    ]
    title = f'<text class="tick" x="0" y="{TOP - 10}">{escape(unit)}</text>'
    return (
        f'<svg viewBox="0 0 {WIDTH} {height}" role="img" aria-label="{escape(unit)}">{"".join(axis)}{title}'
        f"{''.join(parts)}</svg>"
    )


def _bar(place: Any, value: float, spread: Sequence[float] | None, colour: int, top: float) -> str:  # noqa: ANN401
    end, middle = place(value), top + BAR / 2 - 0.5
    reach = max(end, place(spread[1])) if spread else end
    span = ""
    if spread:
        span = (
            f'<line class="span" x1="{place(spread[0]):.1f}" y1="{middle}" x2="{place(spread[1]):.1f}" y2="{middle}"/>'
        )
    return (
        f'<rect x="{LABELS}" y="{top}" width="{max(1.0, end - LABELS):.1f}" height="{BAR - 2}" rx="2" '
        f'fill="{COLOURS[colour]}"/>{span}<text x="{reach + 6:.1f}" y="{middle + 4}">{text(value)}</text>'
    )


def _rows(report: Json) -> str:
    if not report["rows"]:
        return ""
    plot = bars(
        [
            (row["name"], ((row["ours"], row["spread"], 0), (row["theirs"], row["spread_theirs"], 1)))
            for row in report["rows"]
        ],
        "µs per sample, logarithmic",
    )
    cells = "".join(
        f"<tr><th scope='row'>{escape(row['name'])}<small>{escape(row['how'])}</small></th>"
        f"<td>{escape(row['device']['backend'])}: {escape(row['device']['name'])}"
        f"<small>{row['samples']:,} samples per epoch, batch {row['batch_size']}</small></td>"
        f"{_cell(row['ours'], row['spread'])}{_cell(row['theirs'], row['spread_theirs'])}"
        f"<td class='number ratio'>{row['ratio']:.2f}x</td>"
        f"<td class='number'>{row['accuracy']:.4f}<small>fit {row['accuracy_theirs']:.4f}</small></td>"
        f"<td class='number'>{row['seconds_compile']:.1f} s"
        f"<small>fit {row['seconds_compile_theirs']:.1f} s</small></td>"
        f"<td class='number'>{row['runs']}</td></tr>"
        for row in report["rows"]
    )
    skipped = "".join(
        f"<p class='soft'>{escape(n)}: not measured, {escape(w)}</p>" for n, w in report["skipped"].items()
    )
    skipped += "".join(f"<p>{escape(n)}: failed, {escape(p['what'])}</p>" for n, p in report["failed"].items())
    return (
        "<h2>One line instead of <code>fit</code></h2><p class='soft'>Equal fresh models on the same data, an epoch "
        "each alternately; medians, below them least and most. The first epoch, which compiles, is apart.</p>"
        f"<figure><figcaption>{_keys('fit_resident', 'fit')}</figcaption>{plot}</figure>"
        "<div class='wide'><table><thead><tr><th>row</th><th>device</th>"
        "<th class='number'>fit_resident<br>µs per sample</th><th class='number'>fit<br>µs per sample</th>"
        "<th class='number'>ratio</th><th class='number'>test<br>measure</th>"
        "<th class='number'>first<br>epoch</th><th class='number'>timed<br>epochs</th></tr></thead>"
        f"<tbody>{cells}</tbody></table></div>{skipped}"
    )


def _notebooks(notebooks: Json) -> str:
    rows = notebooks["rows"]
    plot = bars(
        [
            (
                row["notebook"],
                tuple(
                    (side["microseconds_per_sample"], side["spread"], 0 if name == "gpu" else 1)
                    for name, side in row["sides"].items()
                ),
            )
            for row in rows
        ],
        "µs per sample, logarithmic",
    )
    none = "" if notebooks["gpu"] else " No GPU was found, so ratios are missing."
    length = "at full length" if notebooks["full"] else "as short runs, so that compiling may be part of a result"
    keys = _keys(f"GPU ({notebooks['gpu']})", "CPU") if notebooks["gpu"] else _keys("", "CPU")
    return (
        f"<h2>The notebooks, GPU pinned, then hidden</h2><p class='soft'>Run {length}. The device is the one that the "
        f"framework named.{none}</p><figure><figcaption>{keys}</figcaption>{plot}</figure>"
        "<div class='wide'><table><thead><tr><th>notebook</th><th>device</th><th class='number'>µs per sample</th>"
        "<th class='number'>s per epoch</th><th class='number'>quality</th><th class='number'>energy</th>"
        f"<th class='number'>GPU : CPU</th><th>its article<br>{escape(notebooks['published'])}</th></tr></thead>"
        f"<tbody>{''.join(_notebook(row) for row in rows)}</tbody></table></div>"
    )


def _notebook(row: Json) -> str:
    ratio = "" if row["ratio"] is None else f"{row['ratio']:.2f}x"
    parts = []
    for number, (name, side) in enumerate(row["sides"].items()):
        span = len(row["sides"])
        first = f"<th scope='row' rowspan='{span}'>{escape(row['notebook'])}</th>" if not number else ""
        last = f"<td class='number ratio' rowspan='{span}'>{ratio}</td>" if not number else ""
        last += f"<td class='published' rowspan='{span}'>{escape(row['published'])}</td>" if not number else ""
        if side["problem"]:
            parts.append(
                f"<tr>{first}<td class='bad' colspan='5'>{name.upper()}: {escape(side['problem'])}</td>{last}</tr>"
            )
            continue
        quality, joules = side["quality"], side["energy_joules"]
        value = f"{quality['value']:.4f}" if isinstance(quality["value"], float) else ""
        energy = "" if joules is None else f"{joules:,.0f} J"
        parts.append(
            f"<tr>{first}<td>{escape(side['backend'])}: {escape(side['device'])}"
            f"<small>{escape(side['framework'] or '')}</small></td>"
            f"{_cell(side['microseconds_per_sample'], side['spread'])}{_cell(side['seconds_per_epoch'], None)}"
            f"<td class='number'>{value}<small>{escape(quality['name'] or '')}</small></td>"
            f"<td class='number'>{energy}</td>{last}</tr>"
        )
    return "".join(parts)


def _cell(value: float | None, spread: Sequence[float] | None) -> str:
    if value is None:
        return "<td></td>"
    below = f"<small>{span(spread)}</small>" if spread else ""
    return f"<td class='number'>{text(value)}{below}</td>"


def _keys(first: str, second: str) -> str:
    return "".join(
        f'<span class="key" style="background:{colour}"></span>{escape(label)}'
        for colour, label in zip(COLOURS, (first, second), strict=True)
        if label
    )
