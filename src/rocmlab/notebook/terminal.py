"""Printed text as a terminal would show it: a progress bar that redraws itself a thousand times is one line.

Understood are carriage return, backspace, and the moves and erasures of the cursor that progress bars use (ECMA-48:
CUU, CUD, CUF, CUB, CHA, EL, ED). Colours stay in the text.
"""

from __future__ import annotations

import re
from collections import deque

CONTROL = re.compile(r"(\r|\n|\x08|\x1b\[[0-9;?]*[ -/]*[@-~])")
SPECIAL = re.compile(r"[\r\x08\x1b]")
UNFINISHED = re.compile(r"\x1b(?:\[[0-9;?]*[ -/]*)?$")  # a sequence whose end comes with the next text
CELL = re.compile(r"(?:\x1b\[[0-9;]*m)*[^\x1b](?:(?:\x1b\[[0-9;]*m)+$)?|\x1b")
COLOURS = re.compile(r"(?:\x1b\[[0-9;]*m)*")
REACH_LINES = 50  # how far up the cursor can go
MAX_LINE = 100_000
WIDEST = 10_000  # columns that a move to the right may reach


class Screen:
    """The text of one stream."""

    def __init__(self, keep_bytes: int | None = None) -> None:
        self._keep_bytes = keep_bytes  # None: everything
        self._settled: deque[str] = deque()  # lines that the cursor cannot reach any more, joined
        self._settled_bytes = 0
        self._lines = [""]
        self._row = 0
        self._column: int | None = None  # None: at the end of the line
        self._held = ""  # a sequence that has not come to its end
        self.dropped_bytes = 0  # what a limited screen has let go

    @property
    def size_bytes(self) -> int:
        """About how much text it holds."""
        return self._settled_bytes + sum(map(len, self._lines)) + len(self._lines) - 1

    def text(self) -> str:
        """Return what the terminal shows, with all that has scrolled away."""
        return "".join(self._settled) + "\n".join(self._lines)

    def write(self, text: str) -> None:
        """Take what is printed."""
        if self._keep_bytes is not None and len(text) > self._keep_bytes:
            self.dropped_bytes += self.size_bytes + len(text) - self._keep_bytes
            text = text[-self._keep_bytes :]
            self._settled.clear()
            self._settled_bytes, self._lines, self._row, self._column = 0, [""], 0, None
        if not self._held and self._column is None and self._row == len(self._lines) - 1 and not SPECIAL.search(text):
            self._append(text)
        else:
            text = self._held + text
            unfinished = UNFINISHED.search(text)
            self._held = unfinished[0] if unfinished else ""
            for part in CONTROL.split(text[: len(text) - len(self._held)]):
                if part:
                    self._take(part)
        if len(self._lines) > 2 * REACH_LINES:
            self._settle(len(self._lines) - REACH_LINES)
        if self._keep_bytes is not None and self.size_bytes - self._settled_bytes > self._keep_bytes:
            self._settle(len(self._lines))
        if len(self._lines[-1]) > MAX_LINE and self._column is None and self._row == len(self._lines) - 1:
            self._settle(len(self._lines))
            self._keep(self._lines[0])  # a line that long is not a progress bar
            self._lines[0] = ""

    def _append(self, text: str) -> None:
        head, newline, tail = text.rpartition("\n")
        if newline and len(text) > 4096:  # too much to be worth a line each: only the end stays within reach
            self._settle(len(self._lines) - 1)
            self._keep(self._lines[0] + head + "\n")
            self._lines = [tail]
        else:
            first, *rest = text.split("\n")
            self._lines[-1] += first
            self._lines += rest
        self._row = len(self._lines) - 1

    def _settle(self, count: int) -> None:
        count = min(count, self._row)
        if count > 0:
            self._keep("\n".join(self._lines[:count]) + "\n")
            del self._lines[:count]
            self._row -= count

    def _keep(self, text: str) -> None:
        self._settled.append(text)
        self._settled_bytes += len(text)
        while self._keep_bytes is not None and self._settled_bytes > self._keep_bytes:
            oldest = self._settled.popleft()
            surplus = self._settled_bytes - self._keep_bytes
            if surplus < len(oldest):
                self._settled.appendleft(oldest[surplus:])
            surplus = min(surplus, len(oldest))
            self._settled_bytes -= surplus
            self.dropped_bytes += surplus

    def _take(self, part: str) -> None:
        if part == "\n":
            self._row += 1
            self._column = None
            if self._row == len(self._lines):
                self._lines.append("")
            elif self._lines[self._row]:
                self._column = 0
        elif part == "\r":
            self._column = 0
        elif part == "\x08":
            self._column = max(0, self._at() - 1)
        elif part.startswith("\x1b["):
            self._escape(part)
        else:
            self._draw(part)

    def _cells(self) -> list[str]:
        line = self._lines[self._row]
        if COLOURS.fullmatch(line):
            return []  # what has no character takes no cell
        return CELL.findall(line) if "\x1b" in line else list(line)

    def _at(self) -> int:
        return len(self._cells()) if self._column is None else self._column

    def _draw(self, text: str) -> None:
        if self._column is None:
            self._lines[self._row] += text
            return
        cells, column = self._cells(), self._column
        colours = "" if cells else self._lines[self._row]
        cells += [" "] * (column - len(cells))
        cells[column : column + len(text)] = list(text)
        self._lines[self._row] = colours + "".join(cells)
        self._column = column + len(text)
        if self._column >= len(cells):
            self._column = None

    def _escape(self, part: str) -> None:
        kind, digits = part[-1], part[2:-1]
        if kind == "m":
            self._colour(part)
            return
        if not digits.isdigit() and digits:
            return  # such as hiding the cursor, which a text cannot do
        number = int(digits[:6]) if digits else None
        if kind in "AB":
            steps = number or 1
            column = self._at()
            self._row = max(0, self._row - steps) if kind == "A" else min(len(self._lines) - 1, self._row + steps)
            self._column = column
        elif kind in "CDG":
            moves = {"C": self._at() + (number or 1), "D": self._at() - (number or 1), "G": (number or 1) - 1}
            self._column = min(WIDEST, max(0, moves[kind]))
        elif kind in "KJ":
            self._erase(kind, number or 0)

    def _colour(self, part: str) -> None:
        """Put a colour behind the cell before the cursor, so that it stays where it was printed."""
        column = self._at()
        if self._column is None or column == 0:
            if self._column is None:
                self._lines[self._row] += part
            elif part not in ("\x1b[0m", "\x1b[m"):  # a reset at the start of a redrawn line has no effect
                self._erase_coloured_start(part)
            return
        cells = self._cells()
        cells += [" "] * (column - len(cells))
        cells[column - 1] += part
        self._lines[self._row] = "".join(cells)

    def _erase_coloured_start(self, part: str) -> None:
        """Redraw a line from its start in a colour: what was there is overwritten by what follows anyway."""
        self._lines[self._row] = part
        self._column = None

    def _erase(self, kind: str, number: int) -> None:
        cells, column = self._cells(), self._at()
        if kind == "J" and number == 0:
            del self._lines[self._row + 1 :]
        if number == 0:
            self._lines[self._row] = "".join(cells[:column])
            self._column = None if column >= len(cells) or column == len(cells[:column]) else column
        elif number == 1 and kind == "K":
            self._lines[self._row] = " " * min(column, len(cells)) + "".join(cells[column:])
        elif kind == "K":
            self._lines[self._row] = ""
            self._column = column or None
