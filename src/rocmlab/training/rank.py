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
        _note(traceback.format_exc())
        traceback.print_exc()
        return 1
    return 0


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
