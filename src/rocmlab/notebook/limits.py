"""How long and how much a notebook may: given to the engine, or in the notebook's metadata."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

from rocmlab.base.errors import RocmlabError

MEGABYTE = 1_000_000


@dataclass(frozen=True)
class Limits:
    """What ends a notebook early, and how much of its output is kept. None: no limit."""

    cell_seconds: float | None = None  # the longest a cell may take
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
            given: by whoever runs the notebook; None says nothing.

        Raises:
            RocmlabError: a limit has no such name, or is no positive number.
        """
        ours = metadata.get("rocmlab")
        wanted = ours.get("limits") if isinstance(ours, Mapping) else None
        return replace(self, **{**_checked({} if wanted is None else wanted), **_checked(given)})


def _checked(wanted: Any) -> dict[str, Any]:  # noqa: ANN401  whatever the metadata holds
    names = [field.name for field in fields(Limits)]
    if not isinstance(wanted, Mapping):
        raise _wrong(f"rocmlab.limits = {wanted!r}", "this is no set of limits", names)
    for name, value in wanted.items():
        if name not in names:
            raise _wrong(f"there is no limit {name!r}", "it would be ignored", names)
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if value is not None and not (is_number and math.isfinite(value) and value > 0):
            raise _wrong(f"the limit {name} is {value!r}", "this is no positive number", names)
    return {name: value for name, value in wanted.items() if value is not None}


def _wrong(what: str, why: str, names: list[str]) -> RocmlabError:
    return RocmlabError(what, why, f"use any of {', '.join(names)}, as a positive number")
