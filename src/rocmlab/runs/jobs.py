"""What a job is and how it ends: the types that every module of the runner shares."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple, TypedDict

from rocmlab.base import safe
from rocmlab.base.errors import Problem
from rocmlab.base.formatting import stem as stem
from rocmlab.base.records import FilePath, Files, JobName, Time
from rocmlab.notebook.outcome import Status as Status
from rocmlab.reports import NO_FAILURE as NO_FAILURE

if TYPE_CHECKING:
    from rocmlab.kernels.kernelspec import Kernelspec

EXIT_CODES: dict[Status, int] = {
    "ok": 0,
    "skipped": 0,
    "failed": 1,
    "timeout": 124,
    "killed": 137,
    "kernel died": 138,
}
Source = Literal["words", "yaml", "csv"]  # of the command line, or of a list
INTERRUPTED = "the run was interrupted"  # the error of a job that ran then
STOPPED = "it was stopped: "  # the beginning of the error of one that `--fail-fast` ended
USAGE = 2  # the exit code of a job that could not be run at all
MAX_NAME_BYTES = 180  # what is added to it must also fit into the 255 bytes of a file name


class Resources(NamedTuple):
    """What a job requests of its devices; the fields are those of `Job`."""

    gpus: int | Literal["all"] | None = None
    min_gpus: int | None = None
    vram_bytes: int | None = None  # of each GPU
    is_mixed: bool = False  # whether its GPUs may be of different products
    takes_gpus_from_ray: bool = False


@dataclass(frozen=True)
class Request:
    """A request from the user: an argument that names a notebook, and its options. None: not given."""

    word: FilePath  # as it was written
    notebook: FilePath | None = None  # absolute path; None where there is no such notebook
    parameters: dict[str, Any] = field(default_factory=dict)
    name: str | None = None
    kernel: FilePath | None = None
    gpus: int | Literal["all"] | None = None
    vram_bytes: int | None = None
    is_mixed: bool | None = None
    timeout_seconds: float | None = None
    problem: Problem | None = None  # why there is no such notebook
    source: Source = "words"  # where its parameters are written, so that an error can show what to write there

    def resources(self, own: Resources, kernel: int | Literal["all"] | None = None) -> Resources:
        """Return what the job requests of its devices: this, and for the rest what its notebook requests itself.

        Args:
            own: what the notebook requests.
            kernel: how many GPUs its kernelspec is for; None: no number of its own. A kernel that was asked for
                counts more than the notebook's number, and the notebook's own kernel less.
        """
        asked = self.gpus
        if asked is None and (self.kernel or own.gpus is None):
            asked = kernel
        return Resources(
            gpus=own.gpus if asked is None else asked,
            min_gpus=own.min_gpus if asked is None else None,
            vram_bytes=self.vram_bytes or own.vram_bytes,
            is_mixed=own.is_mixed if self.is_mixed is None else self.is_mixed,
            takes_gpus_from_ray=own.takes_gpus_from_ray and asked is None,
        )


@dataclass(frozen=True)
class Job:
    """One notebook with its parameters."""

    name: str  # unique in its run; the name of its files
    notebook: str  # absolute path, or what was requested where nothing has that name
    parameters: dict[str, Any] = field(default_factory=dict)
    kernel: str | None = None  # name of the kernelspec; None where the notebook could not be read
    kernelspec: Kernelspec | None = None  # as this machine has it; None where it is not known, or another's is meant
    gpus: int | Literal["all"] | None = None  # how many it asks for; None: one if there is one, else the CPU
    min_gpus: int | None = None  # of `all`: with fewer it gets the CPU; None: it waits for all, one or more
    takes_gpus_from_ray: bool = False  # on a cluster its workers have the GPUs, and the notebook itself has none
    vram_bytes: int | None = None  # which each of its GPUs must have; None: any
    is_mixed: bool = False  # whether its GPUs may be of different products
    timeout_seconds: float | None = None  # its own limit; None: the run's
    defaults: dict[str, Any] = field(default_factory=dict)  # of the notebook, where no parameter is given
    key: str | None = None  # same key, same result: what `--resume` goes by; None where it cannot be known
    problem: Problem | None = None  # why it cannot be run; None if it can
    warning: str | None = None  # about its kernel, for its log and its result
    request: Request | None = None  # what was requested; a continued run requests the same again
    # What is executed: its notebook as it was when the run began. None where it could not be read.
    content: str | None = field(default=None, repr=False)


def job_of(request: Request) -> Job:
    """Return a job as far as its request describes it; what its notebook adds is not in it."""
    asked = request.notebook or request.word
    return Job(
        name=stem(asked) if request.name is None else request.name,
        notebook=asked,
        parameters=request.parameters,
        kernel=request.kernel,
        gpus=request.gpus,
        vram_bytes=request.vram_bytes,
        timeout_seconds=request.timeout_seconds,
        problem=request.problem,
        request=request,
    )


class _Error(TypedDict):
    name: str
    value: str


class Error(_Error, total=False):
    """Why a job failed."""

    why: str | None  # of a problem before it ran
    fix: str | None
    source: str | None  # of the failing cell, a few lines
    cell: int | None  # counting code cells from 1
    cell_index: int | None  # in the executed notebook, from 0
    line: int  # of the cell, from 1
    first_line: int  # of the source, as a line of the cell


class Used(TypedDict):
    """A device that a job had; see `results.identify`."""

    backend: str
    index: int | None
    name: str


class Attempt(TypedDict, total=False):
    """How a job ended that was started again."""

    status: Status
    message: str
    started: Time | None
    seconds: float | None
    devices: list[Annotated[dict[str, Any], Used]]
    files: Files


@dataclass(frozen=True)
class Result:
    """How one job ended. Field by field the entry of the job in `results.json`."""

    name: JobName
    notebook: FilePath
    parameters: dict[str, Any]
    kernel: str | None
    status: Status
    exit_code: int | None  # 0, 1, 2, 124, 137 or 138; None if it never started
    started: Time | None = None  # UTC, ISO 8601
    seconds: float | None = None  # wall time from the start of its process to its end
    cells_done: int | None = None  # code cells
    cells_total: int | None = None  # code cells
    devices: list[Annotated[dict[str, Any], Used]] = field(default_factory=list)  # pinned to; the CPU if no GPU
    recorded: dict[str, Any] = field(default_factory=dict)  # by `rocmlab.record`
    error: Annotated[dict[str, Any], Error] | None = None
    files: Files = field(default_factory=dict)  # kind -> name in the run folder
    warnings: list[str] = field(default_factory=list)
    simulated: bool = False  # a device was, or the notebook recorded that it stood in for one
    attempts: list[Annotated[dict[str, Any], Attempt]] = field(default_factory=list)  # earlier ones, oldest first
    defaults: dict[str, Any] = field(default_factory=dict)  # parameters that were not given, as the notebook sets them
    environment: str | None = None  # the file in the run folder with the versions of its kernel; None: not known

    @property
    def is_ok(self) -> bool:
        """Whether the notebook completed without an error, or skipped the rest because something is missing."""
        return self.status in NO_FAILURE

    @property
    def stopped(self) -> str:
        """`interrupted` or `stopped` where the run, and not the notebook or the system, ended it; else empty."""
        why = str((self.error or {}).get("value", "")) if self.status == "killed" else ""
        return "interrupted" if why == INTERRUPTED else "stopped" if why.startswith(STOPPED) else ""

    @property
    def shown_status(self) -> str:
        """How it ended, in short; one that the run itself ended is not a failure of its own."""
        return self.stopped or self.status

    def as_dict(self) -> dict[str, Any]:
        """Return all fields, ready for JSON."""
        return asdict(self)


def not_run(job: Job, problem: Problem | None = None) -> Result:
    """Return the result of a job that could not be run, or that never started (no problem then)."""
    problem = problem or job.problem
    return Result(
        name=job.name,
        notebook=job.notebook,
        parameters=job.parameters,
        kernel=job.kernel,
        status="not run",
        exit_code=USAGE if problem else None,
        error=describe(problem) if problem else None,
        defaults=dict(job.defaults),
    )


def describe(problem: Problem) -> dict[str, Any]:
    """Return a problem as the `error` of a result."""
    return {"name": "Problem", "value": problem.what, "why": problem.why, "fix": problem.fix}


def name_uniquely(jobs: Sequence[Job]) -> list[Job]:
    """Give every job a name of its own that is safe as a file name: `a`, `a-2`, `a-3`."""
    taken: set[str] = set(safe.TAKEN)
    numbers: dict[str, int] = {}  # by name, the last that was tried: not all of ten thousand equal names are compared
    named: list[Job] = []
    for job in jobs:
        # `a.attempt1` is what an earlier attempt of `a` is called
        base = re.sub(r"\.(attempt\d+)$", r"-\1", safe_name(job.name), flags=re.IGNORECASE)
        number, name = numbers.get(base.casefold(), 1), base
        while name.casefold() in taken:  # a share may lie on a file system that ignores case
            number += 1
            name = f"{base}-{number}"
        numbers[base.casefold()] = number
        taken.add(name.casefold())
        named.append(replace(job, name=name))
    return named


def safe_name(text: str) -> str:
    """Return `text` as a file name: letters and digits of any script, `.`, `-`, `_` and `=`; never hidden or empty."""
    name = re.sub(r"[^\w.=-]+", "_", unicodedata.normalize("NFC", text)).strip("._").lstrip("-._=")
    return cut(name[:100], MAX_NAME_BYTES).rstrip("._") or "notebook"


def cut(text: str, longest_bytes: int) -> str:
    """Return the beginning of a text, no longer than this many bytes of UTF-8."""
    return text.encode()[:longest_bytes].decode(errors="ignore")
