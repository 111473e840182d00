"""How a job ends: one type from the process that ran it to the result."""

from __future__ import annotations

import signal
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypedDict

from rocmlab.base import safe

Status = Literal["ok", "skipped", "failed", "timeout", "killed", "kernel died", "not run"]
ERROR_NAMES: dict[Status, str] = {"timeout": "Timeout", "killed": "Killed", "kernel died": "KernelDied"}


class _Usage(TypedDict):
    peak_vram_bytes: int | None
    mean_busy_percent: float | None
    energy_joules: float | None


class Usage(_Usage, total=False):
    """What a job used of one of its devices; None: unknown."""

    energy_is_partial: bool  # it used more: for a part of the time nothing is known


@dataclass(frozen=True)
class Executed:
    """The content of an executed notebook, as far as a result needs it."""

    cells_done: int  # code cells that completed
    cells_total: int  # code cells, without the one that papermill adds for parameters
    recorded: dict[str, Any]
    error: dict[str, Any] | None
    warnings: list[str] = field(default_factory=list)


@dataclass
class Outcome:
    """How a job ended: filled in by its worker, and then by those who supervise the worker."""

    status: Status
    message: str = ""  # one sentence; empty where the notebook itself reports it
    notebook: Executed | None = None  # None: read the file, which may need a repair
    running_cell: int | None = None  # index of the cell that was running; None if none was
    warnings: list[str] = field(default_factory=list)
    started: str | None = None  # UTC, when its GPUs were leased; None if it never came to that
    seconds: float | None = None  # from then to its end
    usage: list[Usage] = field(default_factory=list)  # by device, in their order; see `Meters.end`
    is_lost: bool = False  # with the machine that it ran on: no fault of its own
    is_unplaced: bool = False  # it has not begun: it needs another place
    why_cpu: str | None = None  # it has not begun: why it gets the CPU instead

    @classmethod
    def of_json(cls, found: dict[str, Any]) -> Outcome:
        """Return the outcome that was sent as JSON, perhaps by another machine, whose summary may be invalid."""
        notebook = found["notebook"]
        try:
            executed = None if safe.is_deeper(notebook) else Executed(**notebook)
        except TypeError:
            executed = None
        return cls(**{**found, "notebook": executed})


class Aborted(Exception):
    """The notebook ended before its last cell, and not by an error of its own."""

    def __init__(self, status: Status, message: str, number: int = 0, output: str = "") -> None:
        super().__init__(f"{message}\n{output}" if output else message)
        self.status: Status = status
        self.message = message
        self.number = number  # of the signal that requested it; 0 if none did
        self.output = output  # the last output of the kernel's process

    @property
    def name(self) -> str:
        """What the error is called in the notebook."""
        return ERROR_NAMES.get(self.status, "Error")


def error_output(name: str, message: str, details: Sequence[str] = ()) -> dict[str, Any]:
    """Return the output of a cell that shows why it was cut short."""
    return {"output_type": "error", "ename": name, "evalue": message, "traceback": [f"{name}: {message}", *details]}


def describe(code: int | None) -> str:
    """Return how a kernel ended, from the exit status of its process."""
    if code is None:
        return "the kernel's process has exited"
    if code >= 0:
        return f"the kernel's process ended with exit code {code}"
    name = signal.Signals(-code).name if -code in set(signal.Signals) else f"signal {-code}"
    hint = ", perhaps because the memory was full" if name == "SIGKILL" else ""
    return f"the kernel's process was ended by {name}{hint}"
