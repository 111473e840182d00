"""Recorded numbers across a parameter grid, as SVG that takes the colours of the page around it."""

from __future__ import annotations

import io
import re
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

from rocmlab.base import formatting
from rocmlab.base.errors import RocmlabError
from rocmlab.reports.failures import plain
from rocmlab.reports.layout import Layout, Point, arrange, at_places, series
from rocmlab.reports.values import Group, canonical, is_number, numbers, spread

PLOTS = 6  # of one notebook; its table has them all
WIDE_RANGE = 50  # largest over smallest value of a parameter from which on its axis is logarithmic
TICKS = 6  # values of a parameter that are each written below the axis
WORDS = 12  # of which a value that is not a number is written, where there are more than TICKS
MANY = 240  # points of one plot beyond which only means are drawn, where there are means
LINE = "#808080"  # readable on white and on black; the page's style replaces it
COLOURS = ("#3987e5", "#d9662b", "#2e9e6b", "#b0589e", "#b08a00", "#d6496b", "#4aa6b5", "#8a77d9")
ID = re.compile(r'(<\w+) id="([^"]*)"')  # text has no `<`, so this finds elements only
STYLE = {
    "svg.fonttype": "none",  # text stays text
    "font.family": "sans-serif",
    "font.size": 9.0,
    "text.color": LINE,
    "axes.edgecolor": LINE,
    "axes.labelcolor": LINE,
    "axes.titlecolor": LINE,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "xtick.color": LINE,
    "ytick.color": LINE,
    "text.parse_math": False,  # a name with two dollar signs is not a formula
}


def draw(group: Group, most: int = PLOTS) -> list[str]:
    """Return an SVG for each recorded number that changes with the parameters of a notebook, of the first `most`.

    Raises:
        RocmlabError: matplotlib is missing.
    """
    wanted = [name for name in group.metrics if _is_worth_a_plot(group, name)][:most] if group.varying else []
    if not wanted:
        return []
    try:
        import matplotlib
    except ImportError as err:
        raise RocmlabError(
            "plots could not be drawn", "matplotlib is not installed with rocmlab", "python -m pip install matplotlib"
        ) from err
    layout = arrange(group)
    with matplotlib.rc_context(STYLE), warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # of a character its own font lacks: the browser has another
        return [_draw(group, layout, name) for name in wanted]


def _is_worth_a_plot(group: Group, metric: str) -> bool:
    values = [found[metric] for job in group.jobs if metric in (found := numbers(job["recorded"]))]
    return len(values) > 1 and min(values) < max(values)


def explain(group: Group) -> str:
    """Return how the plots of a group are to be read."""
    layout = arrange(group)
    dots = "A dot is a notebook that completed, a cross one that did not."
    if not layout.pooled:
        return dots
    over = " and ".join(formatting.short(name) for name in layout.pooled)
    return f"Lines and bars are means and standard deviations over {over}. {dots}"


def _draw(group: Group, layout: Layout, metric: str) -> str:
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure

    figure = Figure(figsize=(4.4, 2.9), layout="constrained")
    FigureCanvasSVG(figure)
    axes = figure.add_subplot()
    lines = series(group, layout, metric)
    where = [point.where for points in lines.values() for point in points]
    positions = _scale(axes, where)
    # There is nothing between two names or two seeds; their dots are side by side.
    is_joined = all(map(is_number, where)) and not layout.is_chance
    apart = 0.0 if all(map(is_number, where)) else min(0.14, 0.6 / len(lines))
    has_dots = not layout.pooled or len(where) <= MANY
    handles = []
    for number, points in enumerate(lines.values()):
        shift = apart * (number - (len(lines) - 1) / 2)
        shifted = {key: position + shift for key, position in positions.items()}
        style = {"color": COLOURS[number % len(COLOURS)], "markersize": 3.5 if layout.pooled else 5}
        if has_dots or not layout.pooled:
            _dots(axes, shifted, points, style, is_faint=bool(layout.pooled))
        handles.append(_means(axes, shifted, points, style, is_joined=is_joined, has_bars=bool(layout.pooled)))
    axes.set_title(_text(metric, 48), loc="left", fontsize=10)
    axes.set_xlabel(_text(layout.axis, 48))
    axes.grid(axis="y", color=LINE, alpha=0.25, linewidth=0.6)
    axes.ticklabel_format(axis="y", useOffset=False)
    if len(lines) > 1:
        _legend(figure, handles, [_text(label, 56) for label in lines])
    return _to_svg(figure, f"{group.title} {metric}")


def _legend(figure: Any, handles: list[Any], labels: list[str]) -> None:  # noqa: ANN401  matplotlib has no types
    columns = 2 if max(map(len, labels)) < 26 else 1
    labels = [f" {label}" for label in labels]  # one that begins with an underscore would be omitted
    figure.legend(handles, labels, frameon=False, fontsize=8, loc="outside lower left", ncols=columns)


def _text(text: str, longest: int) -> str:
    return formatting.short(" ".join(plain(text).split()), longest)


def _scale(axes: Any, values: list[Any]) -> Mapping[str, float]:  # noqa: ANN401  matplotlib has no types
    """Prepare the axis, and return the position of each value of the parameter."""
    from matplotlib.ticker import NullLocator

    if all(is_number(value) for value in values):
        if min(values) > 0 and max(values) / min(values) >= WIDE_RANGE:
            axes.set_xscale("log")
            axes.xaxis.set_minor_locator(NullLocator())
        axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
        if len(set(values)) <= TICKS:
            axes.set_xticks(sorted(set(values)))
        return {canonical(value): value for value in values}
    names = {canonical(value): _text(formatting.value(value), 18) for value in values}
    step = -(-len(names) // WORDS)  # so that no label covers another
    labels = [name if number % step == 0 else "" for number, name in enumerate(names.values())]
    is_crowded = sum(map(len, labels)) > 40
    slant = {"rotation": 40, "ha": "right", "rotation_mode": "anchor"} if is_crowded else {}
    axes.set_xticks(range(len(names)), labels, **slant)
    axes.margins(x=0.15 if len(names) < TICKS else 0.03)
    return {key: number for number, key in enumerate(names)}


Style = Mapping[str, Any]  # what matplotlib takes


def _dots(axes: Any, positions: Mapping[str, float], points: Sequence[Point], style: Style, *, is_faint: bool) -> None:  # noqa: ANN401
    """Draw a dot for each job that is ok, a cross for another."""
    for mark, is_ok in (("o", True), ("x", False)):
        chosen = sorted((positions[canonical(point.where)], point.value) for point in points if point.is_ok is is_ok)
        if chosen:
            faint = {"alpha": 0.45, "markeredgewidth": 0} if is_faint and is_ok else {}
            axes.plot([x for x, _ in chosen], [y for _, y in chosen], mark, **style, **faint)


def _means(
    axes: Any,  # noqa: ANN401
    positions: Mapping[str, float],
    points: Sequence[Point],
    style: Style,
    *,
    is_joined: bool,
    has_bars: bool,
) -> Any:  # noqa: ANN401
    """Draw what the good jobs of one line have in common at each place; return what the legend shows."""
    found = ((positions[key], spread(values)) for key, values in at_places(points).items())
    places = sorted(found, key=lambda place: place[0])
    xs, ys = [x for x, _ in places], [over.mean for _, over in places]
    if has_bars:
        bars = [over.deviation or 0.0 for _, over in places]
        axes.errorbar(xs, ys, bars, fmt="none", ecolor=style["color"], elinewidth=1, capsize=2)
    if is_joined:
        return axes.plot(xs, ys, "-", color=style["color"], linewidth=1.4, alpha=0.8)[0]
    return axes.plot(xs, ys, "_" if has_bars else "o", **{**style, "markersize": 8 if has_bars else 5})[0]


def _to_svg(figure: Any, salt: str) -> str:  # noqa: ANN401  a figure of matplotlib
    """Return the `svg` element alone; its ids are those that it needs, its own among all plots of the page."""
    import matplotlib

    text = io.StringIO()
    with matplotlib.rc_context({"svg.hashsalt": plain(salt)}):
        figure.savefig(text, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
    svg = text.getvalue()
    wanted = set(re.findall(r'(?:href="|url\()#([^")]+)', svg))
    return re.sub(ID, lambda found: found[0] if found[2] in wanted else found[1], svg[svg.index("<svg") :])
