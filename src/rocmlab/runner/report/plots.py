"""Recorded numbers across a parameter grid, as SVG that takes the colours of the page around it."""

from __future__ import annotations

import io
import re
import warnings
from collections.abc import Mapping
from typing import Any

from rocmlab.errors import RocmlabError
from rocmlab.runner import words
from rocmlab.runner.report.failures import plain
from rocmlab.runner.report.values import Group, canonical, is_number, numbers

PLOTS = 6  # of one notebook; its table has them all
SERIES = 8  # lines that can be told apart; beyond that there are only points
WIDE_RANGE = 50  # largest over smallest value of a parameter from which on its axis is logarithmic
TICKS = 6  # values of a parameter that are each written below the axis
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
    "text.parse_math": False,  # a name with two dollar signs is no formula
}

Point = tuple[Any, float, bool]  # value of the parameter, of the metric, whether the job is ok


def draw(group: Group) -> list[str]:
    """Return one SVG for each recorded number that changes with the parameters of a notebook.

    Raises:
        RocmlabError: matplotlib is missing.
    """
    wanted = [name for name in group.metrics if _is_worth_a_plot(group, name)][:PLOTS] if group.varying else []
    if not wanted:
        return []
    try:
        import matplotlib
    except ImportError as err:
        raise RocmlabError(
            "there are no plots", "matplotlib is not installed beside rocmlab", "python -m pip install matplotlib"
        ) from err
    axis = _axis(group)
    with matplotlib.rc_context(STYLE), warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # of a character its own font lacks: the browser has another
        return [_draw(group, axis, name) for name in wanted]


def _is_worth_a_plot(group: Group, metric: str) -> bool:
    values = [found[metric] for job in group.jobs if metric in (found := numbers(job["recorded"]))]
    return len(values) > 1 and min(values) < max(values)


def _axis(group: Group) -> str:
    """Return the parameter along the axis: one of numbers before others, then the one with most values."""

    def order(name: str) -> tuple[bool, int]:
        values = [job["parameters"].get(name) for job in group.jobs]
        return all(is_number(value) for value in values), len({canonical(value) for value in values})

    return max(group.varying, key=order)


def _series(group: Group, axis: str, metric: str) -> dict[str, list[Point]]:
    """Return the points by what the other parameters are: `seed = 1, width = 64`."""
    others = [name for name in group.varying if name != axis]
    found: dict[str, list[Point]] = {}
    for job in group.jobs:
        value = numbers(job["recorded"]).get(metric)
        if value is None:
            continue
        label = ", ".join(f"{name} = {words.value(job['parameters'].get(name))}" for name in others)
        found.setdefault(label, []).append((job["parameters"].get(axis), value, job["status"] == "ok"))
    return found


def _draw(group: Group, axis: str, metric: str) -> str:
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure

    figure = Figure(figsize=(4.4, 2.9), layout="constrained")
    FigureCanvasSVG(figure)
    axes = figure.add_subplot()
    series = _series(group, axis, metric)
    positions = _scale(axes, [point[0] for points in series.values() for point in points])
    is_legible = len(series) <= SERIES
    handles = [
        _plot(axes, positions, points, COLOURS[number] if is_legible else COLOURS[0], is_legible)
        for number, points in enumerate(series.values())
    ]
    axes.set_title(plain(metric), loc="left", fontsize=10)
    axes.set_xlabel(plain(axis))
    axes.grid(axis="y", color=LINE, alpha=0.25, linewidth=0.6)
    if is_legible and len(series) > 1:
        # A label that begins with an underscore would be left out.
        labels = [" " + plain(label) for label in series]
        figure.legend(handles, labels, frameon=False, fontsize=8, loc="outside lower left", ncols=2)
    return _to_svg(figure, f"{group.title} {metric}")


def _scale(axes: Any, values: list[Any]) -> Mapping[str, float]:  # noqa: ANN401  matplotlib has no types
    """Prepare the axis, and return where each value of the parameter stands on it."""
    from matplotlib.ticker import NullLocator

    if all(is_number(value) for value in values):
        if min(values) > 0 and max(values) / min(values) >= WIDE_RANGE:
            axes.set_xscale("log")
            axes.xaxis.set_minor_locator(NullLocator())
        axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
        if len(set(values)) <= TICKS:
            axes.set_xticks(sorted(set(values)))
        return {canonical(value): value for value in values}
    names = {canonical(value): words.value(value) for value in values}
    axes.set_xticks(range(len(names)), [plain(name) for name in names.values()])
    axes.margins(x=0.15)
    return {key: number for number, key in enumerate(names)}


def _plot(axes: Any, positions: Mapping[str, float], points: list[Point], colour: str, is_line: bool) -> Any:  # noqa: ANN401
    """Draw one series: a dot for a job that is ok, a cross for another; return what the legend shows."""
    placed = sorted((positions[canonical(where)], value, is_ok) for where, value, is_ok in points)
    for mark, wanted in (("o", True), ("x", False)):
        chosen = [(x, y) for x, y, is_ok in placed if is_ok is wanted]
        axes.plot([x for x, _ in chosen], [y for _, y in chosen], mark, color=colour, markersize=5)
    xs, ys = [x for x, _, _ in placed], [y for _, y, _ in placed]
    return axes.plot(xs, ys, "-" if is_line else "", color=colour, linewidth=1.4, alpha=0.7)[0]


def _to_svg(figure: Any, salt: str) -> str:  # noqa: ANN401  a figure of matplotlib
    """Return the `svg` element alone; its ids are those that it needs, its own among all plots of the page."""
    import matplotlib

    text = io.StringIO()
    with matplotlib.rc_context({"svg.hashsalt": plain(salt)}):
        figure.savefig(text, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
    svg = text.getvalue()
    wanted = set(re.findall(r'(?:href="|url\()#([^")]+)', svg))
    return re.sub(ID, lambda found: found[0] if found[2] in wanted else found[1], svg[svg.index("<svg") :])
