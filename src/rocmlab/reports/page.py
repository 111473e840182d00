"""`report.html`: rendering the template next to this file.

The page has no script and loads nothing, and tells the browser to enforce that, so that no name or output of a notebook
can run in it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

from rocmlab.base import formatting
from rocmlab.base.prices import Amount, Prices
from rocmlab.reports import NO_FAILURE, tables, values
from rocmlab.reports.failures import FORBIDDEN, Failure

NOISE = 0.05  # share by which VRAM and energy of the same work differ from run to run, readings being seconds apart
USAGE: tuple[tuple[str, str, Callable[[float], str]], ...] = (
    ("peak_vram_bytes", "peak VRAM", formatting.size),
    ("energy_joules", "energy", formatting.energy),
)
WHOLE_FAILURES = 40  # that are shown with cell, output and traceback, so that the page can be opened
FAILURES = 200  # that are shown at all; of the others the kind of error is shown
KINDS_OF_ERRORS = 12  # that are distinguished there
FILES = {"html": "notebook", "log": "log", "notebook": ".ipynb", "samples": "samples"}  # kind -> name of its link
OUTCOMES = {"broken": "broken", "mended": "fixed", "other": "different", "new": "new", "same": ""}

Job = Mapping[str, Any]  # of results.json


def render(results: Mapping[str, Any], failures: Mapping[str, Failure], uses: Sequence[Mapping[str, Any]] = ()) -> str:
    """Return the page for `results.json`, with what there is to read about each failed job, by its name.

    `uses` has a plot of the devices of each job that has samples.
    """
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"coloured": coloured, "link": link, "short": formatting.short}
    jobs = results["jobs"]
    prices = Prices(**found) if (found := results["run"].get("prices")) else None
    usage = _Usage(prices)
    failed, rows = _worst_first(jobs), _rows(jobs)
    seen = [*rows["shown"], *rows["folded"], *failed[:FAILURES]]
    text = environment.get_template("page.html.j2").render(
        formatting=formatting,
        run=results["run"],
        jobs=jobs,
        headline=headline(results),
        counts=Counter(job["status"] for job in jobs),
        simulated=_simulated(jobs),
        devices=_devices(jobs),
        versions={name: str(each) for name, each in results["versions"].items() if isinstance(each, str | int | float)},
        failed=[(job, failures.get(job["name"], Failure())) for job in failed[:FAILURES]],
        more_failed=_errors(failed[FAILURES:]),
        rows=rows,
        rows_shown=tables.ROWS,
        usage={job["name"]: usage.of(job) for job in seen},
        columns=usage.columns(jobs),
        gpus=values.gpu_totals(jobs),
        amount=usage.amount(jobs),
        uses=uses,
        unnamed={job["name"]: unnamed(job) for job in seen},
        attempts={job["name"]: attempts(job) for job in seen},
        groups=tables.describe(jobs),
        comparison=_comparison(results.get("comparison")),
        files=FILES,
        whole_failures=WHOLE_FAILURES,
    )
    return FORBIDDEN.sub("", text).replace("\x1b", "")


def headline(results: Mapping[str, Any]) -> str:
    """Return the outcome in a sentence."""
    jobs = results["jobs"]
    bad = sum(job["status"] not in NO_FAILURE for job in jobs)
    skipped = sum(job["status"] == "skipped" for job in jobs)
    if results["run"]["status"] == "interrupted":
        return f"Interrupted: {len(jobs) - bad} of {formatting.plural(len(jobs), 'notebook')} completed"
    if bad:
        return f"{bad} of {formatting.plural(len(jobs), 'notebook')} did not complete"
    if skipped:
        return f"{skipped} of {formatting.plural(len(jobs), 'notebook')} skipped, no failure"
    return "The notebook completed" if len(jobs) == 1 else f"All {len(jobs)} notebooks completed"


def link(name: str) -> str:
    """Return the address of a file in the run folder: never one outside of it, whatever its name."""
    return "./" + quote(name, safe="", errors="replace")


def coloured(text: str) -> object:
    """Return text as markup, escaped, with the colours of a terminal as classes."""
    from markupsafe import Markup, escape

    if "\x1b" not in text:
        return escape(text)
    from nbconvert.filters.ansi import ansi2html

    return Markup(ansi2html(text))  # ansi2html escapes what it is given


def _worst_first(jobs: Sequence[Job]) -> list[Job]:
    """Return the jobs with an error: those with a cell to look at, others that ran, those that could not run."""

    def order(job: Job) -> int:
        return 2 if job["status"] == "not run" else 0 if job["error"].get("cell") else 1

    return sorted((job for job in jobs if job["error"] is not None), key=order)


def _rows(jobs: Sequence[Job]) -> dict[str, Any]:
    """Return what the table of jobs shows, what it folds and how many it leaves out, so that the page can be opened.

    A table of many jobs shows those that did not complete, and folds the others.
    """
    if len(jobs) <= tables.ROWS:
        return {"shown": jobs, "folded": [], "left": 0}
    bad = sorted((job for job in jobs if job["status"] != "ok"), key=lambda job: job["status"] == "not run")
    shown = bad[: tables.ROWS]
    folded = [job for job in jobs if job["status"] == "ok"][: tables.ROWS]
    return {"shown": shown, "folded": folded, "left": len(jobs) - len(shown) - len(folded)}


def _errors(jobs: Sequence[Job]) -> dict[str, Any]:
    """Return how many ended with which error, the frequent ones first, and how many with another."""
    counts = Counter(formatting.error(job["error"]) for job in jobs)
    common = counts.most_common(KINDS_OF_ERRORS)
    return {"count": len(jobs), "errors": common, "other": len(jobs) - sum(count for _, count in common)}


def _devices(jobs: Sequence[Job]) -> str:
    """Return the products that ran notebooks, each once."""
    names = dict.fromkeys(str(device["name"]) for job in jobs for device in job["devices"])
    return ", ".join(names)


def _simulated(jobs: Sequence[Job]) -> str:
    """Return SIMULATED, before it the number of jobs where others were real; empty if none was."""
    flags = [job["simulated"] for job in jobs if job["status"] != "not run"]
    return ("SIMULATED" if all(flags) else f"{sum(flags)} SIMULATED") if any(flags) else ""


class _Usage:
    """What is known of how jobs used their devices, and what that costs."""

    COLUMNS = ("peak VRAM", "mean use", "GPU time", "energy", "costs")

    def __init__(self, prices: Prices | None) -> None:
        self._prices = prices

    def amount(self, jobs: Sequence[Job]) -> Amount | None:
        """Return what jobs cost; None without prices, and where nothing is known."""
        gpus = values.gpu_totals(jobs)
        return self._prices.amount(gpus.joules, gpus.seconds, gpus.is_whole) if self._prices else None

    def of(self, job: Job) -> dict[str, str]:
        """Return what is known, by column; GPU time, energy and amount with those of earlier attempts."""
        used, gpus, amount = values.used(job["devices"]), values.gpu_totals([job]), self.amount([job])
        busy, energy = used["mean_busy_percent"], formatting.energy(gpus.joules)
        found = {
            "peak VRAM": formatting.size(used["peak_vram_bytes"]),
            "mean use": "" if busy is None else f"{busy:.0f} %",
            "GPU time": formatting.duration(gpus.seconds),
            "energy": energy if gpus.is_whole or not energy else f"at least {energy}",
            "costs": "" if amount is None else str(amount),
        }
        return {name: text for name, text in found.items() if text}

    def columns(self, jobs: Sequence[Job]) -> list[str]:
        """Return which columns the table of jobs has: those of which something is known that no other column says."""
        found = {name for job in jobs for name in self.of(job)}
        if all(values.gpu_totals([job]).seconds in (None, job["seconds"]) for job in jobs):
            found.discard("GPU time")  # it is the job's time
        return [name for name in self.COLUMNS if name in found]


def unnamed(job: Job) -> str:
    """Return the parameters of a job that its name does not contain: `lr=0.01` is in `tune-lr=0.01`."""
    told = {
        name: value for name, value in job["parameters"].items() if f"{name}={formatting.value(value)}" in job["name"]
    }
    return formatting.parameters({name: value for name, value in job["parameters"].items() if name not in told})


def attempts(job: Job) -> list[dict[str, Any]]:
    """Return how a job that was retried ended before: `1st attempt: kernel died after 3 s on GPU 0`, its files."""
    found = []
    for number, before in enumerate(job.get("attempts") or [], 1):
        text = f"{formatting.ordinal(number)} attempt: {before.get('status', 'failed')}"
        if before.get("seconds") is not None:
            text += f" after {formatting.duration(before['seconds'])}"
        if before.get("devices"):
            text += f" on {formatting.device_label(before['devices'])}"
        text += f": {before['message']}" if before.get("message") else ""
        found.append({"text": text, "files": before.get("files") or {}})
    return found


def _comparison(comparison: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """Return the comparison with its changes as text."""
    if comparison is None:
        return None
    rows = rows_of(comparison)
    has_usage = any(row["usage"] for row in rows)
    if len(rows) > tables.ROWS:
        rows.sort(key=lambda row: row["outcome"] == "same")  # what ends otherwise is among those that are shown
    return {**comparison, "rows": rows, "headline": changes(comparison), "has_usage": has_usage}


def changes(comparison: Mapping[str, Any]) -> str:
    """Return in a sentence how many jobs end otherwise than in the earlier run."""
    counts = Counter(job["outcome"] for job in comparison["jobs"])
    parts = [f"{counts[name]} {OUTCOMES[name]}" for name in ("broken", "mended", "other", "new") if counts[name]]
    if comparison["gone"]:
        parts.append(f"{len(comparison['gone'])} gone")
    return ", ".join(parts) if parts else "every notebook ends as it did"


def rows_of(comparison: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return a row for each job of a comparison: name, statuses, time, and the recorded numbers that have moved."""
    return [
        {
            "name": job["name"],
            "outcome": job["outcome"],
            "status": " → ".join(dict.fromkeys(status for status in job["statuses"] if status)),
            "time": _moved(job["seconds"], formatting.duration),
            "note": "" if job["same_devices"] or job["outcome"] == "new" else "another device",
            "metrics": {
                name: _moved(pair, formatting.number) for name, pair in job["metrics"].items() if pair[0] != pair[1]
            },
            "usage": {
                label: _moved(pair, read)
                for name, label, read in USAGE
                if _has_moved(pair := job.get("usage", {}).get(name, (None, None)))
            },
        }
        for job in comparison["jobs"]
    ]


def _has_moved(pair: Sequence[float | None]) -> bool:
    """Whether a measured number has changed by more than the readings themselves do."""
    then, now = pair
    return then is not None and now is not None and abs(now - then) > NOISE * abs(then)


def _moved(pair: Sequence[float | None], read: Any) -> str:  # noqa: ANN401  from a number to text
    """Return `4.1 s → 3.9 s (-4.9 %)`; one side may be unknown."""
    then, now = pair
    if then is None and now is None:
        return ""
    if then is None or now is None:
        return f"was {read(then)}" if now is None else f"now {read(now)}"
    return f"{read(then)} → {read(now)} ({formatting.change(then, now)})"
