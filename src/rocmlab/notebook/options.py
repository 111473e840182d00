"""What an execution gets from its caller: limits, which a notebook may set in its metadata, streams and callbacks."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, TextIO

from rocmlab.base.errors import RocmlabError
from rocmlab.notebook.outputs import OverflowLog

MEGABYTE = 1_000_000


@dataclass(frozen=True)
class Limits:
    """What ends a notebook early, and how much of its output is kept. None: no limit."""

    cell_seconds: float | None = None  # time limit of a cell
    notebook_seconds: float | None = None  # the longest all cells together may take
    idle_seconds: float | None = None  # the longest a cell may run without printing or showing anything
    silent_seconds: float = 60.0  # the longest the kernel's process may be stopped, or not answer its heartbeat
    start_seconds: float = 60.0  # the longest the kernel may take to start
    output_bytes: int = 10 * MEGABYTE  # of printed text kept per cell; all of it is in the log
    save_seconds: float = 2.0  # the shortest time between two saves

    def with_metadata(self, metadata: Mapping[str, Any], given: Mapping[str, Any]) -> Limits:
        """Return these limits with those of a notebook's metadata, and with those given, which win.

        Args:
            metadata: the notebook's; `{"rocmlab": {"limits": {"cell_seconds": 60}}}`.
            given: by the caller; None: not given.

        Raises:
            RocmlabError: a limit is unknown, or is not a positive number.
        """
        ours = metadata.get("rocmlab")
        wanted = ours.get("limits") if isinstance(ours, Mapping) else None
        return replace(self, **{**_checked({} if wanted is None else wanted), **_checked(given)})


@dataclass
class Options:
    """Limits, streams and callbacks of one execution."""

    limits: Limits = field(default_factory=Limits)
    allow_errors: bool = False
    stdout: TextIO | None = None  # receives what cells print, as it comes
    stderr: TextIO | None = None
    kernel_output: Callable[[str], object] | None = None  # receives what the kernel's process prints past the notebook
    report: Callable[..., None] = lambda *_, **__: None  # called with the name of an event and its facts
    show: Callable[[dict[str, Any]], None] | None = None  # called with each message that is an output
    overflow: OverflowLog = field(default_factory=lambda: OverflowLog(None, "the log"))

    def warn(self, message: str) -> None:
        """Report something that does not end the notebook."""
        self.report("warning", message=message)


def _checked(wanted: Any) -> dict[str, Any]:  # noqa: ANN401  whatever the metadata holds
    names = [each.name for each in fields(Limits)]
    if not isinstance(wanted, Mapping):
        raise _wrong(f"rocmlab.limits = {wanted!r}", "expected a mapping of limits", names)
    for name, value in wanted.items():
        if name not in names:
            raise _wrong(f"unknown limit {name!r}", "it would be ignored", names)
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if value is not None and not (is_number and math.isfinite(value) and value > 0):
            raise _wrong(f"the limit {name} is {value!r}", "expected a positive number", names)
    return {name: value for name, value in wanted.items() if value is not None}


def _wrong(what: str, why: str, names: list[str]) -> RocmlabError:
    return RocmlabError(what, why, f"use any of {', '.join(names)}, as a positive number")
