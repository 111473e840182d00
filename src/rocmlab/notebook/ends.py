"""How a notebook is cut short."""

from __future__ import annotations

import signal

from rocmlab.runs.jobs import Status

NAMES: dict[Status, str] = {"timeout": "Timeout", "killed": "Killed", "kernel died": "KernelDied"}


class Aborted(Exception):
    """The notebook ended before its end, and not by an error of its own."""

    def __init__(self, status: Status, message: str, number: int = 0, words: str = "") -> None:
        super().__init__(f"{message}\n{words}" if words else message)
        self.status: Status = status
        self.message = message
        self.number = number  # of the signal that asked for it; 0 if none did
        self.words = words  # the last that the kernel's process printed

    @property
    def name(self) -> str:
        """What the error is called in the notebook."""
        return NAMES.get(self.status, "Error")


def describe(code: int | None) -> str:
    """Return how a kernel ended, from the exit status of its process."""
    if code is None:
        return "the kernel's process is gone"
    if code >= 0:
        return f"the kernel's process ended with exit code {code}"
    name = signal.Signals(-code).name if -code in set(signal.Signals) else f"signal {-code}"
    hint = ", perhaps because the memory was full" if name == "SIGKILL" else ""
    return f"the kernel's process was ended by {name}{hint}"
