"""What a run says at its end: a table, each failure with its cell and its log, and where the files are."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from rocmlab.runner import words
from rocmlab.runner.jobs import Result
from rocmlab.runner.progress import STYLES, words_of_error
from rocmlab.runner.runs import Run

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

SHOWN_LINES = 6  # of a failing cell


def show(run: Run, console: Console) -> None:
    """Print the summary of a run."""
    console.print()
    console.print(_table(run))
    for result in run.results:
        if result.error is not None:
            console.print()
            console.print(_failure(run, result), soft_wrap=True)
        for warning in result.warnings:
            console.print(f"{result.name}: warning: {warning}", style="yellow", markup=False, soft_wrap=True)
    console.print()
    console.print(_totals(run), soft_wrap=True)


def _table(run: Run) -> Table:
    from rich import box
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, header_style="dim")
    table.add_column("notebook", style="bold", no_wrap=True)
    table.add_column("status", no_wrap=True)
    table.add_column("device", no_wrap=True)
    table.add_column("time", justify="right", no_wrap=True)
    table.add_column("cells", justify="right", no_wrap=True)
    table.add_column("recorded", overflow="fold")
    for result in run.results:
        device = words.device_label(result.devices) + (" SIMULATED" if result.simulated else "")
        cells = "" if result.cells_total is None else f"{result.cells_done}/{result.cells_total}"
        status = Text(result.status, style=STYLES.get(result.status, "red"))
        values = Text(words.recorded(result.recorded))
        table.add_row(Text(result.name), status, device, words.duration(result.seconds), cells, values)
    return table


def _failure(run: Run, result: Result) -> Text:
    from rich.text import Text

    error = result.error or {}
    cell = f" in cell {error['cell']} of {result.cells_total}" if error.get("cell") else ""
    text = Text.assemble((result.name, "bold"), " ", (result.status, STYLES.get(result.status, "red")), cell)
    source = error.get("source", "").splitlines()
    for line in source[:SHOWN_LINES]:
        text.append(f"\n  │ {line}", "dim")
    if len(source) > SHOWN_LINES:
        text.append("\n  │ …", "dim")
    text.append(f"\n  {words_of_error(result)}", "red")
    for label in ("why", "fix"):
        if error.get(label):
            text.append(f"\n    {label}: {error[label]}")
    if "log" in result.files:
        text.append(f"\n    log: {words.path(run.folder.path / result.files['log'])}")
    return text


def _totals(run: Run) -> Text:
    from rich.text import Text

    counts = Counter(result.status for result in run.results)
    text = Text()
    for status, count in counts.items():
        text.append(f"{count} {status}", STYLES.get(status, "red"))
        text.append(", ")
    text.append(f"{words.duration(run.seconds)} in all")
    if run.is_interrupted:
        text.append("; the run was interrupted", "yellow")
    return text.append(f"\nexecuted notebooks, HTML, logs, results.json: {words.path(run.folder.path)}")
