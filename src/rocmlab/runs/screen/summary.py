"""The summary of a run: a table, each failure with its cell and its log, and where the files are."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from rocmlab import reports
from rocmlab.base import formatting
from rocmlab.runs.jobs import Result
from rocmlab.runs.outcome.results import Run
from rocmlab.runs.screen.view import STYLES, empty_table

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text


def show(run: Run, console: Console) -> None:
    """Print the summary of a run."""
    console.print()
    console.print(_table(run))
    compared = run.as_dict().get("comparison")
    if compared is not None:
        console.print(_comparison(compared))
    for results in _failures(run):
        console.print()
        console.print(_failure(run, results), soft_wrap=True)
    for warning, names in _warnings(run).items():
        who = names[0] if len(names) == 1 else f"{names[0]} and {len(names) - 1} more"
        console.print(f"{who}: warning: {warning}", style="yellow", markup=False, soft_wrap=True)
    for warning in run.warnings:
        console.print(f"warning: {warning}", style="yellow", markup=False, soft_wrap=True)
    for note in run.notes:
        console.print(note, markup=False, soft_wrap=True)
    console.print()
    console.print(_totals(run), soft_wrap=True)


def _warnings(run: Run) -> dict[str, list[str]]:
    """Return each warning once, with the names of the jobs that have it."""
    found: dict[str, list[str]] = {}
    for result in run.results:
        for warning in result.warnings:
            found.setdefault(warning, []).append(result.name)
    return found


def _table(run: Run) -> Table:
    from rich.text import Text

    table = empty_table()
    table.add_column("notebook", style="bold", no_wrap=True)
    table.add_column("status", no_wrap=True)
    table.add_column("device", no_wrap=True)
    table.add_column("time", justify="right", no_wrap=True)
    table.add_column("cells", justify="right", no_wrap=True)
    table.add_column("recorded", overflow="fold")
    for result in run.results:
        device = formatting.device_label(result.devices) + (" SIMULATED" if result.simulated else "")
        if result.attempts:
            device += f", attempt {len(result.attempts) + 1}"
        cells = "" if result.cells_total is None else f"{result.cells_done}/{result.cells_total}"
        status = Text(result.shown_status, STYLES.get(result.shown_status, "red"))
        values = Text(formatting.recorded(result.recorded))
        table.add_row(Text(result.name), status, device, formatting.duration(result.seconds), cells, values)
    return table


def _comparison(compared: Mapping[str, Any]) -> Table:
    """Return what has changed since an earlier run, one row for each notebook."""
    from rich.text import Text

    from rocmlab.reports import page

    simulated = " (SIMULATED)" if compared["simulated"] else ""
    title = Text(f"Compared with {compared['run']}{simulated}: {page.changes(compared)}")
    gone = ", ".join(job["name"] for job in compared["gone"])
    table = empty_table(
        title=title,
        title_justify="left",
        title_style="bold",
        caption=Text(f"not in this run: {gone}") if gone else None,
        caption_justify="left",
    )
    table.add_column("notebook", style="bold", no_wrap=True)
    table.add_column("status", no_wrap=True)
    table.add_column("time", no_wrap=True)
    table.add_column("recorded numbers that changed", overflow="fold")
    for row in page.rows_of(compared):
        style = {"broken": "red", "mended": "green"}.get(row["outcome"], "")
        time = "\n".join(filter(None, (row["time"], row["note"])))
        numbers = "\n".join(f"{name} {text}" for name, text in row["metrics"].items())
        status = row["status"] + (" new" if row["outcome"] == "new" else "")
        table.add_row(Text(row["name"]), Text(status, style), Text(time), Text(numbers))
    return table


def _failures(run: Run) -> list[list[Result]]:
    """Return the jobs that failed, those with the same error in one list."""
    groups: dict[tuple[object, ...], list[Result]] = {}
    for result in run.results:
        if result.error is not None:
            named = (str(result.error.get(name)) for name in ("name", "value", "why", "fix"))
            groups.setdefault((result.shown_status, *named), []).append(result)
    return list(groups.values())


def _failure(run: Run, results: list[Result]) -> Text:
    from rich.text import Text

    result, *others = results
    error = result.error or {}
    cell = f" in cell {error['cell']} of {result.cells_total}" if error.get("cell") else ""
    cell += f", line {error['line']}" if error.get("line") else ""
    status = (result.shown_status, STYLES.get(result.shown_status, "red"))
    text = Text.assemble((result.name, "bold"), " ", status, cell)
    for number, line in enumerate((error.get("source") or "").splitlines(), error.get("first_line") or 1):
        is_failing = number == error.get("line")
        text.append(f"\n  {'>' if is_failing else '│'} {line}", "" if is_failing else "dim")
    text.append(f"\n  {formatting.error(result.error)}", "red")
    for label in ("why", "fix"):
        if error.get(label):
            text.append(f"\n    {label}: {error[label]}")
    if "log" in result.files:
        text.append(f"\n    log: {formatting.path(run.folder.path / result.files['log'])}")
    if others:
        text.append(f"\n    the same error in {len(others)} more: {', '.join(map(_where, others))}")
    return text


def _where(result: Result) -> str:
    cell = (result.error or {}).get("cell")
    return f"{result.name} (cell {cell})" if cell else result.name


def _totals(run: Run) -> Text:
    from rich.text import Text

    counts = Counter(result.shown_status for result in run.results)
    text = Text()
    for status, count in counts.items():
        text.append(f"{count} {status}", STYLES.get(status, "red"))
        text.append(", ")
    text.append(f"{formatting.duration(run.seconds)} in all")
    if gpus := str(run.gpus):
        money = f", {run.amount}" if run.amount else ""
        text.append(f"; {gpus}{money}{' (SIMULATED)' if any(result.simulated for result in run.results) else ''}")
    if run.is_interrupted:
        text.append("; the run was interrupted", "yellow")
    text.append(f"\nreport: {formatting.path(run.folder.path / reports.HTML)}")
    return text.append(f"\nexecuted notebooks, HTML, logs, results.json: {formatting.path(run.folder.path)}")
