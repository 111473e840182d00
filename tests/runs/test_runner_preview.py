"""The sum below the plan of a dry run: how many jobs run at the same time, and how long all may take."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from rocmlab.runs.screen import preview


def last_line(slots: int, *gpus: int, seconds: float | None = None) -> str:
    """Return what stands below the plan of jobs with this many GPUs each."""
    common = {"kernel": "torch", "note": None, "vram_bytes": None, "parameters": {}, "skipped": False, "problem": None}
    plan = [
        {"name": f"job-{at}", "gpus": count, "expected_seconds": seconds, **common} for at, count in enumerate(gpus)
    ]
    console = Console(file=io.StringIO(), width=200)
    preview.show(plan, slots, console)
    return console.file.getvalue().splitlines()[-1]


@pytest.mark.parametrize(
    ("slots", "gpus", "expected"),
    [
        (2, (2, 2), "2 jobs to run, one after another"),
        (4, (4, 1, 1), "3 jobs to run, 2 side by side"),
        (4, (1, 1, 1, 1, 1), "5 jobs to run, 4 side by side"),
        (4, (0, 0), "2 jobs to run, 2 side by side"),
        (1, (1, 1), "2 jobs to run, one after another"),
        (2, (2,), "1 job to run"),
        (2, (), "0 jobs to run"),
    ],
)
def test_jobs_run_side_by_side_only_where_their_gpus_suffice(slots: int, gpus: tuple[int, ...], expected: str) -> None:
    """Two jobs that take all GPUs each run one after another."""
    assert last_line(slots, *gpus) == expected


def test_the_expected_time_counts_the_devices_of_each_job() -> None:
    """Two jobs of a minute that take both GPUs need two minutes, and four that take one each as well."""
    assert last_line(2, 2, 2, seconds=60).endswith("about 2:00 by earlier runs")
    assert last_line(2, 1, 1, 1, 1, seconds=60).endswith("about 2:00 by earlier runs")
