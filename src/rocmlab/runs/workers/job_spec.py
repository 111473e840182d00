"""What a worker needs to run one job: all of it resolved by the job's supervisor, and passed on as one file."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from typing import Any

from rocmlab.kernels.kernelspec import Kernelspec


@dataclass
class JobSpec:
    """A job as its worker gets it."""

    notebook: str
    output: str  # path of the executed notebook
    kernelspec: Kernelspec
    source: str | None = None  # the file with what is executed; None: the notebook itself
    parameters: dict[str, Any] = field(default_factory=dict)
    environment: dict[str, str] = field(default_factory=dict)  # all of it
    cell_seconds: float | None = None  # the longest a cell may take; None: no limit
    memory_bytes: int | None = None  # that its kernel may allocate; None: no limit
    lease: dict[str, Any] | None = None  # `Lease.as_dict`; its descriptors come with the command
    masks: dict[str, str | None] | None = None  # that its kernel must have; None: as its environment has them
    fork_server: str | None = None  # the address of the one that forks its kernel; None: it is started cold
    why_cold: str | None = None  # where there should be one
    warning: str | None = None  # about its kernel

    def to_json(self) -> str:
        """Return it as text."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> JobSpec:
        """Return what `to_json` made a text of."""
        found = json.loads(text)
        return cls(**{**found, "kernelspec": Kernelspec(**found["kernelspec"])})
