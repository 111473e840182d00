"""What there is to read about the end of a job, without what a terminal, a browser or an XML parser would obey."""

from __future__ import annotations

import re
from dataclasses import dataclass

from rocmlab.base.formatting import ANSI

# Terminal sequences other than colours: titles and links (OSC, which may end with BEL), and the rest of ECMA-48.
OTHER_SEQUENCES = re.compile(r"\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)|\x1b\[[0-9;?]*[ -/]*[@-ln-~]|\x1b[^\[\]]")
# What XML 1.0 has no place for, less the escape character, which begins a colour; half characters are in it.
FORBIDDEN = re.compile("[^\t\n\r\x1b\x20-\x7e\x85\xa0-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


@dataclass(frozen=True)
class Failure:
    """What there is to read about the end of a job; texts may hold the colours of a terminal, nothing else."""

    source: str = ""  # of the failing cell
    output: str = ""  # what the cell had printed
    traceback: str = ""
    log: str = ""  # the end of the log, where no cell is to blame


def clean(text: str) -> str:
    """Return text without control characters and terminal sequences except colours; progress bars show their end."""
    text = OTHER_SEQUENCES.sub("", text).replace("\r\n", "\n")
    lines = (line.rstrip("\r").rpartition("\r")[2] for line in text.split("\n"))
    return FORBIDDEN.sub("", "\n".join(lines))


def plain(text: str) -> str:
    """Return a text that any XML document takes: clean, and without colours."""
    return ANSI.sub("", clean(text)).replace("\x1b", "")
