"""One kernel's recorder: a client of its own that hears what the kernel prints, and the pages that are connected."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Collection, Iterator
from functools import partial
from typing import Any

from jupyter_core.utils import ensure_async
from tornado.websocket import WebSocketClosedError
from zmq.eventloop.zmqstream import ZMQStream

from rocmlab.base import live
from rocmlab.lab import streams
from rocmlab.lab.recorder import files
from rocmlab.lab.recorder.records import DIED, Follower, Record, Records
from rocmlab.notebook.wire import Message

log = logging.getLogger("rocmlab")

SETTING = "RECORD_OUTPUTS"
LOOK_SECONDS = 1.0
WRITE_SECONDS = 2.0  # after a page has gone or a cell has finished, before the file is written
RUNNING_SECONDS = 10.0  # between two writes while a cell prints
FAILED_SECONDS = 30.0  # after a write that failed, as on a full disk, or had to leave something
WRITE_SHARE = 20  # and at least 20 times as long as a write takes
PING_SECONDS = 3.0
PONG_SECONDS = 10.0  # a page that does not answer for so long is gone
BUFFER_BYTES = 20_000_000  # of output that jupyter_server keeps for a page that comes back


class Page:
    """A connected page that runs cells or shows them."""

    def __init__(self, handler: Any) -> None:  # noqa: ANN401  jupyter_server's KernelWebsocketHandler
        self.handler = handler
        self._pinged = 0.0  # when it was last asked; 0: never

    def is_gone(self, now: float) -> bool:
        """Return whether it does not answer; ask it if that is due."""
        is_waiting = self._pinged > max(self.handler.last_pong, 0.0)
        if is_waiting:
            return now - self._pinged > PONG_SECONDS
        if now - self._pinged >= PING_SECONDS:
            with contextlib.suppress(WebSocketClosedError):
                self.handler.ping(b"")
                self._pinged = now
        return False


class Buffer(list):  # type: ignore[type-arg]
    """What jupyter_server keeps for a page that comes back, with a bound: the recorder has all outputs anyway."""

    def __init__(self, hear: Callable[[str, list[Any]], None], kept: list[Any]) -> None:
        super().__init__(kept)
        self._hear = hear
        self._bytes = 0

    def append(self, item: tuple[str, list[Any]]) -> None:
        """Keep a message of a channel."""
        channel, parts = item
        self._hear(channel, parts)
        self._bytes += sum(map(len, parts)) if channel == "iopub" else 0
        if channel != "iopub" or self._bytes <= BUFFER_BYTES:
            super().append(item)


class Tap:
    """Hears one kernel, and writes into the notebooks that no page has open."""

    def __init__(self, server: Any, kernel_id: str) -> None:  # noqa: ANN401  jupyter_server's ServerApp
        self.records = Records()
        self.sockets: dict[str, Any] = {}  # the handlers of all connections, by session id
        self.pages: dict[str, Page] = {}  # those that run cells or show them
        self.chain: files.Chain | None = None
        self.lock = asyncio.Lock()  # held while the file is written
        self._server, self._kernel_id = server, kernel_id
        self._manager = server.kernel_manager.get_kernel(kernel_id)
        self._followers: dict[str, Follower] = {}
        self._paths: dict[str, str] = {}  # of the notebooks, as they were last known, by the ids of Jupyter's sessions
        self._notebooks: dict[str, str] = {}  # which of these ids a page is of, by the page's session id
        self._streams: dict[str, ZMQStream] = {}  # for input() of pages that are gone, by their session id
        self._shell: ZMQStream | None = None
        self._wrote = self._took = 0.0  # when the file was written last, and how long that took
        self.is_closed = False
        self._has_failed = False  # to write all that there was
        self._told: set[str] = set()
        self._manager.add_restart_callback(self._on_death, "restart")
        self._manager.add_restart_callback(self._on_death, "dead")
        self._url = ""
        self._iopub: ZMQStream | None = None
        self.listen()
        self._task = asyncio.ensure_future(self._look())

    @property
    def is_alone(self) -> bool:
        """Return whether no page is connected."""
        return not self.pages

    @property
    def _left(self) -> list[Record]:
        """What the files lack, besides what connected pages have run: they save that."""
        return [each for each in self.records.dirty if each.session not in self.pages]

    def _is_open(self, path: str) -> bool:
        """Return whether a page has a notebook open; a page of which it is not known may have any."""
        return any(self._paths.get(self._notebooks.get(each, ""), path) == path for each in self.pages)

    @property
    def file(self) -> dict[str, str] | None:
        """The notebook's file, and the times between which nothing else than this changed it."""
        if self.chain is None:
            return None
        times = {name: getattr(self.chain, name).isoformat() for name in ("before", "first", "after")}
        return {"path": self.chain.path, **times}

    def listen(self) -> None:
        """Subscribe to the kernel; again only if its address has changed, for that is there a moment later."""
        url = streams.url_of(self._manager)
        if url == self._url:
            return
        if self._iopub is not None:
            streams.close(self._iopub)
        self.records.abort("")
        self._url, self._iopub = url, streams.subscribe(self._manager)
        self._iopub.on_recv(self._hear)

    def hear(self, channel: str, parts: list[Any]) -> None:
        """A message for one page, which may be gone: `input()` asks, or a cell has ended."""
        kind = {"shell": "execute_reply", "stdin": "input_request"}.get(channel)
        with self._logged():
            message = self._message(parts, lambda _, found: found == kind) if kind else None
            if message and message.parent and channel == "shell":
                self.records.reply(message.parent)
            elif message and message.parent:
                content = message.content
                question = {"prompt": content.get("prompt", ""), "password": content.get("password", False)}
                self.records.ask(message.parent, question | {"header": message.header})

    def answered(self, text: str) -> None:
        """A page has sent an answer to `input()`."""
        for record in self.records.unfinished:
            if record.question:
                self.records.answer(record, text)

    def note_page(self, session: str, notebook: str = "") -> None:
        """A connection is a page's, which has run a cell or requested outputs; it may tell whose notebook's it is."""
        if session in self.sockets:
            self.pages.setdefault(session, Page(self.sockets[session]))
            if notebook:
                self._notebooks[session] = notebook

    def connected(self, session: str, handler: Any) -> None:  # noqa: ANN401
        """Someone is connected: for the cells of those who are not, `input()` is heard here."""
        self.sockets[session] = handler
        self.pages.pop(session, None)
        self._close(session)
        self.hear_orphans(besides=session)

    def disconnected(self, session: str, handler: Any) -> None:  # noqa: ANN401
        """A connection has ended."""
        if self.sockets.get(session) is handler:
            self._wrote = 0.0
            del self.sockets[session]
            self.pages.pop(session, None)
            self._followers.pop(session, None)
        kept = getattr(self._server.kernel_manager, "_kernel_buffers", {})
        if self._kernel_id in kept and not isinstance(kept[self._kernel_id]["buffer"], Buffer):
            kept[self._kernel_id]["buffer"] = Buffer(self.hear, kept[self._kernel_id]["buffer"])
        self.hear_orphans()

    def hear_orphans(self, besides: str = "") -> None:
        """Hear `input()` of cells whose page is gone, and for which jupyter_server keeps no channels."""
        kept = getattr(self._server.kernel_manager, "_kernel_buffers", {})
        kept_session = kept[self._kernel_id]["session_key"].rpartition(":")[2] if self._kernel_id in kept else ""
        waiting = {each.session for each in self.records.unfinished}
        for session in self._streams.keys() - waiting:
            self._close(session)
        for session in waiting - {*self.sockets, *self._streams, besides, kept_session}:
            self._streams[session] = stream = self._manager.connect_stdin(identity=session.encode())
            stream.on_recv(partial(self.hear, "stdin"))

    def _close(self, session: str) -> None:
        if stream := self._streams.pop(session, None):
            streams.close(stream)

    async def news(self, session: str, after: int, requests: Collection[str]) -> dict[str, Any]:
        """Return to a page what it lacks: of its own requests, those that it names."""

        def is_wanted(record: Record) -> bool:
            is_new = record.state != "done" or record.changed > record.saved
            return record.request in requests or (record.session != session and is_new)

        async with self.lock:  # else it would know the file less than its reader does
            follower = self._followers.get(session) or Follower()
            if session in self.sockets:  # who is not connected gets everything each time, and nothing is kept for him
                self._followers[session] = follower
            cells = follower.news(self.records, after, is_wanted)
            file = self.file
        open_cells = [each for each in self.records.unfinished if is_wanted(each)]
        has_displays = any(self.records.has_display(each) for each in follower.sent)
        return {
            "number": follower.number,
            "cells": cells,
            "file": file,
            "is_connected": session in self.sockets,
            "continues": bool(open_cells) or has_displays,
        }

    async def place(self, session: str) -> dict[str, Any]:
        """Return whether a page's connection is known here, and the notebook's file, as it is after any write."""
        async with self.lock:  # else a page would find a newer file, hear nothing of this write, and ask its user
            return {"is_connected": session in self.sockets, "file": self.file}

    def note_save(self, path: str, cells: set[str], begun: float) -> None:
        """A page has saved a notebook."""
        if path in self._paths.values():
            if self._is_open(path):
                self.records.saved(cells, begun)
            else:  # it comes from a page that has no connection, and may know less than the file
                self.records.rewrite(cells)

    async def close(self) -> None:
        """Write what is left, and hear no more."""
        self._task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._task
        await self._end()

    async def _end(self) -> None:
        if is_on() and self._left:
            await self.write()
        left = [each for each in (self._iopub, self._shell, *self._streams.values()) if each and not each.closed()]
        self._streams.clear()
        for stream in left:
            stream.stop_on_recv()
        await asyncio.sleep(0)  # see `streams.close`
        for stream in left:
            stream.close()

    async def write(self) -> None:
        """Write what the files lack, but for those that a page has open."""
        self._has_failed = False
        await self._find_paths()
        contents, was_alone = self._server.contents_manager, self.is_alone
        if not files.is_known(contents):
            name = type(contents).__name__
            self._tell(
                name, "outputs are kept for pages, not written into files: %s stores notebooks its own way", name
            )
            return
        paths, left = {path: key for key, path in self._paths.items()}, self._left
        records = list(self.records.by_cell.values())
        owners, unread = await files.paths_of(contents, list(paths), records)
        for each in records:
            if each.request in owners:  # what a page ran tells its notebook, if it does not
                self._notebooks.setdefault(each.session, paths[owners[each.request]])
        async with self.lock:
            for path in paths:
                mine = [each for each in left if owners.get(each.request) == path]
                found = await self._write_one(path, mine) if mine else []
                left = [each for each in left if each not in found]
        if left and (unread or not was_alone):  # a file that could not be read may have the cell, or get it from a page
            self._has_failed = True
            for path, err in unread.items():
                self._note_failure(path, err)
            return
        text = "the output of cell %s is kept for its page alone: no notebook of this kernel has that cell"
        for record in left:
            record.written = record.changed
            self._tell(record.request, text, record.cell)

    async def _write_one(self, path: str, records: list[Record]) -> list[Record]:
        """Write into one notebook, unless it is open, and return what belongs into it."""
        if self._is_open(path):
            self._has_failed = True
            return records
        try:
            self.chain, found = await files.write(self._server.contents_manager, self.chain, path, records)
        except Exception as err:  # whatever the file, its folder or a hook of the user has: it is retried
            self._note_failure(path, err)
            return records
        return found

    async def _find_paths(self) -> None:
        found = {
            each["id"]: each["path"]
            for each in await ensure_async(self._server.session_manager.list_sessions())
            if (each.get("kernel") or {}).get("id") == self._kernel_id and each["type"] == "notebook"
        }
        self._paths = found or self._paths

    def _note_failure(self, path: str, err: Exception) -> None:
        self._has_failed, reason = True, getattr(err, "log_message", None) or err
        self._tell(path, "outputs are not written into %s, and that is retried: %s", path, reason)

    def _tell(self, key: str, text: str, *values: object) -> None:
        if key not in self._told:
            self._told.add(key)
            log.warning(text, *values)

    async def _look(self) -> None:
        """Each second: who is still there, and what has to be written; until the kernel ends or this is turned off."""
        while self._kernel_id in self._server.kernel_manager and is_on():
            await asyncio.sleep(LOOK_SECONDS)
            try:
                if is_on():
                    await self._look_once(time.monotonic())
            except Exception:
                log.exception("the recorder of kernel %s failed; it continues", self._kernel_id)
        self.is_closed = True
        if self._kernel_id not in self._server.kernel_manager:
            self.records.abort(DIED)
        await self._end()

    async def _look_once(self, now: float) -> None:
        self.records.settle()
        if self.records.unfinished or self.records.dirty:
            loop_now = asyncio.get_running_loop().time()
            for page in [each for each in self.pages.values() if each.is_gone(loop_now)]:
                log.warning("a page of kernel %s does not answer: its connection is closed", self._kernel_id)
                page.handler.close()
                for session in [key for key, each in self.sockets.items() if each is page.handler]:
                    del self.sockets[session], self.pages[session]
                self._wrote = 0.0
        if self.is_alone:
            self._send_comms()
        elif self.records.dirty:
            await self._find_paths()
        self.records.comms.clear()
        left = self._left
        pause = WRITE_SECONDS if any(each.state == "done" for each in left) else RUNNING_SECONDS
        pause = FAILED_SECONDS if self._has_failed else pause
        if left and now - self._wrote >= max(pause, self._took * WRITE_SHARE):
            await self.write()
            self._wrote = time.monotonic()
            self._took = self._wrote - now

    def _send_comms(self) -> None:
        """Give output widgets what they caught, which else the page does: the next page gets it from the kernel."""
        for identity, data in self.records.comms.items():
            if self._shell is None:
                self._shell = self._manager.connect_shell()
            self._manager.session.send(self._shell, "comm_msg", {"comm_id": identity, "data": data})

    def _hear(self, parts: list[Any]) -> None:
        with self._logged():
            message = self._message(parts, self.records.knows, self.records.hear_kernel)
            if message:
                self.records.take(message)

    @contextlib.contextmanager
    def _logged(self) -> Iterator[None]:
        try:
            yield
        except Exception as err:
            self._tell(repr(err)[:200], "a message of kernel %s was not recorded: %r", self._kernel_id, err)

    def _message(
        self,
        parts: list[Any],
        is_wanted: Callable[[str | None, str], bool],
        hear_kernel: Callable[[str, str | None], object] = lambda *_: None,
    ) -> Message | None:
        session = self._manager.session
        _, (_, header, parent, _, content, *_) = session.feed_identities(parts)
        header, parent = session.unpack(header), session.unpack(parent)
        if header.get("session") != parent.get("session"):  # some kernels name the page's there, not their own
            hear_kernel(str(header.get("session")), parent.get("msg_id"))
        if not is_wanted(parent.get("msg_id"), header["msg_type"]):
            return None
        return Message(header["msg_type"], parent.get("msg_id"), session.unpack(content), header, [])

    def _on_death(self) -> None:
        self.records.abort(DIED)


def is_on() -> bool:
    """Return whether outputs are recorded, as the setting is now."""
    return live.get(SETTING) != "off"
