"""One rank: runs a script as `python script.py` would, and leaves without the interpreter's own ending.

Once the script is over nothing of value is left to do, and the libraries' threads sometimes trip over each other while
the process is taken apart ("terminate called without an active exception", from gloo, once in some dozens of runs): a
training that had succeeded would count as failed. It imports nothing of rocmlab, for it runs in PyTorch's environment.
"""

from __future__ import annotations

import os
import runpy
import sys
import time
import traceback


def main() -> int:
    """Run the script that the first argument names with the other arguments, and return its exit code."""
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
        _note()
        traceback.print_exc()
        return 1
    return 0


def _note() -> None:
    """Note when this rank failed: the first to fail is to blame, the others lost their partner."""
    folder, rank = os.environ.get("ROCMLAB_RANK_NOTES"), os.environ.get("RANK")
    if folder and rank:
        with open(os.path.join(folder, f"rank{rank}"), "w", encoding="ascii") as note:
            note.write(str(time.time_ns()))


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
