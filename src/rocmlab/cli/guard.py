"""Work that reads hardware, given a limited time.

A read that hangs in the driver cannot be interrupted: neither a signal nor the end of the process reaches it. So the
work is done by a child process, and the caller leaves it behind when the time is over.
"""

from __future__ import annotations

import gc
import marshal
import os
import select
import signal
import sys
import time
from collections.abc import Callable
from mmap import mmap

from rocmlab.devices import roots
from rocmlab.errors import RocmlabError

NOTE_BYTES = 4096


def within(seconds: float, work: Callable[[], str]) -> str:
    """Return the text that `work` makes in a child process.

    Raises:
        RocmlabError: what `work` raised, or the file whose reading took longer than `seconds`.
        OSError: what `work` raised.
    """
    if not hasattr(os, "fork"):
        return work()
    note = mmap(-1, NOTE_BYTES)  # shared: the child writes what it reads next
    receiving, sending = os.pipe()
    sys.stdout.flush()
    sys.stderr.flush()
    child = os.fork()
    if child == 0:
        os.close(receiving)
        _work_in_child(work, sending, note)
    os.close(sending)
    try:
        answer = _receive(receiving, seconds)
    except BaseException:
        os.kill(child, signal.SIGKILL)
        raise
    finally:
        os.close(receiving)
    if answer is None:
        os.kill(child, signal.SIGKILL)  # in vain if the driver holds it; then it ends when the driver lets go
        raise _hung(bytes(note).split(b"\0", 1)[0].decode("utf-8", "replace"), seconds)
    os.waitpid(child, 0)
    return _unpack(answer)


def _write_note(note: mmap, name: str) -> None:
    note[:NOTE_BYTES] = name.encode("utf-8", "replace")[: NOTE_BYTES - 1].ljust(NOTE_BYTES, b"\0")


def _work_in_child(work: Callable[[], str], sending: int, note: mmap) -> None:
    """Do the work, send its result, and leave without running what belongs to the parent."""
    status = 1
    gc.disable()  # it ends before that would be worth its time
    try:
        roots.on_read = lambda name: _write_note(note, name)
        try:
            answer: tuple[str, ...] = (work(),)
        except RocmlabError as err:
            answer = (err.problem.what, err.problem.why, err.problem.fix, str(err.exit_code))
        except OSError as err:
            answer = (str(err.errno or 0), err.strerror or str(err), str(err.filename or ""))
        packed = marshal.dumps(answer)
        while packed:
            packed = packed[os.write(sending, packed) :]
        status = 0
    except KeyboardInterrupt:
        pass  # the parent says so
    except BaseException:
        sys.excepthook(*sys.exc_info())
        sys.stderr.flush()
    finally:
        os._exit(status)


def _receive(receiving: int, seconds: float) -> bytes | None:
    """Return everything up to the end, or None if that takes too long."""
    end = time.monotonic() + seconds
    parts: list[bytes] = []
    while True:
        ready = select.select([receiving], [], [], max(0.0, end - time.monotonic()))[0]
        if not ready:
            return None
        part = os.read(receiving, 1 << 16)
        if not part:
            return b"".join(parts)
        parts.append(part)


def _unpack(answer: bytes) -> str:
    if not answer:
        raise RocmlabError("the devices could not be read", "the process that read them ended", "see the lines above")
    values = marshal.loads(answer)
    if len(values) == 1:
        return str(values[0])
    if len(values) == 3:
        raise OSError(int(values[0]), values[1], values[2] or None)
    what, why, fix, code = values
    raise RocmlabError(what, why, fix, exit_code=int(code))


def _hung(name: str, seconds: float) -> RocmlabError:
    if name.startswith("/"):
        name = os.path.realpath(name)  # which has the PCI address in it
    return RocmlabError(
        f"reading {name or 'the devices'} took longer than {seconds:g} seconds",
        "the GPU or its driver hangs",
        "see `sudo dmesg | grep -i -e amdgpu -e nvrm | tail`; a hung GPU needs a restart",
    )
