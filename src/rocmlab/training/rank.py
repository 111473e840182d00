"""One rank: runs a script as `python script.py` would, and exits without the interpreter's own shutdown.

Ranks find each other through a store of keys and values. PyTorch's own for `env://` is a TCP server on all interfaces,
without a password; here it is a file in a folder that only this user can open, for all ranks are on this machine.

Once the script is over nothing of value is left to do, and the libraries' threads sometimes fail while the process
shuts down ("terminate called without an active exception", from gloo, once in some dozens of runs): a
training that had succeeded would count as failed. It imports nothing of rocmlab, for it runs in PyTorch's environment.
"""

from __future__ import annotations

import importlib.util
import os
import runpy
import sys
import time
import traceback
import urllib.parse
from collections.abc import Callable, Iterator
from typing import Any

MODULE = "torch.distributed.rendezvous"
Make = Callable[[int, int], Any]  # of how many meetings of this process it is, and of how many ranks: a Store


def main() -> int:
    """Run the script that the first argument names with the other arguments, and return its exit code."""
    if folder := os.environ.get("ROCMLAB_RANK_STORE"):
        use_store(lambda number, ranks: _file_store(os.path.join(folder, f"store{number}"), ranks))
    sys.argv = sys.argv[1:]
    sys.path[0] = os.path.dirname(os.path.abspath(sys.argv[0]))
    try:
        runpy.run_path(sys.argv[0], run_name="__main__")
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
    code = main()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
