"""Text of a known width for a terminal: cut, padded, coloured by level; nothing in a name can steer the terminal."""

from __future__ import annotations

from collections.abc import Sequence

TYPE_CHECKING = False  # `typing` itself would cost milliseconds at each start
if TYPE_CHECKING:
    from typing import TypeAlias

    Span: TypeAlias = tuple[str, str]  # text, and its level: a key of COLOURS
    Line: TypeAlias = list[Span]

COLOURS = {  # SGR: the terminal's own sixteen colours, so that its theme decides how they look
    "": "",
    "dim": "2",
    "bold": "1",
    "title": "4",
    "cool": "36",
    "good": "32",
    "warn": "33",
    "bad": "1;31",
    "mark": "1;30;43",
}
ELLIPSIS = "…"
FULL, HALF, EMPTY = "━", "╸", "─"
PLAIN = str.maketrans({"°": " ", ELLIPSIS: "~", "·": "-", FULL: "#", HALF: "=", EMPTY: "."})


def clean(text: str) -> str:
    """Return text with a `?` for each letter that is none, such as control characters and marks of direction."""
    return (
        text
        if text.isascii() and text.isprintable()
        else "".join(letter if letter.isprintable() else "?" for letter in text)
    )


def width(text: str) -> int:
    """Return how many columns a terminal needs: two for a wide letter of East Asia, none for one that combines."""
    return len(text) if text.isascii() else sum(map(_width, text))


def _width(letter: str) -> int:
    if letter < "\u0300":
        return 1
    import unicodedata

    if unicodedata.combining(letter):
        return 0
    return 2 if unicodedata.east_asian_width(letter) in "WF" else 1


def cut(text: str, columns: int) -> str:
    """Return the beginning of a text, as much as fits."""
    if width(text) <= columns:
        return text
    kept, left = "", columns - 1
    for letter in text:
        left -= _width(letter)
        if left < 0:
            break
        kept += letter
    return kept + ELLIPSIS if columns > 0 else ""


def cut_start(text: str, columns: int) -> str:
    """Return the end of a text, as much as fits: the end of a path is more useful than its beginning."""
    return text if width(text) <= columns else cut(text[::-1], columns)[::-1]


def pad(text: str, columns: int, *, right: bool = False) -> str:
    """Return a text of exactly `columns` columns, cut if it is longer; `right`: at the right edge."""
    text = cut(text, columns)
    space = " " * (columns - width(text))
    return space + text if right else text + space


def bar(share: float | None, columns: int) -> tuple[str, str]:
    """Return the filled and the empty part of a bar; a share above 0 shows at least half a column."""
    if share is None:
        return "", " " * columns
    share = min(1.0, max(0.0, share))
    whole, rest = divmod(max(round(share * columns * 2), 1 if share > 0 else 0), 2)
    filled = FULL * whole + HALF * rest
    return filled, EMPTY * (columns - len(filled))


def line_width(line: Line) -> int:
    """Return how many columns a line needs."""
    return sum(width(text) for text, _ in line)


def fit(line: Line, columns: int) -> Line:
    """Return a line cut to `columns` columns."""
    fitted: Line = []
    for text, level in line:
        columns_left = columns - line_width(fitted)
        if width(text) > columns_left:
            return [*fitted, (cut(text, columns_left), level)] if columns_left > 0 else fitted
        fitted.append((text, level))
    return fitted


def wrap(text: str, columns: int, first: str = "", after: str = "") -> list[str]:
    """Return a text on as many lines as it needs, broken at spaces; these begin with `first`, and then with `after`."""
    lines, line = [], first
    for turn, word in enumerate(text.split(" ")):
        if turn and width(line) + 1 + width(word) > columns:
            lines.append(line)
            line = after + word
        else:
            line = f"{line} {word}" if turn else line + word
    return [*lines, line]


def paint(lines: Sequence[Line], *, coloured: bool, plain: bool = False) -> list[str]:
    """Return lines as they go to the terminal; `plain`: it can show ASCII only."""
    painted = []
    for line in lines:
        spans = [(text, COLOURS[level] if coloured else "") for text, level in line]
        text = "".join(f"\x1b[{code}m{text}\x1b[0m" if code and text else text for text, code in spans)
        if plain:
            text = text.translate(PLAIN).encode("ascii", "replace").decode("ascii")
        painted.append(text.rstrip(" "))
    return painted
