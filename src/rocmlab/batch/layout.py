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
from typing import Annotated, Any, TypedDict

from rocmlab import __version__
from rocmlab.base import files, formatting, private, records, safe
from rocmlab.base.errors import RocmlabError
from rocmlab.reports import compare
from rocmlab.runs.folder import PARTS, RunFolder, now
from rocmlab.runs.jobs import Job, name_uniquely
from rocmlab.runs.outcome import history, resume
from rocmlab.runs.spec import options as run_options
from rocmlab.runs.spec import parameters, requested
from rocmlab.runs.spec.preflight import jobs_of

FILE = "jobs.json"
COPIES = "notebooks"
MARGIN_SECONDS = 600.0  # on top of the notebook's own time: to start, to save, to convert
TIMES_EXPECTED = 3.0  # a job may take that many times what it took before


@dataclass(frozen=True)
class Group:
    """Jobs with the same requests and consecutive numbers: all tasks of an array have the same requests."""

    gpus: int
    first: int  # the number of its first job
    count: int
    seconds: float | None  # that any of them may take; None: unknown


class Exported(TypedDict):
    """What is needed of a job when it starts."""

    name: records.JobName
    notebook: records.FilePath
    kernel: str | None
    gpus: int
    key: str | None


@dataclass(frozen=True)
class Layout:
    """What is written into `jobs.json`."""

    run: records.FileName
    share: records.FilePath
    backend: Annotated[str, lambda value: value in ("rocm", "cuda", "cpu")]
    retries: int
    groups: tuple[Group, ...]
    jobs: tuple[Annotated[dict[str, Any], Exported], ...]  # in the order of their numbers

    def as_dict(self) -> dict[str, Any]:
        """Return it, ready for JSON."""
        return {"schema": 1, "rocmlab": __version__, "made": now(), **asdict(self)}

    def check_seen(self, who: str) -> None:
        """Check that the notebooks lie in the share; an error begins with who sees nothing else: "the pods see".

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
        RocmlabError: there is none, perhaps because the share is missing.
    """
    try:
        safe.check_folder(folder)
        found = records.check(json.loads((folder / FILE).read_text(encoding="utf-8")), Layout, "layout")
        own = {name: found[name] for name in ("run", "share", "backend", "retries")}
        return Layout(**own, groups=tuple(Group(**each) for each in found["groups"]), jobs=tuple(found["jobs"]))
    except FileNotFoundError as err:
        raise RocmlabError(
            f"{folder} is not an exported run",
            f"{FILE} is missing in it: no such run, or this machine does not have the share at the same path",
            "mount the share here as it is mounted where the run was exported",
        ) from err
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as err:
        raise RocmlabError(f"{folder / FILE} cannot be read", f"{type(err).__name__}: {err}", "export again") from err


def plan(args: argparse.Namespace, share: Path, backend: str) -> list[Job]:
    """Return the jobs with their keys, each with a number of GPUs, those with the same requests together.

    Raises:
        RocmlabError: one of them cannot be run; a night in a queue is too late to learn of it.
    """
    requests = requested.of(args, parameters.parse(args.parameters))
    jobs = name_uniquely(jobs_of(requests))
    _check(jobs)
    counts = {job.name: _gpus(job, args, backend) for job in jobs}
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


def _gpus(job: Job, args: argparse.Namespace, backend: str) -> int:
    if args.gpus == "none" or backend == "cpu":
        if job.gpus not in (None, 0, "all"):
            raise RocmlabError(
                f"{job.name} asks for {formatting.plural(int(job.gpus or 0), 'GPU')}",
                "this run is on the CPU",
                "--job-gpus 0",
            )
        return 0
    if job.gpus == "all":
        if args.node_gpus is None:
            raise RocmlabError(
                f"{job.name} requests all GPUs", "the number of GPUs per node is unknown", "--node-gpus 8"
            )
        return int(args.node_gpus) if args.node_gpus >= (job.min_gpus or 1) else 0
    return 1 if job.gpus is None else int(job.gpus)


def write(args: argparse.Namespace, jobs: Sequence[Job], share: Path, backend: str) -> tuple[RunFolder, Layout]:
    """Make the run's folder, with its journal begun and its jobs laid out.

    Raises:
        RocmlabError: the share cannot be written.
        OSError: neither can the folder.
    """
    earlier = compare.load(args.compare, share / "runs") if args.compare else None
    expected = history.expected_seconds(list(jobs), share / "runs")
    folder = RunFolder.create(share, run_options.name_of(args, jobs))
    (folder.path / PARTS).mkdir(mode=private.folder_mode())
    if args.copy:
        jobs = copied(jobs, folder.path / COPIES)
    layout = Layout(
        folder.path.name,
        str(share),
        backend,
        args.retries,
        groups(jobs, args.timeout, expected),
        tuple(_described(number, job, args.timeout, expected) for number, job in enumerate(jobs)),
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
        options=run_options.kept(args, earlier),
    )
    folder.close()
    return folder, layout


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
    """Return how long a job may take, its start included; None without a limit or an earlier run."""
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
