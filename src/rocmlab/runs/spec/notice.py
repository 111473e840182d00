"""What is said before a run begins: its first seconds go into imports, notebooks and devices, and are not silent."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator, Sequence

MAX_NAMES = 3  # arguments that are named


def preparing(resumed: str | None, notebooks: Sequence[str]) -> str:
    """Return what is prepared, as it was typed."""
    named = ", ".join(notebooks[:MAX_NAMES]) + (
        f" and {len(notebooks) - MAX_NAMES} more" if len(notebooks) > MAX_NAMES else ""
    )
    what = f"to continue {resumed}" if resumed else named or "every notebook of the lab"
    return f"preparing {what}: reading the notebooks, looking for kernels and devices"


@contextlib.contextmanager
def shown(text: str) -> Iterator[None]:
    """Say on stderr what is being done: in a terminal until it is done, else in a line that stays."""
    is_terminal = sys.stderr.isatty() and os.environ.get("TERM") != "dumb"
    sys.stderr.write(f"{text} …" if is_terminal else f"{text}\n")
    sys.stderr.flush()
    try:
        yield
    finally:
        if is_terminal:
            sys.stderr.write("\r\x1b[2K")
            sys.stderr.flush()
