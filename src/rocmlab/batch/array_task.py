"""One element of an array: one job of an exported run, with the same code and the same files as in any run."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, BinaryIO

from rocmlab.base.errors import Problem, RocmlabError
from rocmlab.batch import layout
from rocmlab.batch.part import Part
from rocmlab.devices.visibility.masks import CUDA, HIP, ORDINAL, ROCR
from rocmlab.runs.folder import RunFolder
from rocmlab.runs.jobs import EXIT_CODES, Job, Request
from rocmlab.runs.outcome import resume
from rocmlab.runs.scheduling.placement import Slots, choose_gpus, free_vram, numbered
from rocmlab.runs.scheduling.plan import Before, Rules
from rocmlab.runs.spec import keys, selection
from rocmlab.runs.spec.preflight import jobs_of

OF_THE_NOTEBOOK = ("code", "inputs")  # parts of a key: what has changed there would be the result of something else
NO_LOCKS = (errno.ENOSYS, errno.ENOTSUP, errno.ENOLCK, errno.EINVAL)  # how a file system reports that it has none
LOCK_WAIT_SECONDS = 60.0  # for `collect`, which has the run for a moment
LOCK_POLL_SECONDS = 0.1


def run(path: Path, number: int) -> int:
    """Run one job of an exported run, unless it has ended well already, and return its exit code.

    0 ok, 1 the notebook failed, 2 it could not be run, 124 timeout, 137 killed, 138 its kernel died.

    Raises:
        RocmlabError: the run or job was not found, or another process runs this job, or continues the run, now.
    """
    path = path.expanduser().absolute()
    laid = layout.read(path)
    if not 0 <= number < len(laid.jobs):
        raise RocmlabError(
            f"job {number} not found",
            f"{path.name} has {len(laid.jobs)}, counted from 0",
            f"see {path / layout.FILE}",
        )
    described = laid.jobs[number]
    folder = RunFolder(path)
    session = resume.read(folder)
    entry = resume.entry_of(session, described["name"], folder)
    part = Part(path, entry.name)
    job = _job(replace(entry.request, name=entry.name, gpus=described["gpus"]), described["key"])
    with _working_on(path):
        part.lock()
        try:
            before = _before(part, job)
            if job.name in before.results:
                sys.stderr.write(f"{job.name} has already succeeded\n")
                return 0
            return _run(part, job, before, laid, session.options)
        finally:
            part.close()


def _job(request: Request, key: str | None) -> Job:
    """Return the job as its notebook is now; one that has changed since the export is not run."""
    request = resume.looked_for_again(request, selection.notebooks_folder(os.environ))
    job = replace(jobs_of([request])[0], name=request.name or request.word)
    if job.problem or not key or not job.key:
        return job
    pairs = zip(keys.PARTS, key.split(":"), job.key.split(":"), strict=False)
    changed = [part for part, then, now in pairs if part in OF_THE_NOTEBOOK and then != now]
    if not changed:
        return job
    what = f"its {' and '.join(changed)} changed since the export"
    return replace(job, problem=Problem(what, "the other jobs of this run are of what was exported", "export again"))


@contextlib.contextmanager
def _working_on(path: Path) -> Iterator[None]:
    """Keep others from continuing or collecting the whole run meanwhile, where the file system has locks.

    Raises:
        RocmlabError: another process does so now, and for longer than a moment.
    """
    with (path / "journal.jsonl").open("rb") as journal:
        _lock(journal, path.name)
        yield


def _lock(journal: BinaryIO, run: str) -> None:
    """Take the lock that all elements have together."""
    end = time.monotonic() + LOCK_WAIT_SECONDS
    while True:
        try:
            fcntl.flock(journal, fcntl.LOCK_SH | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            if time.monotonic() > end:
                raise RocmlabError(
                    f"the run {run} is still running",
                    "another process continues or collects it: `rocmlab run --resume`, or `rocmlab export collect`",
                    "wait for its end, or stop it with Ctrl-C where it runs; then submit this job again",
                ) from None
        except OSError as err:
            if err.errno not in NO_LOCKS:
                raise
            return
        time.sleep(LOCK_POLL_SECONDS)


def _before(part: Part, job: Job) -> Before:
    if not part.has_begun():
        return Before()
    session = resume.read(part)
    found = resume.before(session, [job])
    return found if job.name in found.results else resume.set_aside(part, session, found)


def _run(part: Part, job: Job, before: Before, laid: layout.Layout, options: Mapping[str, Any]) -> int:
    from rich.console import Console

    from rocmlab.devices import discover
    from rocmlab.runs.run import run
    from rocmlab.runs.scheduling.usage import Meters
    from rocmlab.runs.screen import progress
    from rocmlab.runs.workers.supervisor import Limits

    base = device_environment(os.environ, laid.backend)
    base |= {"ROCMLAB_SHARE": str(part.share), "ROCMLAB_ENGINE": "rocmlab"}
    os.environ.clear()  # the devices are looked for here, and in what this process starts, with these masks
    os.environ.update(base)
    devices = discover()
    gpus = choose_gpus(devices, None if job.gpus else "none", os.environ)
    is_mixed = bool(options.get("mixed"))
    slots = Slots(gpus, devices[-1], is_mixed=is_mixed, free_vram=free_vram, numbered=numbered)
    console, meters = Console(file=sys.stderr, highlight=False, width=160), Meters()
    with progress.display(console, 1, slots=slots.count, expected={}, meters=meters) as display:
        done = run(
            [job],
            folder=part,
            slots=slots,
            display=display,
            limits=Limits(options.get("timeout"), options.get("cell_timeout"), options.get("memory")),
            environment=os.environ,
            rules=Rules(0, False, "off"),
            meters=meters,
            before=before,
            options=options,
        )
    result = done.results[0]
    if result.error is not None and result.status == "not run":
        sys.stderr.write(f"error: {result.name}: {result.error['value']}\n")
    return EXIT_CODES["killed"] if result.exit_code is None else result.exit_code


def device_environment(base: Mapping[str, str], backend: str) -> dict[str, str]:
    """Return the environment in which the devices of this job are looked for.

    Slurm writes the same numbers into ROCR_VISIBLE_DEVICES and, on sites whose gres.conf names no vendor, into
    CUDA_VISIBLE_DEVICES and GPU_DEVICE_ORDINAL also. HIP would count the second within what the first has left: with
    GPU 1 alone it would find none. So only the first is believed on ROCm; the masks of the job's kernel are made from
    the devices that it leaves, as HIP_VISIBLE_DEVICES, by `rocmlab.devices.visibility`.
    """
    made = dict(base)
    if "SLURM_JOB_ID" in made and backend == "rocm" and made.get(ROCR):
        for variable in (CUDA, HIP, ORDINAL):
            if made.get(variable) == made[ROCR]:
                del made[variable]
    return made


def array_index(base: Mapping[str, str]) -> int | None:
    """Return the array index of this process; None without a scheduler."""
    for variable in ("SLURM_ARRAY_TASK_ID", "JOB_COMPLETION_INDEX"):
        text = base.get(variable, "")
        if text.isascii() and text.isdecimal():
            return int(text)
    return None
