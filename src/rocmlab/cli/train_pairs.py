"""The notebooks of `rocmlab bench train --notebooks`: each once with the GPU pinned, and once with all GPUs hidden.

The runner makes the pairs, a run for each side; the table shows the device in its `results.json` that the
framework itself named. A result that was computed on the CPU is never a GPU's, whatever the job was pinned to.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

from rocmlab.base.errors import RocmlabError
from rocmlab.benchmarking.published import PUBLISHED
from rocmlab.devices import discover
from rocmlab.reports.values import used
from rocmlab.runs.scheduling.chosen import choose_gpus
from rocmlab.runs.spec import selection

Json = Mapping[str, Any]
WHEN = "published 2019-2022, other hardware"


@dataclass(frozen=True)
class Workload:
    """One notebook: how a short run of it is requested, and which published results are about the same."""

    prefix: str
    short: Mapping[str, Any]  # parameters: epochs enough that the first, which compiles, is omitted where it can be
    tables: tuple[str, ...]  # of `benchmarking.published`
    same: Mapping[str, Any] = field(default_factory=dict)  # parameters of a full run whose defaults go by the device

    @property
    def published(self) -> str:
        """What its article reported of GPUs."""
        return "; ".join(
            each.summary for each in PUBLISHED if each.table in self.tables and not each.device.endswith("CPU")
        )


WORKLOADS = (
    Workload("01_mnist_fc", {"epochs": 3}, ("fc",)),
    Workload("02_mnist_cnn", {"epochs": 3, "limit": 12_000}, ("cnn_backends", "cnn_devices")),
    Workload("06_segmentation_unet", {"quick": True}, ("unet",), {"size": 512}),
    Workload("07_bert_trec", {"quick": True}, ("bert_training", "bert_batches")),
)


def compare(*, full: bool, repeats: int, share: Path, say: Callable[[str], None]) -> dict[str, Any]:
    """Run the notebooks on both sides and return the comparison.

    Args:
        full: with their own defaults; else short.
        repeats: how often each side runs, the sides alternately.
        share: where the runs are kept.
        say: prints a line of progress.

    Raises:
        RocmlabError: none of the notebooks is here, or they cannot be run at all.
    """
    found = present(selection.notebooks_folder(os.environ))
    gpus = [gpu for gpu in choose_gpus(discover(), None, os.environ) if gpu.backend != "cpu" and not gpu.simulated]
    sides = {"gpu": "1", "cpu": "none"} if gpus else {"cpu": "none"}
    if not gpus:
        say("no GPU found: the notebooks run on the CPU alone, without a ratio")
    jobs: dict[str, list[Json]] = {side: [] for side in sides}
    names = ", ".join(one.prefix for one, _ in found)
    folders = []
    for number in range(repeats):
        for side, which in sides.items():
            say(f"notebooks on the {side.upper()}, {number + 1} of {repeats}: {names}")
            results = _run(found, which, side, full=full, share=share)
            folders.append(str(results["run"]["folder"]))
            jobs[side] += results["jobs"]
    return {
        "full": full,
        "repeats": repeats,
        "gpu": gpus[0].name if gpus else None,
        "published": WHEN,
        "runs": folders,
        "rows": [row(one, jobs) for one, _ in found],
    }


def present(folder: Path) -> list[tuple[Workload, Path]]:
    """Return those notebooks that are in the folder.

    Raises:
        RocmlabError: none is.
    """
    found = [(one, path) for one in WORKLOADS if (path := folder / f"{one.prefix}.ipynb").is_file()]
    if not found:
        names = ", ".join(one.prefix for one in WORKLOADS)
        raise RocmlabError(f"{folder} has none of the notebooks to compare", names, "set NOTEBOOKS_DIR to their folder")
    return found


def row(one: Workload, jobs: Mapping[str, Sequence[Json]]) -> dict[str, Any]:
    """Return what both sides of a notebook measured; `ratio` is how many times faster the GPU was, None without one."""
    sides = {
        side: _side(side, [job for job in of_side if Path(job["notebook"]).stem == one.prefix])
        for side, of_side in jobs.items()
    }
    times = [sides.get(side, {}).get("microseconds_per_sample") for side in ("cpu", "gpu")]
    ratio = round(times[0] / times[1], 2) if times[0] and times[1] else None
    return {"notebook": one.prefix, "sides": sides, "ratio": ratio, "published": one.published}


def _side(side: str, jobs: Sequence[Json]) -> dict[str, Any]:
    """Return the medians over the runs of one notebook on one side; `problem` explains why there are none."""
    problems = list(filter(None, (_problem(side, job) for job in jobs))) if jobs else ["it was not run"]
    known = [job["recorded"] for job in jobs if _computed_on(job, side)] if not problems else []
    times = [value for recorded in known if (value := recorded.get("microseconds_per_sample"))]
    joules = [value for job in jobs if (value := used(job["devices"])["energy_joules"]) is not None]
    accepted = known[-1].get("acceptance") or {} if known else {}
    return {
        "device": known[-1]["device"]["name"] if known else None,
        "backend": known[-1]["device"]["backend"] if known else None,
        "framework": known[-1].get("framework") if known else None,
        "microseconds_per_sample": median(times) if times else None,
        "spread": [min(times), max(times)] if len(times) > 1 else None,
        "seconds_per_epoch": _median(known, "seconds_per_epoch"),
        "quality": {"name": accepted.get("name"), "value": accepted.get("value")},
        "energy_joules": median(joules) if joules and known else None,
        "seconds": median(job["seconds"] for job in jobs) if known else None,
        "problem": problems[0] if problems else None,
    }


def _problem(side: str, job: Json) -> str | None:
    if job["status"] != "ok":
        error = job["error"] or {}
        return f"{job['status']}: {error.get('name', '')} {error.get('value', '')}".strip()[:300]
    if job["simulated"]:
        return "simulated, which is no measure of speed"
    if not _computed_on(job, side):
        where = (job["recorded"].get("device") or {}).get("name", "an unknown device")
        return f"it computed on {where}, which is not a result of a {side.upper()}"
    return None


def _computed_on(job: Json, side: str) -> bool:
    """Return whether the framework itself named a device of this side."""
    backend = (job["recorded"].get("device") or {}).get("backend")
    return backend is not None and (backend == "cpu") == (side == "cpu")


def _median(known: Sequence[Json], name: str) -> float | None:
    values = [recorded[name] for recorded in known if isinstance(recorded.get(name), int | float)]
    return median(values) if values else None


def _run(found: Sequence[tuple[Workload, Path]], which: str, side: str, *, full: bool, share: Path) -> Json:
    """Run the notebooks by `rocmlab run`, and return its results.json."""
    jobs = [
        {"notebook": str(path.resolve()), "parameters": dict(one.same if full else one.short)} for one, path in found
    ]
    with tempfile.TemporaryDirectory(prefix="rocmlab-bench-") as folder:
        listed = Path(folder, "notebooks.yaml")
        listed.write_text(json.dumps(jobs), encoding="utf-8")  # JSON is YAML
        command = [sys.executable, "-m", "rocmlab", "run", str(listed), "--gpus", which, "--name", f"bench-{side}"]
        done = subprocess.run(
            [*command, "--share", str(share), "--json"], stdout=subprocess.PIPE, text=True, check=False
        )
    try:
        results: Json = json.loads(done.stdout)
    except ValueError as err:
        raise RocmlabError(
            f"the notebooks were not run on the {side.upper()}",
            f"rocmlab run ended with {done.returncode}; its output is above",
            "fix that, or omit --notebooks",
        ) from err
    return results
