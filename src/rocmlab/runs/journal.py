"""The lines of a run's journal: read quickly, and those that a crash has truncated distinguished from damaged ones."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any, BinaryIO

READ_BYTES = 1 << 20  # of a journal at a time
UNFINISHED = re.compile(r"t|tr|tru|f|fa|fal|fals|n|nu|nul|-|\d+[eE.+-]+|")  # a value of which the end is missing


class BadLineError(ValueError):
    """A line of a file that cannot be used."""

    def __init__(self, number: int, why: str) -> None:
        super().__init__(f"line {number}: {why}")


def read(file: BinaryIO) -> Iterator[tuple[bytes, Any]]:
    """Yield each line and what it says; None of one that is not JSON."""
    while lines := file.readlines(READ_BYTES):
        yield from zip(lines, _events(lines), strict=True)


def _events(lines: list[bytes]) -> list[Any]:
    """Return these lines of JSON parsed; None for one that is not JSON.

    All in one call takes half the time, and the names in them are shared.
    """
    events = _parsed(b"[" + b",".join(lines) + b"]")
    return events if events is not None and len(events) == len(lines) else [_parsed(line) for line in lines]


def _parsed(text: bytes) -> Any:  # noqa: ANN401  any JSON value
    try:
        return json.loads(text.decode())
    except (ValueError, RecursionError):  # also text that is not UTF-8
        return None


def is_torn(line: bytes) -> bool:
    """Return whether a line is the beginning of an event: its writer was ended, or the disk was full.

    After a power failure a file system may have zeros in the place of a line's rest.
    """
    text = line.rstrip(b"\0\r\n\t ").decode("utf-8", errors="ignore")
    if not text:
        return True
    if len(text) > 1 and not text.startswith('{"event"'[: len(text)]):
        return False
    try:
        json.loads(text)
    except json.JSONDecodeError as err:
        rest = text[err.pos :]
        return (
            err.msg.startswith("Unterminated")
            or ("escape" in err.msg and len(rest) < 8)
            or bool(UNFINISHED.fullmatch(rest))
        )
    except RecursionError:
        pass
    return False
