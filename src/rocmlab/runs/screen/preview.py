"""`rocmlab run --dry-run` and `--list`: what would run, in which order and for how long; and the runs of a share."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rocmlab.base import formatting, safe
from rocmlab.runs.scheduling.placement import gigabytes
from rocmlab.runs.screen.view import empty_table

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table


TIME_CHARACTERS = 19  # of an ISO time: to the second


def show(plan: Sequence[Mapping[str, Any]], slots: int, console: Console) -> None:
    """Print a plan: the table, what cannot run and why, and the sum."""
    console.print(_table(plan))
    for each in plan:
        if each["problem"]:
            lines = (
                f"{each['name']}: {each['problem']['value']}",
                *(f"  {name}: {each['problem'][name]}" for name in ("why", "fix")),
            )
            console.print("\n".join(lines), markup=False, soft_wrap=True)
        elif each.get("warning"):
            console.print(f"{each['name']}: warning: {each['warning']}", style="yellow", markup=False, soft_wrap=True)
    console.print(_sum(plan, slots), markup=False, soft_wrap=True)


def _sum(plan: Sequence[Mapping[str, Any]], slots: int) -> str:
    to_run = [each for each in plan if not each["problem"] and not each["skipped"]]
    known = [each["expected_seconds"] for each in to_run if each["expected_seconds"] is not None]
    occupied = itertools.accumulate(sorted(_devices(each) for each in to_run))
    together = sum(devices <= slots for devices in occupied)  # how many jobs run at the same time at most
    text = f"{formatting.plural(len(to_run), 'job')} to run"
    if len(to_run) > 1:
        text += f", {together} side by side" if together > 1 else ", one after another"
    if known:
        work = sum((each["expected_seconds"] or 0) * _devices(each) for each in to_run)
        guess = max(work / slots, *known)
        text += f"; about {formatting.duration(guess)} by earlier runs"
        if len(known) < len(to_run):
            text += f", and {formatting.plural(len(to_run) - len(known), 'job')} of unknown length"
    return text


def _devices(each: Mapping[str, Any]) -> int:
    """Return how many of the run's devices a job occupies; one on the CPU takes one job's part of the cores."""
    return max(1, each["gpus"] or 0)


def _table(plan: Sequence[Mapping[str, Any]]) -> Table:
    from rich.text import Text

    table = empty_table()
    for title in ("notebook", "kernel", "gets"):
        table.add_column(title)
    table.add_column("expected", justify="right", no_wrap=True)
    table.add_column("parameters", overflow="fold")
    for each in plan:
        values = Text(" ".join(f"{name}={formatting.value(value)}" for name, value in each["parameters"].items()))
        expected = formatting.duration(each["expected_seconds"])
        table.add_row(Text(each["name"], "bold"), Text(each["kernel"] or ""), _gets(each), expected, values)
    return table


def _gets(each: Mapping[str, Any]) -> Any:  # noqa: ANN401  a Text of rich, which is imported late
    from rich.text import Text

    if each["skipped"]:
        return Text("finished", "green")
    if each["problem"]:
        return Text("cannot run", "yellow")
    if not each["gpus"]:
        return Text(f"CPU: {each['note']}" if each.get("note") else "CPU")
    with_vram = f", {gigabytes(each['vram_bytes'])} each" if each["vram_bytes"] else ""
    return Text(formatting.plural(each["gpus"], "GPU") + with_vram)


def runs_table(runs: Sequence[Mapping[str, Any]]) -> Table:
    """Return the runs of a share as a table."""
    from rich.text import Text

    table = empty_table()
    for title in ("run", "started (UTC)", "status"):
        table.add_column(title, no_wrap=True)
    table.add_column("jobs")
    table.add_column("time", justify="right", no_wrap=True)
    styles = {"ok": "green", "running": "cyan", "exported": "cyan"}
    for run in runs:
        started = str(run["started"] or "")[:TIME_CHARACTERS].replace("T", " ")
        open_count = run["jobs"] - sum(run["counts"].values())
        counts = [f"{count} {status}" for status, count in run["counts"].items()]
        counts += [f"{open_count} open"] if open_count > 0 else []
        status = Text(run["status"], styles.get(run["status"], "red"))
        name = Text(safe.printable(run["name"]), "bold")
        table.add_row(name, started, status, Text(", ".join(counts)), formatting.duration(run["seconds"]))
    return table
