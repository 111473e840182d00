"""The failing cell of a job, read from its executed notebook: source, output, traceback; or the end of its log."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rocmlab.base import safe
from rocmlab.notebook import executed

LONGEST = 12_000  # characters of a text; what a person reads of 200 MB is its end
SOURCE_LINES = 60
LOG_LINES = 30
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


def read(job: Mapping[str, Any], folder: Path) -> Failure:
    """Return what a failed job left; what cannot be read is left empty."""
    error, left = job["error"], job["files"]
    index = error.get("cell_index")
    cell = _cell(folder / left["notebook"], index) if "notebook" in left and index is not None else None
    if cell is None:
        return Failure(source=clean(error.get("source", "")), log=_tail(folder / left["log"]) if "log" in left else "")
    outputs = [output for output in cell.get("outputs", []) if isinstance(output, dict)]
    return Failure(
        source=_first_lines(clean(_joined(cell.get("source", "")))),
        output=_shorten(clean("".join(_text(output) for output in outputs))).rstrip(),
        traceback=_shorten(clean("\n".join(_traceback(output) for output in outputs))).strip("\n"),
    )


def clean(text: str) -> str:
    """Return text without control characters and terminal sequences except colours; progress bars show their end."""
    text = OTHER_SEQUENCES.sub("", text).replace("\r\n", "\n")
    lines = (line.rstrip("\r").rpartition("\r")[2] for line in text.split("\n"))
    return FORBIDDEN.sub("", "\n".join(lines))


def plain(text: str) -> str:
    """Return a text that any XML document takes: clean, and without colours."""
    return executed.ANSI.sub("", clean(text)).replace("\x1b", "")


def _cell(path: Path, index: int) -> dict[str, Any] | None:
    notebook = None if path.is_symlink() else executed.load(path)
    try:
        cell = notebook["cells"][index] if notebook else None
    except (KeyError, IndexError, TypeError):
        return None
    return cell if isinstance(cell, dict) else None


def _text(output: Mapping[str, Any]) -> str:
    """Return what an output reads like; a picture does not read."""
    if output.get("output_type") == "stream":
        return _joined(output.get("text", ""))
    data = output.get("data")
    return _joined(data.get("text/plain", "")) + "\n" if isinstance(data, dict) else ""


def _traceback(output: Mapping[str, Any]) -> str:
    if output.get("output_type") != "error":
        return ""
    lines = output.get("traceback") or [f"{output.get('ename')}: {output.get('evalue')}"]
    return "\n".join(str(line) for line in lines)


def _joined(text: object) -> str:
    """Return a text of a notebook, which may be a list of lines."""
    return "".join(str(part) for part in text) if isinstance(text, list) else str(text)


def _first_lines(source: str) -> str:
    lines = source.strip("\n").split("\n")
    more = len(lines) - SOURCE_LINES
    return "\n".join([*lines[:SOURCE_LINES], f"… {more} more lines"] if more > 0 else lines)[:LONGEST]


def _shorten(text: str) -> str:
    """Return the end of a long text, from the beginning of a line."""
    if len(text) <= LONGEST:
        return text
    kept = text[-LONGEST:]
    return "… (the beginning is left out)\n" + (kept.partition("\n")[2] or kept)


def _tail(path: Path) -> str:
    try:
        with safe.reading(path) as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - LONGEST))
            text = file.read(LONGEST).decode("utf-8", errors="replace")
    except OSError:
        return ""
    return "\n".join(clean(text).rstrip().split("\n")[-LOG_LINES:])
