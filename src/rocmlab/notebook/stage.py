"""What surrounds an execution."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TextIO

from rocmlab.notebook.limits import Limits
from rocmlab.notebook.outputs import SideLog


@dataclass
class Stage:
    """What an execution gets from whoever wants it, and where it says what happens."""

    limits: Limits = field(default_factory=Limits)
    allow_errors: bool = False
    stdout: TextIO | None = None  # gets what cells print, as it comes
    stderr: TextIO | None = None
    kernel_output: Callable[[str], object] | None = None  # gets what the kernel's process prints past the notebook
    see: Callable[..., None] = lambda *_, **__: None  # called with the name of an event and its facts
    show: Callable[[dict[str, Any]], None] | None = None  # called with each message that is an output
    side: SideLog = field(default_factory=lambda: SideLog(None, "the log"))

    def warn(self, message: str) -> None:
        """Say something that does not end the notebook."""
        self.see("warning", message=message)
