"""What the cells of one kernel have printed, as their notebook will have it: the kernel's messages in, outputs out."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from rocmlab.notebook.outputs import CellOutputs, Display, Output, OverflowLog
from rocmlab.notebook.widgets import Widgets
from rocmlab.notebook.wire import Message

LIMIT_BYTES = 8_000_000  # of printed text per cell; the end stays, what is omitted is named
KEPT_BYTES = 64_000_000  # of all finished cells of a kernel together; then the oldest are forgotten
SETTLED_SECONDS = 1.0  # what a cell printed that long before a page saves, the page has shown
LOST_SECONDS = 2.0  # after which a message that should have followed is lost
KINDS = ("stream", "display_data", "execute_result", "update_display_data", "error", "clear_output")
DIED = "[rocmlab: the kernel ended while this cell ran]\n"


@dataclass
class Record:
    """One execution of a cell."""

    cell: str  # its id in the notebook
    request: str  # id of the message that had it executed
    session: str  # of the page that sent it
    code: str
    outputs: CellOutputs
    state: str = "queued"  # then running, done
    count: int | None = None  # the number in the cell's prompt
    question: dict[str, Any] | None = None  # what `input()` waits for; None: nothing
    replied_at: float = 0.0  # when its page was told that it has ended; 0: not yet
    changed: int = 0  # the number of the last change
    changed_at: float = 0.0
    saved: int = 0  # the change up to which a page has saved the notebook
    written: int = 0  # the same for the recorder's own writes

    @property
    def is_dirty(self) -> bool:
        """Return whether the file lacks something."""
        return self.changed > max(self.saved, self.written)

    def rendered(self) -> list[Output]:
        """Return the outputs as they are now; what follows changes none of these objects."""
        self.outputs.render()
        found: list[Output] = []
        for output in self.outputs.outputs:
            if found and output["output_type"] == "stream" and output["name"] == found[-1].get("name"):
                found[-1]["text"] += output["text"]  # as pages join it, so that both count outputs alike
            else:
                found.append(dict(output))
        return found


@dataclass
class Records:
    """The cells of one kernel."""

    number: int = 0  # of the latest change
    by_cell: dict[str, Record] = field(default_factory=dict)
    comms: dict[str, dict[str, Any]] = field(default_factory=dict)  # what output widgets caught: for the kernel
    _by_request: dict[str, Record] = field(default_factory=dict)
    _display: Display = field(default_factory=Display)
    _catchers: set[str] = field(default_factory=set)  # output widgets
    _kernel: str = ""  # the session id of the kernel's process

    def __post_init__(self) -> None:
        """Have output widgets catch what is printed in them."""
        self._overflow = OverflowLog(None, "")
        self._widgets = Widgets(self.comms.__setitem__, self._overflow)

    @property
    def unfinished(self) -> list[Record]:
        """The cells that run or wait."""
        return [each for each in self.by_cell.values() if each.state != "done"]

    def has_display(self, cell: str) -> bool:
        """Return whether another cell may change what this one shows."""
        shown = {id(each) for places in self._display.places.values() for each in places}
        return cell in self.by_cell and any(id(each) in shown for each in self.by_cell[cell].outputs.outputs)

    @property
    def dirty(self) -> list[Record]:
        """The cells of which the file lacks something."""
        return [each for each in self.by_cell.values() if each.is_dirty]

    def begin(self, cell: str, request: str, session: str, code: str) -> None:
        """A page has sent a cell."""
        self._forget(cell)
        outputs = CellOutputs({}, cell, self._display, LIMIT_BYTES, self._overflow)
        self.by_cell[cell] = self._by_request[request] = record = Record(cell, request, session, code, outputs)
        self._change(record)
        self._bound()

    def knows(self, request: str | None, kind: str) -> bool:
        """Return whether a message matters here."""
        return request in self._by_request or kind == "update_display_data" or kind.startswith("comm_")

    def hear_kernel(self, session: str, parent: str | None) -> None:
        """A message has come from a process; another one than before does not finish the old one's cells."""
        if session != self._kernel:
            known, self._kernel = self._kernel, session
            if known:
                self.abort("", except_for=parent)

    def take(self, message: Message) -> None:
        """Take a message that matters."""
        record, content = self._by_request.get(message.parent or ""), message.content
        if message.kind.startswith("comm_"):
            identity, state = str(content.get("comm_id")), (content.get("data") or {}).get("state")
            if isinstance(state, dict) and state.get("_model_name") == "OutputModel":
                self._catchers.add(identity)
            if identity in self._catchers:  # other widgets are no concern here, and may be large
                self._widgets.take(message)
        elif message.kind == "update_display_data":
            CellOutputs({}, "", self._display, LIMIT_BYTES, self._overflow).take(message.kind, content)
            shown = self._display.places.get(str((content.get("transient") or {}).get("display_id")), [])
            identities = {id(each) for each in shown}
            for each in self.by_cell.values():
                if any(id(output) in identities for output in each.outputs.outputs):
                    self._change(each)
        elif record is not None:
            self._take_of(record, message)

    def _take_of(self, record: Record, message: Message) -> None:
        content = message.content
        if message.kind == "status":
            if content.get("execution_state") == "idle":
                self._finish(record)
        elif message.kind == "execute_input":
            for each in self.unfinished:  # a kernel drops messages when too many wait, also the one that it is idle
                if each.state == "running" and each is not record:
                    self._finish(each)
            record.state, record.count = "running", content.get("execution_count")
            self._change(record)
        elif message.kind in KINDS and not self._widgets.catch(message):
            if message.kind == "error":  # other output may be of before the question: it comes on another channel
                record.question = None
            record.outputs.take(message.kind, content)
            self._change(record)

    def reply(self, request: str) -> None:
        """A page is told that a cell has ended; what the cell printed, and that the kernel is idle, may come later."""
        if record := self._by_request.get(request):
            record.replied_at = time.monotonic()

    def settle(self) -> None:
        """End the cells whose last message was lost: a kernel drops some when too many wait."""
        limit = time.monotonic() - LOST_SECONDS
        for record in self.unfinished:
            if 0 < record.replied_at < limit and record.changed_at < limit:
                self._finish(record)

    def ask(self, request: str, question: dict[str, Any] | None) -> None:
        """A cell waits for an answer of the user, or does so no more."""
        if (record := self._by_request.get(request)) and record.state != "done":
            record.question = question
            self._change(record)

    def answer(self, record: Record, text: str) -> None:
        """The user has answered; a page shows that as output, which it saves."""
        question, record.question = record.question or {}, None
        shown = "········" if question.get("password") else text
        record.outputs.take("stream", {"name": "stdin", "text": f"{question.get('prompt', '')} {shown}\n"})
        self._change(record)

    def abort(self, text: str, *, except_for: str | None = None) -> None:
        """End the cells that have not finished, as their kernel has; `text` goes below what the running one has."""
        for record in self.unfinished:
            if record.request != except_for:
                if text and record.state == "running":
                    record.outputs.take("stream", {"name": "stderr", "text": text})
                self._finish(record)

    def saved(self, cells: set[str], begun: float) -> None:
        """A page has saved these cells: with what it showed of them when that began."""
        for record in self.by_cell.values():
            if record.cell in cells and record.changed_at < begun - SETTLED_SECONDS:
                record.saved = self.number

    def rewrite(self, cells: set[str]) -> None:
        """The file may have lost what was written of these cells."""
        for record in self.by_cell.values():
            record.written = 0 if record.cell in cells else record.written

    def _finish(self, record: Record) -> None:
        record.state, record.question = "done", None
        self._change(record)

    def _change(self, record: Record) -> None:
        self.number += 1
        record.changed, record.changed_at = self.number, time.monotonic()

    def _forget(self, cell: str) -> None:
        if old := self.by_cell.pop(cell, None):
            self._by_request.pop(old.request, None)
            old.outputs.take("clear_output", {})  # display ids do not keep it

    def _bound(self) -> None:
        finished = [each for each in self.by_cell.values() if each.state == "done"]
        size = sum(each.outputs.size_bytes for each in finished)
        for record in sorted(finished, key=lambda each: (each.is_dirty, each.changed)):
            if size <= KEPT_BYTES:
                return
            size -= record.outputs.size_bytes
            self._forget(record.cell)


@dataclass
class Follower:
    """What one page has been sent, so that it gets only what is new."""

    number: int = -1  # the change up to which it is complete
    sent: dict[str, tuple[str, list[Output]]] = field(default_factory=dict)  # cell: request, outputs

    def news(self, records: Records, after: int, wants: Callable[[Record], bool]) -> list[dict[str, Any]]:
        """Return what has changed since `after`, which is the number that the page got last, or -1."""
        if after != self.number:
            self.sent.clear()  # it has missed an answer: everything again
            after = -1
        found = []
        for record in records.by_cell.values():
            is_known = self.sent.get(record.cell, ("", []))[0] == record.request
            if record.changed > after and (is_known or wants(record)):
                found.append(self._difference(record))
        self.number = records.number
        return found

    def _difference(self, record: Record) -> dict[str, Any]:
        now = record.rendered()
        request, before = self.sent.get(record.cell, ("", []))
        is_new = request != record.request or len(now) < len(before)
        before = [] if is_new else before
        self.sent[record.cell] = (record.request, now)
        return {
            "cell": record.cell,
            "request": record.request,
            "state": record.state,
            "count": record.count,
            "question": record.question,
            "is_whole": is_new,
            "outputs": [
                change
                for index, output in enumerate(now)
                if (change := _change(index, before[index] if index < len(before) else None, output))
            ],
        }


def _change(index: int, before: Output | None, now: Output) -> dict[str, Any] | None:
    if before == now:
        return None
    is_same = before and now["output_type"] == "stream" and before.get("name") == now["name"]
    if before and is_same and now["text"].startswith(before["text"]):
        return {"index": index, "text": now["text"][len(before["text"]) :]}
    return {"index": index, "output": now}
