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
    """Return the words that say whose a process is; none for one that belongs to no notebook, run or container."""
    owner = process.owner
    if owner is None:
        return []
    parts = (("kernel", owner.kernel_name), ("run", owner.run), ("container", owner.container))
    words = [owner.notebook, *(f"{kind}:{value}" for kind, value in parts if value)]
    if owner.is_estimated and any(words):
        words.insert(0, "probably")
    return [_shown(word) for word in words if word]


def described(process: GpuProcess) -> list[str]:
    """Return what is known of the command of a process that cannot be seen from here."""
    known = process.command or process.name
    return [_shown(word) for word in known.split()] if known else [f"process {process.pid} of the host"]


def _shown(word: str) -> str:
    """Return a word that can do a terminal no harm, whatever a notebook is called."""
    plain = "".join(letter if letter.isprintable() else "?" for letter in word)
    return plain if len(plain) <= MAX_WORD else plain[: MAX_WORD - 1] + "…"


def show_notebooks(gpus: Gpus, process_class: Any) -> None:  # noqa: ANN401
    """Let the command line of a process on a GPU begin with its notebook.

    Args:
        gpus: whose processes.
        process_class: `psutil.Process`.
    """
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
