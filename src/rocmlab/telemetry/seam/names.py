"""What a process is called where a program shows its command line: its notebook goes in front.

nvitop asks psutil for command lines, and psutil asks `/proc`. So `psutil.Process.cmdline` is wrapped, in the process
that `rocmlab nvitop` becomes and nowhere else; neither nvitop nor what it may do to a process is touched.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from rocmlab.telemetry.model import GpuProcess
    from rocmlab.telemetry.seam.gpus import Gpus

MAX_WORD = 120


def label(process: GpuProcess) -> list[str]:
    """Return the names of a process's owners; none for one without a notebook, run or container."""
    owner = process.owner
    if owner is None:
        return []
    parts = (("kernel", owner.kernel_name), ("run", owner.run), ("container", owner.container))
    names = [owner.notebook, *(f"{kind}:{value}" for kind, value in parts if value)]
    if owner.is_estimated and any(names):
        names.insert(0, "probably")
    return [_shown(text) for text in names if text]


def described(process: GpuProcess) -> list[str]:
    """Return what is known of the command of a process that is not visible from here."""
    known = process.command or process.name
    return [_shown(text) for text in known.split()] if known else [f"process {process.pid} of the host"]


def _shown(text: str) -> str:
    """Return a text that is safe for a terminal, whatever a notebook is called."""
    plain = "".join(letter if letter.isprintable() else "?" for letter in text)
    return plain if len(plain) <= MAX_WORD else plain[: MAX_WORD - 1] + "…"


def show_notebooks(gpus: Gpus, process_class: Any) -> None:  # noqa: ANN401
    """Let the command line of a process on a GPU begin with its notebook; the class is `psutil.Process`."""
    original: Callable[[Any], list[str]] = process_class.cmdline

    @functools.wraps(original)
    def cmdline(self: Any) -> list[str]:  # noqa: ANN401
        process = gpus.process(self.pid)
        if process is None:
            return original(self)
        if not gpus.is_seen(process):
            return [*label(process), *described(process)]
        return [*label(process), *original(self)]

    process_class.cmdline = cmdline
