"""A forked kernel: what it must still become before it is like one that was started in the ordinary way.

Everything that a kernel gets from the process that starts it is set here: session, output, environment, folder,
arguments, seeds, lease. Then ipykernel's own application runs.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import gc
import importlib.util
import os
import random
import sys
import tempfile
import threading
import traceback
import weakref
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NoReturn

if TYPE_CHECKING:
    from rocmlab.base import job_tokens
    from rocmlab.kernels.forkserver import inheritance, lifeline
    from rocmlab.kernels.forkserver.messages import Request
else:
    import _rocmlab_forkserver_inheritance as inheritance
    import _rocmlab_forkserver_job_tokens as job_tokens
    import _rocmlab_forkserver_lifeline as lifeline

SETTLE_SECONDS = 0.5
THREADS = ("OPENBLAS_NUM_THREADS", "GOTO_NUM_THREADS", "OMP_NUM_THREADS")  # OpenBLAS's own order
OPENBLAS = (
    "scipy_openblas_set_num_threads64_",
    "scipy_openblas_set_num_threads",
    "openblas_set_num_threads64_",
    "openblas_set_num_threads",
)


def run(request: Request, token: str, keep: Sequence[int], serving: Callable[[], None]) -> NoReturn:
    """Become a kernel, and exit with it.

    Args:
        request: what to become.
        token: of its job.
        keep: descriptors that were there before any client came.
        serving: called when its sockets are bound.
    """
    code = 1
    try:
        os.setsid()
        _take_over(request, token, keep)
        _application(request, serving)
        code = 0
    except SystemExit as err:
        code = err.code if isinstance(err.code, int) else int(err.code is not None)
    except BaseException:
        traceback.print_exc()
    finally:
        _leave(code)


def _leave(code: int) -> NoReturn:
    """End as Python does, but for the tearing down of all modules, which takes a second and helps no one."""
    with contextlib.suppress(BaseException):
        threading._shutdown()  # type: ignore[attr-defined]  # waits for threads that are not daemons
    with contextlib.suppress(BaseException):
        atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr, sys.__stdout__, sys.__stderr__):
        with contextlib.suppress(BaseException):
            stream.flush()  # type: ignore[union-attr]
    os._exit(code & 0xFF)


def _take_over(request: Request, token: str, keep: Sequence[int]) -> None:
    job_tokens.write(token)
    _descriptors(request, keep)
    lifeline.tie(request.lifeline, os.getpgrp())
    if lifeline.is_closed(request.lifeline):  # before the signal was requested
        os._exit(1)
    os.environ.clear()
    os.environ.update(request.environment)
    os.environ[job_tokens.NAME] = token
    _change_directory(request.cwd)
    tempfile.tempdir = None  # found again, in this environment
    _seeds()
    _threads()
    inheritance.keep(request.leases)
    _forget_ends()
    gc.enable()


def _forget_ends() -> None:
    """Leave what the parent's objects do at their end to the parent: its temporary folders are not this kernel's."""
    for each in list(getattr(weakref.finalize, "_registry", ())):
        each.atexit = False


def _descriptors(request: Request, keep: Sequence[int]) -> None:
    """Keep what is this kernel's and close what is the parent's: its sockets, and other clients' descriptors."""
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.dup2(request.output, 1)
    os.dup2(request.output, 2)
    wanted = {0, 1, 2, request.lifeline, *request.leases, *keep}
    for name in os.listdir("/proc/self/fd"):
        if int(name) not in wanted:
            with contextlib.suppress(OSError):
                os.close(int(name))


def _change_directory(cwd: str) -> None:
    """Go where the kernel runs; what is relative in PYTHONPATH was looked up where the parent runs."""
    before = os.getcwd()
    os.chdir(cwd)
    entries = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    relative = {os.path.join(before, entry): os.path.join(cwd, entry) for entry in entries if not os.path.isabs(entry)}
    sys.path[:] = [relative.get(path, path) for path in sys.path]


def _seeds() -> None:
    """Draw new seeds: the parent's would give every kernel the same random numbers."""
    random.seed()
    numpy_random = sys.modules.get("numpy.random")
    if numpy_random is not None:
        numpy_random.seed()
    torch = sys.modules.get("torch")
    if torch is not None:
        torch.default_generator.seed()  # those of GPUs do not exist yet


def _threads() -> None:
    """Give OpenBLAS the threads that it was denied while the parent imported it."""
    count = next(
        (int(text) for text in map(os.environ.get, THREADS) if text and text.isdecimal() and int(text) > 0),
        len(os.sched_getaffinity(0)),
    )
    if count < 2:
        return
    with open("/proc/self/maps", encoding="utf-8", errors="replace") as maps:
        paths = {line.split(maxsplit=5)[-1].strip() for line in maps if "openblas" in line and "/" in line}
    for path in paths:
        library = ctypes.CDLL(path)
        for name in OPENBLAS:
            setter = getattr(library, name, None)
            if setter is not None:
                setter(count)
                break


def _application(request: Request, serving: Callable[[], None]) -> None:
    """Run ipykernel as `python -m ipykernel_launcher -f FILE` does."""
    from ipykernel.kernelapp import IPKernelApp

    class Application(IPKernelApp):  # type: ignore[misc, unused-ignore]  # whether it has types depends on its version
        """Says when it can be reached, and does not watch its parent: it may outlive that."""

        def init_poller(self) -> None:
            """Watch no one; the lifeline does."""

        def log_connection_info(self) -> None:
            """Say that the sockets are bound."""
            super().log_connection_info()  # type: ignore[no-untyped-call, unused-ignore]
            serving()

    launcher = importlib.util.find_spec("ipykernel_launcher")
    arguments = ["-f", request.connection_file, *request.arguments]
    sys.argv = [str(launcher.origin) if launcher else "ipykernel_launcher", *arguments]
    application: Any = Application.instance()
    application.parent_handle = os.getppid()  # or it explains on the output how to end it
    application.initialize(arguments)
    try:
        application.start()
    finally:
        _settle(application)


def _settle(application: Any) -> None:  # noqa: ANN401  an IPKernelApp
    """Wait until the control thread has ended, as it does by itself after a request to shut down.

    It flushes the streams then. If `IPKernelApp.close` stops the thread that sends them meanwhile, both wait for ten
    seconds (ipykernel 7.4, `OutStream.flush`).
    """
    thread = getattr(application, "control_thread", None)
    if thread is not None and thread.is_alive():
        thread.join(SETTLE_SECONDS)
