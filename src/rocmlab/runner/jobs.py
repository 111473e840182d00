"""What a job is and how it ends: the words that every module of the runner shares."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from rocmlab.errors import Problem

Status = Literal["ok", "failed", "timeout", "killed", "kernel died", "not run"]
EXIT_CODES: dict[Status, int] = {"ok": 0, "failed": 1, "timeout": 124, "killed": 137, "kernel died": 138}
USAGE = 2  # the exit code of a job that could not be run at all


@dataclass(frozen=True)
class Job:
    """One notebook with its parameters."""

    name: str  # unique in its run; the name of its files
    notebook: str  # absolute path, or what was asked for where nothing has that name
    parameters: dict[str, Any] = field(default_factory=dict)
    kernel: str | None = None  # name of the kernelspec; None where the notebook could not be read
    language: str | None = None  # the kernelspec's; papermill needs it to write the parameters
    gpus: int | Literal["all"] | None = None  # how many it asks for; None: one if there is one, else the CPU
    problem: Problem | None = None  # why it cannot be run; None if it can


@dataclass(frozen=True)
class Result:
    """How one job ended. Field by field the entry of the job in `results.json`."""

    name: str
    notebook: str
    parameters: dict[str, Any]
    kernel: str | None
    status: Status
    exit_code: int | None  # 0, 1, 2, 124, 137 or 138; None if its turn never came
    started: str | None = None  # UTC, ISO 8601
    seconds: float | None = None  # wall time from the start of its process to its end
    cells_done: int | None = None  # code cells
    cells_total: int | None = None  # code cells
    devices: list[dict[str, Any]] = field(default_factory=list)  # what it was pinned to; the CPU if no GPU
    recorded: dict[str, Any] = field(default_factory=dict)  # by `rocmlab.record`
    error: dict[str, Any] | None = None  # name, value, cell, cell_index, source
    files: dict[str, str] = field(default_factory=dict)  # kind -> name in the run folder
    warnings: list[str] = field(default_factory=list)
    simulated: bool = False  # a device was, or the notebook recorded that it stood in for one

    @property
    def is_ok(self) -> bool:
        """Whether the notebook ran to its end without an error."""
        return self.status == "ok"

    def as_dict(self) -> dict[str, Any]:
        """Return all fields, ready for JSON."""
        return asdict(self)


def not_run(job: Job, problem: Problem | None = None) -> Result:
    """Return the result of a job that could not be run, or whose turn never came (no problem then)."""
    problem = problem or job.problem
    return Result(
        name=job.name,
        notebook=job.notebook,
        parameters=job.parameters,
        kernel=job.kernel,
        status="not run",
        exit_code=USAGE if problem else None,
        error=describe(problem) if problem else None,
    )


def describe(problem: Problem) -> dict[str, Any]:
    """Return a problem as the `error` of a result."""
    return {"name": "Problem", "value": problem.what, "why": problem.why, "fix": problem.fix}


def name_uniquely(jobs: Sequence[Job]) -> list[Job]:
    """Give every job a name of its own that is safe as a file name: `a`, `a-2`, `a-3`."""
    taken: set[str] = set()
    named: list[Job] = []
    for job in jobs:
        base = safe_name(job.name)
        number, name = 1, base
        while name.casefold() in taken:  # a share may lie on a file system that ignores case
            number += 1
            name = f"{base}-{number}"
        taken.add(name.casefold())
        named.append(replace(job, name=name))
    return named


def safe_name(text: str) -> str:
    """Return `text` as a file name: letters and digits of any script, `.`, `-` and `_`; never hidden, never empty."""
    return re.sub(r"[^\w.-]+", "_", text).strip("._")[:100] or "notebook"


def stem(notebook: str) -> str:
    """Return the name that a notebook gives to its job."""
    return Path(notebook).name.removesuffix(".ipynb")
