"""Which job has which number, and which jobs can share an array: laid out once, in `jobs.json`."""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from rocmlab import __version__
from rocmlab.base import files, formatting, private, safe
from rocmlab.base.errors import RocmlabError
from rocmlab.reports import compare
from rocmlab.runs.folder import PARTS, RunFolder, now
from rocmlab.runs.jobs import Job, name_uniquely, stem
from rocmlab.runs.outcome import entries, history, resume
from rocmlab.runs.spec import options as run_options
from rocmlab.runs.spec import parameters, requested
from rocmlab.runs.spec.preflight import jobs_of
from rocmlab.runs.spec.selection import is_list

FILE = "jobs.json"
COPIES = "notebooks"
MARGIN_SECONDS = 600.0  # on top of the notebook's own time: to start, to save, to convert
TIMES_EXPECTED = 3.0  # a job may take that many times what it took before


@dataclass(frozen=True)
class Group:
    """Jobs that ask for the same, with numbers that follow one another: an array cannot ask for different things."""

    gpus: int
    first: int  # the number of its first job
    count: int
    seconds: float | None  # that any of them may take; None: unknown


@dataclass(frozen=True)
class Layout:
    """What is written into `jobs.json`."""

    run: str
    share: str
    backend: str  # rocm, cuda or cpu
    retries: int
    groups: tuple[Group, ...]
    jobs: tuple[dict[str, Any], ...]  # in the order of their numbers

    def as_dict(self) -> dict[str, Any]:
        """Return it, ready for JSON."""
        return {"schema": 1, "rocmlab": __version__, "made": now(), **asdict(self)}

    def check_seen(self, who: str) -> None:
        """Check that the notebooks lie in the share.

        Args:
            who: sees nothing else, as the error says: "the pods see".

        Raises:
            RocmlabError: one is located elsewhere.
        """
        for job in self.jobs:
            if not Path(job["notebook"]).is_relative_to(self.share):
                raise RocmlabError(
                    f"{job['notebook']} is not in the share",
                    f"{who} {self.share} alone",
                    "--copy copies the notebooks; one that reads files next to it must be in the share",
                )


def read(folder: Path) -> Layout:
    """Return the layout of an exported run.

    Raises:
        RocmlabError: there is none, perhaps because the share is not here.
    """
    try:
        safe.check_folder(folder)
        found = json.loads((folder / FILE).read_text(encoding="utf-8"))
        groups = tuple(Group(**entries.check(each, entries.GROUP, "a group")) for each in found["groups"])
        names = ("run", "share", "backend", "retries")
        entries.check(found, entries.LAYOUT, "the layout", names)
        needed = tuple(entries.EXPORTED)
        jobs = [entries.check(each, entries.EXPORTED, f"jobs[{n}]", needed) for n, each in enumerate(found["jobs"])]
        return Layout(**{name: found[name] for name in names}, groups=groups, jobs=tuple(jobs))
    except FileNotFoundError as err:
        raise RocmlabError(
            f"{folder} is not an exported run",
            f"there is no {FILE} in it: no such run, or this machine does not have the share at the same path",
            "mount the share here as it is mounted where the run was exported",
        ) from err
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as err:
        raise RocmlabError(f"{folder / FILE} cannot be read", f"{type(err).__name__}: {err}", "export again") from err


def share_of(asked: argparse.Namespace) -> Path:
    """Return the share: where all machines of the site see the run."""
    return Path(asked.share or os.environ.get("ROCMLAB_SHARE") or "share").expanduser().absolute()


def plan(asked: argparse.Namespace, share: Path, backend: str) -> list[Job]:
    """Return the jobs with their keys, each with a number of GPUs, those that ask for the same together.

    Raises:
        RocmlabError: one of them cannot be run; a night in a queue is too late to learn of it.
    """
    requests = requested.of(asked, parameters.parse(asked.parameters))
    jobs = name_uniquely(jobs_of(requests))
    _check(jobs)
    counts = {job.name: _gpus(job, asked, backend) for job in jobs}
    jobs.sort(key=lambda job: counts[job.name])
    settled = [replace(job.request, name=job.name, gpus=counts[job.name]) for job in jobs if job.request]
    again = [replace(new, name=old.name) for new, old in zip(jobs_of(settled), jobs, strict=True)]
    _check(again)
    return again


def _check(jobs: Sequence[Job]) -> None:
    wrong = [job for job in jobs if job.problem]
    if wrong and wrong[0].problem:
        first = wrong[0].problem
        more = f" (and {len(wrong) - 1} more)" if len(wrong) > 1 else ""
        raise RocmlabError(f"{wrong[0].name}: {first.what}{more}", first.why, first.fix)


def _gpus(job: Job, asked: argparse.Namespace, backend: str) -> int:
    if asked.gpus == "none" or backend == "cpu":
        if job.gpus not in (None, 0, "all"):
            raise RocmlabError(
                f"{job.name} asks for {formatting.plural(int(job.gpus or 0), 'GPU')}",
                "this run is on the CPU",
                "--job-gpus 0",
            )
        return 0
    if job.gpus == "all":
        if asked.node_gpus is None:
            raise RocmlabError(
                f"{job.name} requests all GPUs", "the number of GPUs of a node is not known here", "--node-gpus 8"
            )
        return int(asked.node_gpus) if asked.node_gpus >= (job.min_gpus or 1) else 0
    return 1 if job.gpus is None else int(job.gpus)


def write(asked: argparse.Namespace, jobs: Sequence[Job], share: Path, backend: str) -> tuple[RunFolder, Layout]:
    """Make the run's folder, with its journal begun and its jobs laid out.

    Raises:
        RocmlabError: the share cannot be written.
        OSError: neither can the folder.
    """
    earlier = compare.load(asked.compare, share / "runs") if asked.compare else None
    expected = history.expected_seconds(list(jobs), share / "runs")
    folder = RunFolder.create(share, asked.name or name(asked, jobs))
    (folder.path / PARTS).mkdir(mode=private.folder_mode())
    if asked.copy:
        jobs = copied(jobs, folder.path / COPIES)
    layout = Layout(
        folder.path.name,
        str(share),
        backend,
        asked.retries,
        groups(jobs, asked.timeout, expected),
        tuple(_described(number, job, asked.timeout, expected) for number, job in enumerate(jobs)),
    )
    files.write_text(folder.path / FILE, files.to_json(layout.as_dict()) + "\n")
    described = [resume.described(job) for job in jobs]
    folder.log(
        "run started",
        run=folder.path.name,
        pid=os.getpid(),
        host=os.uname().nodename,
        slots=len(jobs),
        jobs=described,
        options=run_options.kept(asked, earlier),
    )
    folder.close()
    return folder, layout


def name(asked: argparse.Namespace, jobs: Sequence[Job]) -> str:
    """Return what a run is called that was given no name."""
    if len(jobs) == 1:
        return jobs[0].name
    notebooks = {job.notebook for job in jobs}
    if len(notebooks) == 1:
        return stem(notebooks.pop())
    return Path(asked.notebooks[0]).stem if len(asked.notebooks) == 1 and is_list(asked.notebooks[0]) else "notebooks"


def copied(jobs: Sequence[Job], folder: Path) -> list[Job]:
    """Copy each notebook once, and return the jobs that run the copies."""
    folder.mkdir(mode=private.folder_mode())
    places: dict[str, str] = {}
    made = []
    for job in jobs:
        if job.notebook not in places:
            target = folder / f"{len(places)}-{Path(job.notebook).name}"
            with open(job.notebook, "rb") as source, open(target, "wb", opener=private.create) as copy:
                shutil.copyfileobj(source, copy)
            places[job.notebook] = str(target)
        request = replace(job.request, notebook=places[job.notebook]) if job.request else None
        made.append(replace(job, notebook=places[job.notebook], request=request))
    keys = jobs_of([job.request for job in made if job.request])
    return [replace(job, key=each.key) for job, each in zip(made, keys, strict=True)]


def groups(jobs: Sequence[Job], timeout: float | None, expected: Mapping[str, float]) -> tuple[Group, ...]:
    """Return the groups of jobs that are in the order of their number of GPUs."""
    made: list[Group] = []
    for number, job in enumerate(jobs):
        count = job.gpus if isinstance(job.gpus, int) else 0
        limit = limit_seconds(job, timeout, expected)
        if made and made[-1].gpus == count:
            last = made[-1]
            longest = None if limit is None or last.seconds is None else max(limit, last.seconds)
            made[-1] = replace(last, count=last.count + 1, seconds=longest)
        else:
            made.append(Group(count, number, 1, limit))
    return tuple(made)


def limit_seconds(job: Job, timeout: float | None, expected: Mapping[str, float]) -> float | None:
    """Return how long a job may take, its start included; None where neither a limit nor an earlier run tells."""
    if limit := job.timeout_seconds or timeout:
        return limit + MARGIN_SECONDS
    if job.name in expected:
        return expected[job.name] * TIMES_EXPECTED + MARGIN_SECONDS
    return None


def _described(number: int, job: Job, timeout: float | None, expected: Mapping[str, float]) -> dict[str, Any]:
    return {
        "number": number,
        "name": job.name,
        "notebook": job.notebook,
        "sha256": hashlib.sha256(Path(job.notebook).read_bytes()).hexdigest(),
        "parameters": job.parameters,
        "kernel": job.kernel,
        "gpus": job.gpus,
        "vram_bytes": job.vram_bytes,
        "timeout_seconds": job.timeout_seconds or timeout,
        "expected_seconds": expected.get(job.name),
        "key": job.key,
    }
