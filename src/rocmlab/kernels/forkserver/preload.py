"""What a fork server imports, once, for all of its kernels."""

from __future__ import annotations

import contextlib
import gc
import importlib
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rocmlab.kernels.forkserver import guards
else:
    import _rocmlab_forkserver_guards as guards

# What ipykernel imports when a kernel starts, and what the first cell needs; a name that is not there does no harm.
OF_KERNELS = (
    "ipykernel.debugger",
    "ipykernel_launcher",
    "IPython.core.completerlib",
    "IPython.core.debugger",
    "IPython.core.oinspect",
    "IPython.extensions.storemagic",
    "faulthandler",
    "sqlite3",
    "tornado.platform.asyncio",
    "tornado.queues",
)
# Libraries start threads when they are loaded, and a process with threads cannot be forked safely.
ONE_THREAD = {
    "OPENBLAS_NUM_THREADS": "1",  # a kernel starts its own
    "JE_ARROW_MALLOC_CONF": "background_thread:false",  # pyarrow's allocator, which pandas and so Keras may load
}


def prepare(modules: Sequence[str]) -> str | None:
    """Import, and return why nothing can be forked; None if it can."""
    try:
        _import(modules)
    except BaseException as err:
        gc.enable()
        return f"import of {', '.join(('ipykernel', *modules))} failed: {type(err).__name__}: {err}"
    return guards.obstacle()


def _import(modules: Sequence[str]) -> None:
    """Import modules for good: no collection in between, one thread, and nothing of it looked at again."""
    gc.disable()
    with _environment(ONE_THREAD):
        importlib.import_module("ipykernel.kernelapp")
        for name in OF_KERNELS:
            with contextlib.suppress(ImportError):
                importlib.import_module(name)
        for name in modules:
            importlib.import_module(name)
    gc.freeze()
    gc.enable()


@contextlib.contextmanager
def _environment(variables: Mapping[str, str]) -> Iterator[None]:
    """Set variables meanwhile."""
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
