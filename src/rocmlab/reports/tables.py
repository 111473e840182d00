"""The recorded numbers of the notebooks as tables and plots, one group for each notebook."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rocmlab.base import formatting
from rocmlab.base.errors import Problem, RocmlabError
from rocmlab.reports import plots, values

COLUMNS = 12  # recorded numbers in a table; results.json has them all
ALL_PLOTS = 24  # of one page, shared by its notebooks
ROWS = 500  # of any table of the page, so that it can be opened; results.json has them all
ALL_ROWS = 1000  # of the tables of recorded numbers, shared by the notebooks of a run that has more jobs
LONG = 24  # rows of a table beyond which it is folded


def describe(jobs: values.Jobs) -> list[dict[str, Any]]:
    """Return what the template shows of each notebook that recorded numbers."""
    groups = [group for group in values.groups(jobs) if group.metrics]
    grids = sum(bool(group.varying) for group in groups)
    share = max(1, min(plots.PLOTS, ALL_PLOTS // max(1, grids)))
    rows = ROWS if len(jobs) <= ALL_ROWS else min(ROWS, max(LONG, ALL_ROWS // max(1, len(groups))))
    left, found = ALL_PLOTS, []
    for group in groups:
        found.append(_group(group, min(share, left), rows))
        left -= len(found[-1]["plots"])
    return found


def _group(group: values.Group, most: int, most_rows: int) -> dict[str, Any]:
    problem: Problem | None = None
    drawn: list[str] = []
    try:
        drawn = plots.draw(group, most)
    except RocmlabError as err:
        problem = err.problem
    except Exception as err:  # any error from a library with odd values: the table has the same numbers
        problem = Problem("plots could not be drawn", f"{type(err).__name__}: {err}", "")
    shown = group.metrics[:COLUMNS]
    rows = [
        {"job": job, "parameters": _parameters(job, group.varying), "cells": _cells(job, shown)}
        for job in group.jobs[:most_rows]
    ]
    means = _means(group, shown)
    return {
        "title": group.title,
        "varying": group.varying,
        "metrics": shown,
        "more": len(group.metrics) - len(shown),
        "rows": rows,
        "left": len(group.jobs) - len(rows),
        "means": means,
        "is_folded": len(rows) > LONG or bool(means and means["rows"]),
        "plots": drawn,
        "reading": plots.explain(group) if drawn else "",
        "problem": problem,
    }


def _parameters(job: Any, names: Sequence[str]) -> list[str]:  # noqa: ANN401  an entry of results.json
    given = job["parameters"]
    return [formatting.short(formatting.value(given[name])) if name in given else "" for name in names]


def _cells(job: Any, names: Sequence[str]) -> list[str]:  # noqa: ANN401
    found = values.numbers(job["recorded"])
    return [formatting.number(found[name]) if name in found else "" for name in names]


def _means(group: values.Group, metrics: Sequence[str]) -> dict[str, Any] | None:
    """Return a table with a row for each combination of what varies but for chance; None without chance."""
    if not group.chances:
        return None
    names = [name for name in group.varying if name not in group.chances]
    rows = []
    for members in values.by(group.jobs, names).values():
        good = [values.numbers(job["recorded"]) for job in members if job["status"] == "ok"]
        cells = []
        for metric in metrics:
            known = [numbers[metric] for numbers in good if metric in numbers]
            over = values.spread(known) if known else None
            cells.append(formatting.spread(over.mean, over.deviation) if over else "")
        rows.append(
            {"parameters": _parameters(members[0], names), "good": len(good), "all": len(members), "cells": cells}
        )
    return {"over": " and ".join(formatting.short(name) for name in group.chances), "names": names, "rows": rows}
