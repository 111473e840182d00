"""The recorder of a kernel: it hears a socket on which the test sends as a kernel does, and writes into a folder."""

from __future__ import annotations

import asyncio
import json
import logging
import math
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import nbformat
import pytest
import zmq
import zmq.asyncio
from jupyter_client.ioloop import AsyncIOLoopKernelManager
from jupyter_server.services.contents.largefilemanager import AsyncLargeFileManager
from jupyter_server.services.kernels.connection.channels import ZMQChannelsWebsocketConnection
from nbformat.sign import MemorySignatureStore, NotebookNotary
from tornado.web import HTTPError

from rocmlab.base import live
from rocmlab.lab.recorder.recorder import CLASS, Recorder
from rocmlab.lab.recorder.tap import Tap

pytestmark = pytest.mark.slow


class Kernels(dict):  # type: ignore[type-arg]
    """The kernels of a server."""

    def get_kernel(self, kernel_id: str) -> AsyncIOLoopKernelManager:
        """Return one."""
        return self[kernel_id]


class Lab:
    """A server's parts that the recorder uses, and one kernel of which only the socket for outputs is there."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "n.ipynb"
        self.notebooks: dict[str, str] = {}  # by the ids of their sessions
        self.add("n.ipynb", "a", "b")
        notary = NotebookNotary(store_factory=MemorySignatureStore)
        self.contents_manager = AsyncLargeFileManager(root_dir=str(folder), notary=notary)
        self.web_app = SimpleNamespace(settings={CLASS: ZMQChannelsWebsocketConnection})
        self.session_manager = self
        self.context = zmq.asyncio.Context()
        self.manager = AsyncIOLoopKernelManager(context=self.context)
        self.kernel_manager = Kernels(kernel=self.manager)
        self.socket = zmq.Socket(self.context, zmq.PUB)
        self.manager.iopub_port = self.socket.bind_to_random_port("tcp://127.0.0.1")
        self.recorder = Recorder(self)
        self.session = "of the kernel"

    def add(self, name: str, *cells: str) -> None:
        """Write a notebook that has printed nothing, and start its session `of <name>` on the kernel."""
        made = [nbformat.v4.new_code_cell("code", id=each) for each in cells]
        nbformat.write(nbformat.v4.new_notebook(cells=made), self.path.with_name(name))
        self.notebooks[f"of {name}"] = name

    def list_sessions(self) -> list[dict[str, Any]]:
        """Return the notebooks; Jupyter forgets them with their kernel."""
        found = [(kernel, *each) for kernel in self.kernel_manager for each in self.notebooks.items()]
        return [{"id": key, "path": path, "type": "notebook", "kernel": {"id": each}} for each, key, path in found]

    def send(self, request: str, kind: str, page: str = "page", **content: Any) -> None:
        """Send a message of the kernel."""
        session = self.manager.session
        parent = {"msg_id": request, "msg_type": "execute_request", "session": page}
        message = session.msg(kind, content, parent=parent)
        message["header"]["session"] = self.session
        self.socket.send_multipart(session.serialize(message, ident=kind.encode()))

    async def begin(self) -> Tap:
        """Return the kernel's recorder once it hears; a page has sent cell a, and is gone."""
        tap = self.recorder.tap("kernel", True)
        assert tap
        tap.records.begin("a", "of a", "page", "code")
        while not tap.records.by_cell["a"].count:  # a subscription takes a moment
            self.send("of a", "execute_input", execution_count=1)
            await asyncio.sleep(0.01)
        return tap

    def end(self, request: str) -> None:
        """Have a cell print a text, and end it."""
        self.send(request, "stream", name="stdout", text=f"text {request}")
        self.send(request, "status", execution_state="idle")

    def run(self, test: Callable[[], Awaitable[None]]) -> None:
        """Run a test, and close the recorder whatever comes of it."""

        async def closed() -> None:
            try:
                await test()
            finally:
                await self.recorder.close()

        asyncio.run(closed())

    def close(self) -> None:
        """Close the socket."""
        self.socket.close(0)
        self.context.term()

    def printed(self, name: str = "n.ipynb") -> list[str]:
        """Return what a file has."""
        cells = nbformat.read(self.path.with_name(name), 4).cells
        return ["".join(each.get("text", "") for each in cell.outputs) for cell in cells]


def opened(tap: Tap, session: str, notebook: str = "") -> SimpleNamespace:
    """Connect a page that answers, and that may tell its notebook; return its connection."""
    tap.sockets[session] = handler = SimpleNamespace(last_pong=math.inf, ping=lambda _: None)
    tap.note_page(session, notebook)
    return handler


async def until(is_true: Callable[[], object]) -> None:
    """Wait until something is true."""
    end = time.monotonic() + 20
    while not is_true():
        assert time.monotonic() < end
        await asyncio.sleep(0.01)


def test_what_one_kernel_printed_is_written_where_another_s_cannot_be(
    lab: Lab, caplog: pytest.LogCaptureFixture
) -> None:
    """At the server's end, when nothing asks again; the error is in the log."""

    async def test() -> None:
        lab.kernel_manager["other"] = lab.manager
        other = lab.recorder.tap("other", True)
        assert other
        close = other.close

        async def fail() -> None:
            await close()
            raise RuntimeError("a disk that is gone")

        other.close = fail  # type: ignore[method-assign]
        tap = await lab.begin()
        lab.end("of a")
        await until(lambda: tap.records.by_cell["a"].state == "done")

    lab.run(test)

    assert lab.printed() == ["text of a", ""]
    assert "RuntimeError: a disk that is gone" in caplog.text


def test_hearing_again_while_the_kernel_says_something_leaves_no_warning(
    lab: Lab, caplog: pytest.LogCaptureFixture
) -> None:
    """As when a page connects while its kernel starts: pyzmq warns of a stream that is closed with a message in it."""

    async def test() -> None:
        for _ in range(20):
            tap = await lab.begin()
            tap.records.reply("of a")
            lab.send("of a", "status", execution_state="idle")
            for _ in range(20):
                lab.send("of nothing", "stream", name="stdout", text="a line")
            while tap.records.unfinished:
                await asyncio.sleep(0)
            lab.manager.iopub_port = lab.socket.bind_to_random_port("tcp://127.0.0.1")  # as after a restart
            tap.listen()
        await asyncio.sleep(0.01)

    lab.run(test)

    assert not caplog.records


@asynccontextmanager
async def slow_way(port: int) -> AsyncIterator[int]:
    """Offer a port that leads to another one of this host; each connection takes a moment to be there."""
    open_ways: list[asyncio.Task[None] | None] = []

    async def pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(65536):
            writer.write(data)

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        open_ways.append(asyncio.current_task())
        await asyncio.sleep(0.3)
        its_reader, its_writer = await asyncio.open_connection("127.0.0.1", port)
        try:
            await asyncio.gather(pump(reader, its_writer), pump(its_reader, writer))
        finally:
            for each in (writer, its_writer):
                each.close()
                await each.wait_closed()

    server = await asyncio.start_server(connected, "127.0.0.1", 0)
    yield server.sockets[0].getsockname()[1]
    server.close()
    for way in open_ways:
        assert way
        way.cancel()
        with suppress(asyncio.CancelledError):
            await way


def test_a_page_that_connects_costs_no_output_of_what_another_one_runs(lab: Lab) -> None:
    """A second subscription in place of the first would be there a moment later, and lack what came meanwhile."""

    async def test() -> None:
        async with slow_way(lab.manager.iopub_port) as lab.manager.iopub_port:
            tap = await lab.begin()
            tap.records.reply("of a")
            lab.end("of a")
            await until(lambda: not tap.records.unfinished)
            tap.listen()  # a page connects
            tap.records.begin("b", "of b", "page", "code")
            lab.end("of b")
            tap.records.reply("of b")
            await until(lambda: "text of b" in lab.printed())

    lab.run(test)


@pytest.fixture
def lab(tmp_path: Path) -> Any:
    """A server whose recorder is installed."""
    made = Lab(tmp_path)
    made.recorder.install()
    yield made
    made.close()


def test_off_means_that_no_file_is_written_from_now_on(
    lab: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also of a cell that began while it was on; turned on again it records what begins then."""
    settings = tmp_path / "live.json"
    monkeypatch.setenv(live.VARIABLE, str(settings))

    async def run() -> None:
        tap = await lab.begin()
        lab.send("of a", "stream", name="stdout", text="text")
        await until(lambda: tap.records.by_cell["a"].rendered())
        settings.write_text(json.dumps({"RECORD_OUTPUTS": "off"}))
        before = lab.path.read_bytes()
        await until(lambda: tap.is_closed)
        await asyncio.sleep(0)
        assert lab.path.read_bytes() == before
        assert lab.recorder.tap("kernel", False) is None
        settings.write_text("{}")
        again = await lab.begin()
        assert again is not tap
        lab.send("of a", "stream", name="stdout", text="again")
        await until(lambda: again.records.by_cell["a"].rendered())

    lab.run(run)

    assert lab.printed() == ["again", ""]


def test_a_save_of_a_page_counts_only_when_it_is_done(lab: Lab) -> None:
    """After one that failed, as on a full disk, the outputs are written once the page is gone."""
    is_full = True

    def fail(**_: Any) -> None:
        if is_full:
            raise HTTPError(507)

    async def run() -> None:
        nonlocal is_full
        tap = await lab.begin()
        await until(lambda: tap.file)  # it has written, and knows its notebook
        lab.contents_manager.register_pre_save_hook(fail)
        tap.sockets["page"] = tap.pages["page"] = SimpleNamespace(is_gone=lambda _: False)
        lab.send("of a", "stream", name="stdout", text="text")
        await until(lambda: tap.records.by_cell["a"].rendered())
        tap.records.by_cell["a"].changed_at -= 60
        model = await lab.contents_manager.get("n.ipynb")
        with pytest.raises(HTTPError):
            await lab.contents_manager.save({"type": "notebook", "content": model["content"]}, "n.ipynb")
        after_failure, is_full = len(tap.records.dirty), False
        await lab.contents_manager.save({"type": "notebook", "content": model["content"]}, "n.ipynb")
        assert (after_failure, tap.records.dirty) == (1, [])

    lab.run(run)


def test_a_page_that_asks_during_a_write_is_told_of_it(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """The file is new and its time not known yet: a page that saves then must not take it for another user's change."""
    get, has_replaced, may_continue = lab.contents_manager.get, asyncio.Event(), asyncio.Event()

    async def slow(path: str, **options: Any) -> Any:
        found = await get(path, **options)
        if options.get("content") is False:
            has_replaced.set()
            await may_continue.wait()
        return found

    async def run() -> None:
        tap = await lab.begin()
        monkeypatch.setattr(lab.contents_manager, "get", slow)
        lab.send("of a", "stream", name="stdout", text="text")
        await has_replaced.wait()
        answer = asyncio.ensure_future(tap.place("page"))
        await asyncio.sleep(0.05)
        may_continue.set()
        file = (await answer)["file"]
        assert file is not None
        assert file["after"] == (await get("n.ipynb", content=False))["last_modified"].isoformat()

    lab.run(run)


def test_a_cell_whose_last_message_was_lost_ends_with_its_reply(lab: Lab) -> None:
    """Its page has the reply from another socket; what was printed may still be on its way."""

    async def run() -> None:
        tap = await lab.begin()
        session = lab.manager.session
        reply = session.msg("execute_reply", {"status": "ok"}, parent={"msg_id": "of a", "session": "page"})
        tap.hear("shell", session.serialize(reply))
        states = [each.state for each in tap.records.unfinished]
        await until(lambda: not tap.records.unfinished)
        assert states == ["running"]

    lab.run(run)


@pytest.mark.parametrize(("session", "is_over"), [("another page", False), ("another process", True)])
def test_a_kernel_that_names_the_pages_session_is_not_taken_for_a_new_one(
    lab: Lab, session: str, is_over: bool
) -> None:
    """IJulia copies a request's session into the answer; a new process names one that no page has."""

    async def run() -> None:
        tap = await lab.begin()
        lab.session = session
        lab.send("of another", "status", page="another page", execution_state="busy")
        lab.session = "of the kernel"
        lab.send("of a", "stream", name="stdout", text="text")
        await until(lambda: tap.records.by_cell["a"].rendered())
        assert (tap.records.unfinished == []) == is_over

    lab.run(run)


def test_connections_of_another_class_stay_as_they_are(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A gateway's, say: nothing is recorded, and the log names the class."""
    lab = Lab(tmp_path)
    lab.web_app.settings[CLASS] = SimpleNamespace

    with caplog.at_level(logging.WARNING, "rocmlab"):
        lab.recorder.install()
    lab.close()

    assert lab.web_app.settings[CLASS] is SimpleNamespace
    assert "is not kept: connections to kernels are of the class SimpleNamespace" in caplog.text


@pytest.mark.parametrize("is_told", [True, False])
def test_a_closed_notebook_is_written_at_the_kernels_end_although_another_one_is_open(lab: Lab, is_told: bool) -> None:
    """What is open is its page's; a page that does not tell its notebook has the one open of which it ran a cell."""
    lab.add("m.ipynb", "c")

    async def run() -> None:
        tap = await lab.begin()
        await until(lambda: tap.file)  # it has written, and knows its notebooks
        opened(tap, "another", "of m.ipynb" if is_told else "")
        tap.records.begin("c", "of c", "one that is gone" if is_told else "another", "code")
        lab.end("of a")
        lab.end("of c")
        await until(lambda: not tap.records.unfinished)
        del lab.kernel_manager["kernel"]
        await until(lambda: tap.is_closed and lab.printed()[0])

    lab.run(run)

    assert lab.printed() == ["text of a", ""]
    assert lab.printed("m.ipynb") == [""]


def test_each_notebook_of_a_kernel_waits_for_its_own_pages(lab: Lab) -> None:
    """While the kernel lives, too; the one that was open is written once its page is gone."""
    lab.add("m.ipynb", "c")

    async def run() -> None:
        tap = await lab.begin()
        page = opened(tap, "another", "of m.ipynb")
        tap.records.begin("c", "of c", "another", "code")
        lab.end("of a")
        lab.end("of c")
        await until(lambda: lab.printed()[0] and not tap.records.unfinished)
        while_open = lab.printed("m.ipynb")
        tap.disconnected("another", page)
        await until(lambda: lab.printed("m.ipynb")[0])
        assert while_open == [""]

    lab.run(run)

    assert lab.printed() == ["text of a", ""]
    assert lab.printed("m.ipynb") == ["text of c"]


def test_while_it_is_not_known_what_a_page_has_open_nothing_is_written(lab: Lab) -> None:
    """It may be any notebook of the kernel, until the page tells it."""
    lab.add("m.ipynb", "c")

    async def run() -> None:
        tap = await lab.begin()
        opened(tap, "another")
        lab.end("of a")
        await until(lambda: not tap.records.unfinished)
        await tap.write()
        before = lab.printed()
        tap.note_page("another", "of n.ipynb")
        await tap.write()
        assert before == lab.printed() == ["", ""]
        tap.note_page("another", "of m.ipynb")
        await tap.write()

    lab.run(run)

    assert lab.printed() == ["text of a", ""]


def test_a_cell_that_is_in_no_file_yet_is_kept_as_long_as_a_page_may_save_it(lab: Lab) -> None:
    """Only without any page is it certain that no notebook will have it."""
    lab.add("m.ipynb", "c")

    async def run() -> None:
        tap = await lab.begin()
        opened(tap, "another", "of m.ipynb")
        tap.records.begin("new", "of new", "one that is gone", "code")
        lab.end("of new")
        await until(lambda: tap.records.by_cell["new"].state == "done")
        await tap.write()
        lab.add("n.ipynb", "a", "b", "new")
        await tap.write()
        await until(lambda: lab.printed()[2])

    lab.run(run)

    assert lab.printed() == ["", "", "text of new"]


def test_a_save_of_a_page_without_a_connection_does_not_count_for_what_it_lacks(lab: Lab) -> None:
    """Although a page of another notebook of the kernel is connected: what was written is written again."""
    lab.add("m.ipynb", "c")

    async def run() -> None:
        tap = await lab.begin()
        model = await lab.contents_manager.get("n.ipynb")
        opened(tap, "another", "of m.ipynb")
        lab.end("of a")
        await until(lambda: lab.printed()[0] and not tap.records.dirty)
        tap.records.by_cell["a"].changed_at -= 60
        await lab.contents_manager.save({"type": "notebook", "content": model["content"]}, "n.ipynb")
        after_save = lab.printed()
        await until(lambda: lab.printed()[0])
        assert after_save == ["", ""]

    lab.run(run)


@pytest.mark.parametrize("is_there", [True, False])
def test_a_notebook_that_cannot_be_read_for_a_moment_is_written_later(
    lab: Lab, caplog: pytest.LogCaptureFixture, is_there: bool
) -> None:
    """Also if another one of the kernel can be: as long as one is unread, the cell may be in that."""
    lab.add("m.ipynb", "c")
    whole = lab.path.read_bytes()

    async def run() -> None:
        tap = await lab.begin()
        lab.end("of a")
        await until(lambda: not tap.records.unfinished)
        lab.path.write_bytes(whole[:40])
        if not is_there:
            lab.path.unlink()
        tap.records.rewrite({"a"})  # if it was written before
        await tap.write()
        lab.path.write_bytes(whole)
        await tap.write()
        await until(lambda: not tap.records.dirty)

    lab.run(run)

    assert lab.printed() == ["text of a", ""]
    assert "outputs are not written into n.ipynb, and that is retried" in caplog.text
    assert "no notebook of this kernel" not in caplog.text
