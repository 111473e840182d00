"""What came of a run and of each of its jobs, as `results.json` has it."""

from __future__ import annotations

import logging
import platform
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib import metadata
from pathlib import Path
from typing import Any

from rocmlab import __version__
from rocmlab.base import files, live, prices
from rocmlab.base.errors import RocmlabError
from rocmlab.base.prices import Amount, Prices
from rocmlab.notebook import executed
from rocmlab.notebook.outcome import ERROR_NAMES, Executed, Outcome
from rocmlab.reports import SCHEMA_VERSION, compare, values
from rocmlab.runs.folder import RunFolder
from rocmlab.runs.jobs import EXIT_CODES, NO_FAILURE, Job, Result, Status, not_run
from rocmlab.runs.outcome import report
from rocmlab.runs.scheduling.place import Place
from rocmlab.runs.scheduling.usage import UNKNOWN
from rocmlab.runs.spec import keys

log = logging.getLogger("rocmlab")

SKIPPED = "Skipped"  # the error that `rocmlab.skip` raises


@dataclass
class Run:
    """What came of a run."""

    folder: RunFolder
    results: list[Result]
    started: str
    seconds: float
    is_interrupted: bool
    slots: int
    versions: dict[str, Any] = field(default_factory=dict)
    earlier: Mapping[str, Any] | None = None  # the run to compare with, by `compare.load`
    warnings: list[str] = field(default_factory=list)  # about the run as a whole
    notes: list[str] = field(default_factory=list)  # what was continued and why
    prices: Prices | None = None  # None: no amounts are shown

    @property
    def is_ok(self) -> bool:
        """Whether every notebook completed without an error, or was skipped with a reason."""
        return not self.is_interrupted and all(result.is_ok for result in self.results)

    @property
    def gpus(self) -> values.GpuTotals:
        """What all jobs took of GPUs."""
        return values.gpu_totals([vars(result) for result in self.results])

    @property
    def amount(self) -> Amount | None:
        """What the GPUs cost by the prices; None where there are none, or nothing is known."""
        gpus = self.gpus
        return self.prices.amount(gpus.joules, gpus.seconds, gpus.is_whole) if self.prices else None

    def as_dict(self) -> dict[str, Any]:
        """Return the content of `results.json`."""
        status = "interrupted" if self.is_interrupted else "ok" if self.is_ok else "failed"
        jobs, gpus = [result.as_dict() for result in self.results], self.gpus
        compared = {} if self.earlier is None else {"comparison": compare.compare(jobs, self.earlier)}
        return {
            "schema": SCHEMA_VERSION,
            "run": {
                "name": self.folder.path.name,
                "folder": str(self.folder.path),
                "status": status,
                "started": self.started,
                "seconds": round(self.seconds, 3),
                "slots": self.slots,
                "gpu_seconds": None if gpus.seconds is None else round(gpus.seconds, 3),
                "energy_joules": None if gpus.joules is None or not gpus.is_whole else round(gpus.joules, 1),
                **({} if self.prices is None else {"prices": vars(self.prices)}),
            },
            "versions": self.versions,
            "simulated": any(result.simulated for result in self.results),
            "jobs": jobs,
            **compared,
        }

    def save(self) -> None:
        """Write `results.json`, `report.html` and `junit.xml`; a report that cannot be made does not cost the results.

        Raises:
            OSError: the folder cannot be written.
        """
        try:
            self.prices = prices.parse(live.values())
        except RocmlabError as err:
            self.warnings.append(f"no amounts of money: {err.problem.what}: {err.problem.why}; {err.problem.fix}")
        results = self.as_dict()
        self.folder.remove_drafts()
        self.folder.save_results(results)
        if not self.folder.has_report:
            return
        try:
            report.write(results, self.folder.path)
        except OSError:
            raise
        except Exception as err:
            self.warnings.append(f"no report: {type(err).__name__}: {err}")


def result_of(
    folder: RunFolder, job: Job, place: Place, outcome: Outcome, attempts: Sequence[Mapping[str, Any]]
) -> Result:
    """Return the result of a job that has run, whatever its files contain."""
    try:
        return _result(folder, job, place, outcome, attempts)
    except Exception as err:
        log.debug("the files of %s cannot be read", job.name, exc_info=True)
        why = f"its files cannot be read: {type(err).__name__}: {err}"
        status: Status = "failed" if outcome.status == "ok" else outcome.status
        return replace(
            not_run(job),
            status=status,
            exit_code=EXIT_CODES[status],
            started=outcome.started,
            seconds=outcome.seconds,
            devices=identify(place),
            error={"name": "Error", "value": f"{outcome.message}; {why}" if outcome.message else why},
            warnings=outcome.warnings,
            attempts=[dict(each) for each in attempts],
        )


def _executed(folder: RunFolder, job: Job, outcome: Outcome) -> Executed | None:
    """Return what the executed notebook contains; one that its worker could not finish is repaired."""
    if outcome.notebook is not None:
        return outcome.notebook
    path = folder.file(job.name, "notebook")
    if outcome.message:  # it did not end by itself, or not well
        name = ERROR_NAMES.get(outcome.status, "Error")
        notebook = executed.repair(path, outcome.running_cell, name, outcome.message)
    else:
        notebook = executed.load(path)
    return executed.summarise(notebook) if notebook else None


def _result(
    folder: RunFolder, job: Job, place: Place, outcome: Outcome, attempts: Sequence[Mapping[str, Any]]
) -> Result:
    parsed = _executed(folder, job, outcome)
    unsafe = _secured(folder.file(job.name, "notebook"))
    error = parsed.error if parsed else None
    recorded = parsed.recorded if parsed else {}
    usage = outcome.usage or [UNKNOWN] * len(place.devices)
    status = outcome.status
    if status == "failed" and error is not None and error["name"] == SKIPPED and "skipped" in recorded:
        status, error = "skipped", None
    if error is None and status not in NO_FAILURE:
        error = {"name": ERROR_NAMES.get(outcome.status, "Error"), "value": outcome.message}
    return replace(
        not_run(job),
        status=status,
        exit_code=EXIT_CODES[status],
        started=outcome.started,
        seconds=None if outcome.seconds is None else round(outcome.seconds, 3),
        cells_done=parsed.cells_done if parsed else None,
        cells_total=parsed.cells_total if parsed else None,
        devices=[identity | used for identity, used in zip(identify(place), usage, strict=True)],
        recorded=recorded,
        error=error if status not in NO_FAILURE else None,
        files=folder.files(job.name),
        warnings=[*outcome.warnings, *(parsed.warnings if parsed else []), *unsafe],
        simulated=any(device.simulated for device in place.devices) or recorded.get("simulated") is True,
        attempts=[dict(each) for each in attempts],
    )


def _secured(notebook: Path) -> list[str]:
    """Have a notebook on the disk before the journal has its end; return a warning where that failed."""
    try:
        files.sync_file(notebook)
    except FileNotFoundError:  # it was never saved
        return []
    except OSError as err:
        return [f"its notebook may be lost in a power cut: {err.strerror}"]
    return []


def identify(place: Place) -> list[dict[str, Any]]:
    """Return a job's devices as its result and the journal name them."""
    names = ("backend", "index", "name", "gfx", "pci_address")
    where = {"node": place.node} if place.node else {}
    return [{name: getattr(device, name) for name in names} | where for device in place.numbered or place.devices]


def versions() -> dict[str, Any]:
    """Return what ran the notebooks: packages, Python, and the image's build record (None outside of an image)."""
    packages: dict[str, str | None] = {}
    for name in ("papermill", "nbclient", "nbconvert"):
        try:
            packages[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            packages[name] = None
    return {
        "rocmlab": __version__,
        **packages,
        "python": platform.python_version(),
        "platform": f"{platform.system()} {platform.release()} {platform.machine()}",
        "executable": sys.executable,
        "image": keys.image(),
    }
