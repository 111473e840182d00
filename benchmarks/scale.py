"""What a run of 100,000 jobs on 1,000 nodes of eight GPUs costs the code that plans, keeps and shows it.

The GPUs and the times are synthetic, the code is the real one: nothing is executed, so all that is measured is ours.
Each measure has a process of its own, `python -m benchmarks.scale NAME`, so that its memory is its own.
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import resource
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

from rich.console import Console

from benchmarks.environment import write_notebook, write_specification
from benchmarks.synthetic import (
    GIB,
    GPUS,
    JOBS,
    NODE,
    NOTEBOOKS,
    cluster,
    durations,
    expected,
    fleet,
    queue,
    result,
    simulate,
    write_journal,
)
from rocmlab import reports
from rocmlab.devices import Sample, device_id
from rocmlab.runs.folder import RunFolder
from rocmlab.runs.jobs import Result, name_uniquely
from rocmlab.runs.outcome import history, report, resume
from rocmlab.runs.outcome.results import Run, versions
from rocmlab.runs.scheduling.plan import Before, longest_first, planned
from rocmlab.runs.screen import preview
from rocmlab.runs.spec.preflight import jobs_of

SYNCED_LINES = 1_000  # of a journal, each of which waits for the disk
EARLIER_JOBS = 40_000  # of a run whose times are read; `history` passes over a results.json that is too large
BROWSERS = ("chromium", "chromium-browser", "google-chrome")
STARTED = "2026-11-21T02:47:51.123Z"

Measured = dict[str, tuple[str, float]]  # by name: unit and value
T = TypeVar("T")


def measure_plan(jobs: int, gpus: int, share: Path) -> Measured:
    """Measure planning: the jobs in the order of their turn, and the places of a whole run on a cluster."""
    asked, slots = queue(jobs), cluster(gpus)
    seconds = durations(asked)
    known = expected(seconds)
    started, spent = _timed(lambda: sum(1 for _ in simulate(asked, slots, seconds, known)))
    _check(started == jobs, f"{started} of {jobs} jobs were placed")
    return {"plan_100k": ("s", spent), "plan_100k_memory": ("MB", _peak_megabytes())}


def measure_journal(jobs: int, gpus: int, share: Path) -> Measured:
    """Measure reading a journal to continue its run, and writing a line that the disk has."""
    asked = queue(jobs)
    seconds = durations(asked)
    ended = [result(job, number, seconds[job.name]) for number, job in enumerate(asked)]
    folder = RunFolder(share / "runs" / "20261121T024751Z-night")
    write_journal(folder, asked, ended)
    size = folder.journal_path.stat().st_size
    session, read = _timed(lambda: resume.read(folder))
    before, compared = _timed(lambda: resume.before(session, asked))
    _check(len(before.results) == sum(each.is_ok for each in ended), "the journal says something else")
    _, set_aside = _timed(lambda: resume.set_aside(folder, session, before))
    lines = min(jobs, SYNCED_LINES)
    _, synced = _timed(lambda: _log_ends(folder, ended[:lines]))
    folder.close()
    return {
        "journal_100k": ("s", read + compared),
        "journal_100k_size": ("MB", size / 1e6),
        "journal_100k_memory": ("MB", _peak_megabytes()),
        "journal_line": ("ms", synced / lines * 1e3),
        "set_aside_1k": ("s", set_aside),
    }


def _log_ends(folder: RunFolder, ended: Sequence[Result]) -> None:
    for each in ended:
        folder.log("job finished", job=each.name, key=None, result=each.as_dict())


def measure_report(jobs: int, gpus: int, share: Path) -> Measured:
    """Measure what is written at the end of a run, and opening its page in a browser where there is one."""
    asked = queue(jobs)
    seconds = durations(asked)
    folder = RunFolder(share / "runs" / "20261121T024751Z-night")
    folder.path.mkdir(parents=True)
    ended = [result(job, number, seconds[job.name]) for number, job in enumerate(asked)]
    run = Run(folder, ended, STARTED, 36_000.0, is_interrupted=False, slots=gpus, versions=versions())
    content, described = _timed(run.as_dict)
    _, saved = _timed(lambda: folder.save_results(content))
    _, reported = _timed(lambda: report.write(content, folder.path))
    sizes = {name: (folder.path / name).stat().st_size / 1e6 for name in ("results.json", reports.JUNIT, reports.HTML)}
    return {
        "report_100k": ("s", reported),
        "report_100k_size": ("MB", sizes[reports.HTML]),
        "junit_100k_size": ("MB", sizes[reports.JUNIT]),
        "results_100k": ("s", described + saved),
        "results_100k_size": ("MB", sizes["results.json"]),
        "report_100k_memory": ("MB", _peak_megabytes()),
        **_opened(folder.path / reports.HTML),
    }


def _opened(page: Path) -> Measured:
    """Return how long a browser takes until the page can be read, and of how many elements it is; nothing without."""
    program = os.environ.get("CHROMIUM") or next(filter(None, map(shutil.which, BROWSERS)), None)
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        return {}
    if program is None:
        return {}
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, headless=True, args=["--no-sandbox"])
        tab = browser.new_page(viewport={"width": 1280, "height": 860})
        _, spent = _timed(lambda: (tab.goto(page.as_uri()), tab.locator("h1").bounding_box()))  # needs the layout
        elements = tab.evaluate("document.querySelectorAll('*').length")
        browser.close()
    return {"report_100k_open": ("s", spent), "report_100k_elements": ("1", float(elements))}


def measure_preview(jobs: int, gpus: int, share: Path) -> Measured:
    """Measure what comes before a run: looking at its jobs, what earlier runs tell of their times, and a dry run."""
    notebooks = _write_notebooks(share / "work")
    requests = [
        replace(job.request, word=str(path), notebook=str(path))
        for number, job in enumerate(queue(jobs))
        if job.request and (path := notebooks[number % len(notebooks)])
    ]
    _write_earlier(share / "runs" / "20261120T024751Z-before", notebooks, jobs)
    asked, examined = _timed(lambda: name_uniquely(jobs_of(requests)))
    _check(not any(job.problem for job in asked), f"{next((job.problem for job in asked if job.problem), None)}")
    known, remembered = _timed(lambda: history.expected_seconds(asked, share / "runs"))
    _check(len(known) == jobs, "the earlier run was not read")
    slots = cluster(gpus)
    plan, made = _timed(lambda: [planned(job, slots, known, Before()) for job in longest_first(asked, known)])
    with open(os.devnull, "w", encoding="utf-8") as nowhere:
        _, shown = _timed(lambda: preview.show(plan, slots.count, Console(file=nowhere, width=160)))
    return {
        "preflight_100k": ("s", examined),
        "expected_100k": ("s", remembered),
        "preview_100k": ("s", made + shown),
        "preview_100k_memory": ("MB", _peak_megabytes()),
    }


def _write_notebooks(folder: Path) -> list[Path]:
    """Write notebooks with parameters, and the kernelspec that they name."""
    specification = {"argv": ["python"], "display_name": "torch", "language": "python"}
    write_specification(folder, "torch", specification)
    os.environ["JUPYTER_PATH"] = str(folder)
    sources = ["seed: int = 0\nlr: float = 0.1\ndevice: str = 'auto'", *(f"x = {number}" for number in range(8))]
    paths = [folder / f"train_{number:02}.ipynb" for number in range(NOTEBOOKS)]
    return [write_notebook(path, sources, "torch", tags=["parameters"]) for path in paths]


def _write_earlier(folder: Path, notebooks: Sequence[Path], jobs: int) -> None:
    """Write the results of an earlier run, about as large as its times are still read from."""
    earlier = [
        {**vars(result(job, number, 60.0 + number % 7)), "notebook": str(notebooks[number % len(notebooks)])}
        for number, job in enumerate(queue(min(jobs, EARLIER_JOBS)))
    ]
    folder.mkdir(parents=True)
    RunFolder(folder).save_results({"jobs": earlier})


def measure_metrics(jobs: int, gpus: int, share: Path) -> Measured:
    """Measure what a scrape of one exporter costs: of a node's GPUs, and of all that there are."""
    from rocmlab.telemetry import metrics
    from rocmlab.telemetry.model import Snapshot

    sample = Sample(time.time(), busy_percent=50.0, vram_used_bytes=GIB, vram_total_bytes=192 * GIB, power_watts=500.0)
    sample = replace(
        sample, edge_celsius=50.0, junction_celsius=60.0, memory_celsius=55.0, core_clock_hertz=2_100_000_000
    )
    metrics.exposition(Snapshot(time.time(), {}), [])  # imports
    found: Measured = {}
    for name, count in (("metrics_8", NODE), ("metrics_8000", gpus)):
        devices = fleet(count)
        snapshot = Snapshot(time.time(), {device_id(device): sample for device in devices})
        (page, _), spent = _timed(functools.partial(metrics.exposition, snapshot, devices))
        found |= {name: ("ms", spent * 1e3), f"{name}_size": ("MB", len(page) / 1e6)}
    return found


def _timed(work: Callable[[], T]) -> tuple[T, float]:
    """Return what a function returns, and how many seconds it took."""
    begin = time.perf_counter()
    value = work()
    return value, time.perf_counter() - begin


def _check(is_so: bool, why: str) -> None:
    if not is_so:
        raise RuntimeError(why)


def _peak_megabytes() -> float:
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / 1e6 if sys.platform == "darwin" else peak * 1024 / 1e6  # bytes there, KiB here


MEASURES: Mapping[str, Callable[[int, int, Path], Measured]] = {
    "plan": measure_plan,
    "journal": measure_journal,
    "report": measure_report,
    "preview": measure_preview,
    "metrics": measure_metrics,
}


def main(arguments: Sequence[str]) -> None:
    """Run one measure and print them as JSON."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.scale", description=__doc__)
    parser.add_argument("measure", choices=list(MEASURES))
    parser.add_argument("--jobs", type=int, default=JOBS)
    parser.add_argument("--gpus", type=int, default=GPUS)
    asked = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="rocmlab-bench-") as share:
        found = MEASURES[asked.measure](asked.jobs, asked.gpus, Path(share))
    sys.stdout.write(json.dumps(found) + "\n")


if __name__ == "__main__":
    main(sys.argv[1:])
