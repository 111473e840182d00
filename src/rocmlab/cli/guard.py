"""Work that reads hardware, given a limited time.

A read that hangs in the driver cannot be interrupted: neither a signal nor the end of the process reaches it. So the
work is done by a child process, and the caller leaves it behind when the time is over.
"""

from __future__ import annotations

import gc
import marshal
import os
import selectors
import signal
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from mmap import mmap

from rocmlab.base.errors import RocmlabError
from rocmlab.devices import roots

TYPE_CHECKING = False  # `typing` itself would cost milliseconds
if TYPE_CHECKING:
    from typing import Any, TypeVar

    T = TypeVar("T")

NOTE_BYTES = 4096
END_SECONDS = 1.0  # for a child that was killed; on a busy machine it takes a moment


@dataclass
class _Child:
    """A process that does one piece of work."""

    pid: int
    receiving: int  # its answer comes here
    note: mmap  # shared: it writes what it reads next
    answer: bytes = b""
    has_ended: bool = False


def within(seconds: float, work: Callable[[], T]) -> T:
    """Return what `work` makes in a child process; it must consist of texts, numbers, None, lists and dictionaries.

    Raises:
        RocmlabError: what `work` raised, or the file whose reading took longer than `seconds`.
        OSError: what `work` raised.
    """
    answer = each_within(seconds, [work])[0]
    if isinstance(answer, RocmlabError | OSError):
        raise answer
    return answer


def each_within(seconds: float, works: Sequence[Callable[[], T]]) -> list[T | RocmlabError | OSError]:
    """Do several pieces of work at the same time, and return what each made, or in its place what `within` would raise.

    So one GPU that hangs does not take the others' answers away.
    """
    if not hasattr(os, "fork"):
        return [work() for work in works]
    sys.stdout.flush()
    sys.stderr.flush()
    children: list[_Child] = []
    try:
        for work in works:
            children.append(_start(work))  # one by one: what has been started is ended if the next cannot be
        _receive(children, seconds)
        return [_unpack(child.answer) if child.has_ended else hung(child.note, seconds) for child in children]
    finally:
        for child in children:
            os.close(child.receiving)
            if child.has_ended:
                os.waitpid(child.pid, 0)
            else:
                end_child(child.pid)


def end_child(pid: int) -> None:
    """Kill a child and wait for its end, unless the driver holds it: then it ends when the driver lets go."""
    os.kill(pid, signal.SIGKILL)
    end = time.monotonic() + END_SECONDS
    while os.waitpid(pid, os.WNOHANG) == (0, 0) and time.monotonic() < end:
        time.sleep(0.001)


def _start(work: Callable[[], Any]) -> _Child:
    note = mmap(-1, NOTE_BYTES)
    receiving, sending = os.pipe()
    pid = os.fork()
    if pid == 0:
        _work_in_child(work, sending, note)
    os.close(sending)
    return _Child(pid, receiving, note)


def write_note(note: mmap, name: str) -> None:
    """Write what is read next where the parent sees it; `note` has NOTE_BYTES."""
    note[:NOTE_BYTES] = name.encode("utf-8", "replace")[: NOTE_BYTES - 1].ljust(NOTE_BYTES, b"\0")


def _work_in_child(work: Callable[[], Any], sending: int, note: mmap) -> None:
    """Do the work, send its result, and leave without running what belongs to the parent."""
    status = 1
    gc.disable()  # it ends before that would be worth its time
    try:
        roots.on_read = lambda name: write_note(note, name)
        try:
            answer: Any = (work(),)
        except RocmlabError as err:
            answer = err.arguments()
        except OSError as err:
            answer = (err.errno or 0, err.strerror or str(err), str(err.filename or "") or None)
        packed = marshal.dumps(answer)
        while packed:
            packed = packed[os.write(sending, packed) :]
        status = 0
    except KeyboardInterrupt:
        pass  # the parent reports it
    except BaseException:
        sys.excepthook(*sys.exc_info())
        sys.stderr.flush()
    finally:
        os._exit(status)


def _receive(children: Sequence[_Child], seconds: float) -> None:
    """Take what the children send until all have ended, or the time is over."""
    end = time.monotonic() + seconds
    waiting = {child.receiving: child for child in children}
    while waiting:
        ready = readable(waiting, end - time.monotonic())
        if not ready:
            return
        for receiving in ready:
            part = os.read(receiving, 1 << 16)
            waiting[receiving].answer += part
            if not part:
                waiting.pop(receiving).has_ended = True


def readable(descriptors: Iterable[int], seconds: float) -> list[int]:
    """Return which of these can be read, after at most that time; `select` itself takes none from 1024 on."""
    with selectors.DefaultSelector() as selector:
        for descriptor in descriptors:
            selector.register(descriptor, selectors.EVENT_READ)
        return [key.fd for key, _ in selector.select(max(0.0, seconds))]


def _unpack(answer: bytes) -> Any:  # noqa: ANN401
    if not answer:
        return RocmlabError("the devices could not be read", "the process that read them ended", "see the lines above")
    values = marshal.loads(answer)
    if isinstance(values, dict):
        return RocmlabError(**values)
    return values[0] if len(values) == 1 else OSError(*values)


def hung(note: mmap, seconds: float) -> RocmlabError:
    """Return the error that names the file whose reading has taken longer than N seconds."""
    name = bytes(note).split(b"\0", 1)[0].decode("utf-8", "replace")
    if name.startswith("/"):
        name = os.path.realpath(name)  # which has the PCI address in it
    return RocmlabError.of(roots.hanging(f"reading {name or 'the devices'} took longer than {seconds:g} seconds"))
