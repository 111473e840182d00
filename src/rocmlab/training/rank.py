"""One rank: runs a script as `python script.py` would, and exits without the interpreter's own shutdown.

Ranks find each other through a store of keys and values. PyTorch's own for `env://` is a TCP server on all interfaces,
without a password; here it is a file in a folder that only this user can open, for all ranks are on this machine.

Once the script is over, its threads end, its atexit functions run and its files are written, as by itself. The rest of
the shutdown is skipped: the libraries' threads sometimes fail in it ("terminate called without an active exception",
from gloo, once in some dozens of runs), or wait for ever for the interpreter's lock, and a training that had succeeded
would count as failed. It imports nothing of rocmlab, for it runs in PyTorch's environment.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import importlib.util
import io
import os
import sys
import threading
import time
import traceback
import types
import urllib.parse
from collections.abc import Callable, Iterator
from typing import Any

MODULE = "torch.distributed.rendezvous"
END_SECONDS = 30.0  # for threads and atexit functions of a script that failed: the others wait for ranks that are gone
Make = Callable[[int, int], Any]  # of how many meetings of this process it is, and of how many ranks: a Store


def run() -> None:
    """Run `main`, and end this process when the script's threads and atexit functions have ended."""
    codes = [1]
    atexit.register(lambda: _leave(codes[-1]))  # the first to be registered is the last to run
    codes.append(main())
    if codes[-1]:
        limit = threading.Timer(END_SECONDS, os._exit, codes[-1:])
        limit.daemon = True
        limit.start()


def main() -> int:
    """Run the script that the first argument names with the other arguments, and return its exit code."""
    if folder := os.environ.get("ROCMLAB_RANK_STORE"):
        use_store(lambda number, ranks: _file_store(os.path.join(folder, f"store{number}"), ranks))
    sys.argv = sys.argv[1:]
    sys.path[0] = os.path.dirname(os.path.abspath(sys.argv[0]))
    try:
        _execute(sys.argv[0])
    except SystemExit as end:
        if end.code is None or isinstance(end.code, int):
            if end.code:
                _note()
            return end.code or 0
        sys.stderr.write(f"{end.code}\n")
        _note()
        return 1
    except BaseException:  # whatever it is, it is shown as the interpreter would show it
        _note(traceback.format_exc())
        traceback.print_exc()
        return 1
    return 0


def _execute(path: str) -> None:
    """Execute a script as `__main__`, which it stays: a thread may still pickle objects of its classes."""
    module = types.ModuleType("__main__")
    module.__file__ = path
    sys.modules["__main__"] = module
    with io.open_code(os.path.abspath(path)) as file:
        program = compile(file.read(), path, "exec", dont_inherit=True)
    exec(program, module.__dict__)


def _leave(code: int) -> None:
    """Write what open files still hold back, as the interpreter's shutdown would, and end this process without that.

    Those of Python's own kinds are flushed, others closed, such as gzip's, which write an end. Text comes first, which
    may go into one of these.
    """
    files = [each for each in gc.get_objects() if issubclass(type(each), (io.TextIOBase, io.BufferedIOBase))]
    files.sort(key=lambda each: (not issubclass(type(each), io.TextIOBase), _is_plain(each)))
    for each in files:
        with contextlib.suppress(Exception):  # it is closed, or its disk is full
            if each.writable():  # one that is read may be locked by a thread that waits for input
                each.flush() if _is_plain(each) else each.close()
    os._exit(code)


def _is_plain(file: object) -> bool:
    return type(file).__module__ == "_io"


def use_store(make: Make) -> None:
    """Have `init_process_group()` and `env://` use the store that `make` returns, and open no TCP server.

    PyTorch need not be imported yet: a script may set its environment first.

    Raises:
        RuntimeError: this version of PyTorch does not let that be chosen; raised when PyTorch is imported.
    """
    if MODULE in sys.modules:
        _replace(sys.modules[MODULE], make)
    else:
        sys.meta_path.insert(0, _Finder(make))


class _Finder:
    """Finds one module as the others would, and changes it once it is imported."""

    def __init__(self, make: Make) -> None:
        self._make = make

    def find_spec(self, name: str, path: object = None, target: object = None) -> Any:  # noqa: ANN401
        if name != MODULE:
            return None
        sys.meta_path.remove(self)
        spec: Any = importlib.util.find_spec(name)
        execute = spec.loader.exec_module

        def execute_and_replace(module: Any) -> None:  # noqa: ANN401
            execute(module)
            _replace(module, self._make)

        spec.loader.exec_module = execute_and_replace
        return spec


def _replace(module: Any, make: Make) -> None:  # noqa: ANN401
    handlers = getattr(module, "_rendezvous_handlers", None)
    if not isinstance(handlers, dict) or "env" not in handlers:
        raise RuntimeError(
            "this version of PyTorch would let its ranks meet on an open port, and rocmlab does not know how to "
            "give it a private store: use another version of PyTorch"
        )
    stores: list[Any] = []  # PyTorch keeps only its own part of them, and each is needed as long as its group

    def meet(url: str, **_options: object) -> Iterator[tuple[Any, int, int]]:
        query = urllib.parse.parse_qs(urllib.parse.urlparse(url).query)
        rank, ranks = (int(query.get(name, [os.environ[name.upper()]])[0]) for name in ("rank", "world_size"))
        # Every rank counts alike; a store that was used before still has the keys of then.
        stores.append(make(len(stores) + 1, ranks))
        yield stores[-1], rank, ranks
        raise RuntimeError("the ranks of a process group cannot meet again")

    handlers["env"] = meet


def _file_store(path: str, ranks: int) -> Any:  # noqa: ANN401  a torch.distributed.Store
    from torch.distributed import FileStore

    return FileStore(path, ranks)


def _note(error: str = "") -> None:
    """Note when this rank failed, for the first is to blame, the others lost their partner; and with what error."""
    folder, rank = os.environ.get("ROCMLAB_RANK_NOTES"), os.environ.get("RANK")
    if folder and rank:
        with open(os.path.join(folder, f"rank{rank}"), "w", encoding="utf-8", errors="backslashreplace") as note:
            note.write(f"{time.time_ns()}\n{error}")


if __name__ == "__main__":
    run()
