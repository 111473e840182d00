"""One rank: runs a script as `python script.py` would, and leaves without the interpreter's own ending.

Once the script is over nothing of value is left to do, and the libraries' threads sometimes trip over each other while
the process is taken apart ("terminate called without an active exception", from gloo, once in some dozens of runs): a
training that had succeeded would count as failed. It imports nothing of rocmlab, for it runs in PyTorch's environment.
"""

from __future__ import annotations

import os
import runpy
import sys
import traceback


def main() -> int:
    """Run the script that the first argument names with the other arguments, and return its exit code."""
    sys.argv = sys.argv[1:]
    sys.path[0] = os.path.dirname(os.path.abspath(sys.argv[0]))
    try:
        runpy.run_path(sys.argv[0], run_name="__main__")
    except SystemExit as end:
        if end.code is None or isinstance(end.code, int):
            return end.code or 0
        sys.stderr.write(f"{end.code}\n")
        return 1
    except BaseException:  # whatever it is, it is shown as the interpreter would show it
        traceback.print_exc()
        return 1
    return 0


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
