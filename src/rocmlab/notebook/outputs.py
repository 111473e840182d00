"""The outputs of a cell: messages of the kernel in, outputs of a notebook out, with a bound on what is kept."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rocmlab.base import private
from rocmlab.notebook.terminal import SPECIAL, Screen

log = logging.getLogger("rocmlab")

Output = dict[str, Any]
Content = Mapping[str, Any]

TAIL_SHARE = 0.25  # of the printed text that is kept, how much from its end once it is too long
RICH_FACTOR = 10  # pictures and tables may take this many times more than printed text
MARK = "[rocmlab: all that was printed by cells whose output is too long for the notebook]\n"  # begins the log
OUTPUT_BYTES = 500  # about what an output takes without its content
MAX_OUTPUTS = 5_000  # per cell; printed text beyond continues in the last ones


class OverflowLog:
    """Holds everything that a cell printed whose output became too long for the notebook; made when there is one."""

    def __init__(self, path: Path | None, shown_as: str) -> None:
        self.path = path  # None: someone else keeps everything anyway
        self.shown_as = shown_as  # how the notebook calls it
        self.fault: OSError | None = None  # why it lacks something; None if it has everything

    def write(self, text: str) -> None:
        """Add text, or drop what a full disk does not take: a log is not worth a notebook."""
        if self.path is None or not text:
            return
        try:
            with open(
                self.path, "a", encoding="utf-8", errors="backslashreplace", newline="", opener=private.create
            ) as file:
                file.write(text if file.tell() else MARK + text)
        except OSError as err:
            if self.fault is None:
                log.warning("%s lacks a part of the output: %s", self.path, err)
            self.fault = err

    def sentence(self) -> str:
        """Return where the output is, for the notebook; empty where it has no name."""
        if self.fault is not None:
            return f", {self.shown_as} lacks a part of it ({self.fault.strerror})"
        return f", all of it is in {self.shown_as}" if self.shown_as else ""

    @staticmethod
    def made(path: Path) -> bool:
        """Return whether a file is our own; what cannot be read is not."""
        try:
            if path.is_file():
                with path.open("rb") as file:
                    return file.read(len(MARK)) == MARK.encode()
        except OSError:
            pass
        return False


@dataclass
class Display:
    """Where a display id is shown, over all cells."""

    places: dict[str, list[Output]] = field(default_factory=dict)


class CellOutputs:
    """Collects the outputs of one cell."""

    def __init__(
        self, cell: dict[str, Any], title: str, display: Display, limit_bytes: int, overflow: OverflowLog
    ) -> None:
        self.outputs: list[Output] = []
        cell["outputs"] = self.outputs
        self._title = title
        self._display = display
        self._overflow_log = overflow
        self._head_bytes = int(limit_bytes * (1 - TAIL_SHARE))
        self._tail_bytes = limit_bytes - self._head_bytes
        self._rich_limit = self._rich_bytes = limit_bytes * RICH_FACTOR
        self._screens: list[tuple[Output, Screen]] = []
        self._tails: dict[str, tuple[Output, Screen]] = {}
        self._used_bytes = self._omitted_bytes = 0
        self._omitted: Output = {}  # the last notice of outputs that are too large
        self._clear_first = False
        self._handlers: dict[str, Callable[[Content], None]] = {
            "stream": self._stream,
            "display_data": self._show,
            "execute_result": self._show,
            "update_display_data": self._update,
            "error": self._error,
            "clear_output": self._clear,
        }

    @property
    def size_bytes(self) -> int:
        """About how much it holds."""
        tails = sum(screen.size_bytes for _, screen in self._tails.values())
        return self._used_bytes + tails + self._rich_limit - self._rich_bytes

    def take(self, kind: str, content: Content) -> None:
        """Take a message of the kernel; those that are no output are ignored."""
        handler = self._handlers.get(kind)
        if handler is not None:
            if self._clear_first and kind not in ("clear_output", "update_display_data"):
                self._forget()
            handler(content)

    def render(self) -> None:
        """Bring the text of the outputs up to date, for a save."""
        for output, screen in self._screens:
            output["text"] = screen.text()
        for output, screen in self._tails.values():
            megabytes = screen.dropped_bytes / 1e6
            left_out = f"{megabytes:.1f} MB are omitted here" if screen.dropped_bytes else "what follows is the end"
            output["text"] = (
                f"\n[rocmlab: too much output; {left_out}{self._overflow_log.sentence()}]\n" + screen.text()
            )

    def _stream(self, content: Content) -> None:
        name, text = str(content["name"]), str(content["text"])
        if self._tails:
            self._overflow_log.write(text)
            self._tail(name).write(text)
            return
        room = self._head_bytes - self._used_bytes
        # What redraws itself may fit once it is folded, but hardly if it is that long.
        if len(text) > (2 * room + 65_536 if SPECIAL.search(text) else room):
            self._overflow()
            self._overflow_log.write(text)
            if room:
                self._write(name, text[:room])
            self._tail(name).write(text[room:])
            return
        self._write(name, text)
        if self._used_bytes > self._head_bytes or len(self.outputs) > MAX_OUTPUTS:
            self._overflow()
            self._tail(name)

    def _write(self, name: str, text: str) -> None:
        screen = self._screen(name, text)
        before = screen.size_bytes
        screen.write(text)
        self._used_bytes += screen.size_bytes - before

    def _screen(self, name: str, text: str) -> Screen:
        """Return where text goes: on with the last output, or, where it redraws a line, with the one that has it."""
        for output, screen in reversed(self._screens):
            if output["name"] == name:
                if output is self.outputs[-1] or (text[0:1] == "\r" and self._only_streams_behind(output)):
                    return screen
                break
        output = {"output_type": "stream", "name": name, "text": ""}
        self.outputs.append(output)
        self._screens.append((output, Screen()))
        return self._screens[-1][1]

    def _only_streams_behind(self, output: Output) -> bool:
        for each in reversed(self.outputs):
            if each is output:
                return True
            if each["output_type"] != "stream":
                return False
        return False

    def _overflow(self) -> None:
        self._overflow_log.write(f"--- {self._title}\n")
        for _, screen in self._screens:
            self._overflow_log.write(screen.text())

    def _tail(self, name: str) -> Screen:
        if name not in self._tails:
            output = {"output_type": "stream", "name": name, "text": ""}
            self.outputs.append(output)
            self._tails[name] = (output, Screen(self._tail_bytes))
        return self._tails[name][1]

    def _show(self, content: Content) -> None:
        is_result = "execution_count" in content
        data, metadata = content["data"], content["metadata"]
        size = OUTPUT_BYTES + sum(len(each if isinstance(each, str) else json.dumps(each)) for each in data.values())
        if size > self._rich_bytes:
            is_next = bool(self.outputs) and self.outputs[-1] is self._omitted
            self._omitted_bytes = size + (self._omitted_bytes if is_next else 0)
            notice = f"[rocmlab: {self._omitted_bytes / 1e6:.1f} MB are omitted here; the cell shows too much]"
            data, metadata = {"text/plain": notice}, {}
            if is_next:  # one notice for all of them, or the notices take what the outputs must not
                self._omitted["data"] = data
                return
        self._rich_bytes -= size if data is content["data"] else 0
        output: Output = {"output_type": "execute_result" if is_result else "display_data"}
        output |= {"data": data, "metadata": metadata}
        if is_result:
            output["execution_count"] = content["execution_count"]
        self.outputs.append(output)
        if data is not content["data"]:
            self._omitted = output
        display_id = (content.get("transient") or {}).get("display_id")
        if display_id:
            self._update(content)
            self._display.places.setdefault(display_id, []).append(output)

    def _update(self, content: Content) -> None:
        display_id = (content.get("transient") or {}).get("display_id")
        for output in self._display.places.get(str(display_id), []):
            output["data"], output["metadata"] = content["data"], content["metadata"]

    def _error(self, content: Content) -> None:
        longest = self._head_bytes
        self.outputs.append(
            {
                "output_type": "error",
                "ename": content["ename"],
                "evalue": content["evalue"][:longest],
                "traceback": [line[:longest] for line in content["traceback"]],
            }
        )

    def _clear(self, content: Content) -> None:
        if content.get("wait"):
            self._clear_first = True
        else:
            self._forget()

    def _forget(self) -> None:
        self._clear_first = False
        gone = {id(output) for output in self.outputs}
        for places in self._display.places.values():
            places[:] = [output for output in places if id(output) not in gone]
        self.outputs.clear()
        self._screens.clear()
        self._tails.clear()
        self._used_bytes = 0
        self._rich_bytes = self._rich_limit
