"""Runs one Python program to which AMD GPUs look like NVIDIA's: `python SEAM [--notebooks] --module nvitop -1`.

It is run by its path, with the interpreter of the program, which needs to know neither rocmlab nor where it is; no
search path is changed. The program is run as Python itself would: a module, a script, or the text of a command.
"""

from __future__ import annotations

import os
import runpy
import sys
import types
from importlib import util

KINDS = ("--module", "--script", "--command")
NEWEST_TOO_OLD = (3, 9)


def main(given: list[str]) -> int:
    """Install the seam and run the program; what the program exits with is the exit code."""
    if sys.version_info[:2] <= NEWEST_TOO_OLD:
        return _say(f"error: Python {sys.version.split()[0]} is too old\n  fix: use 3.10 or later", 2)
    _load_rocmlab()
    from rocmlab.base.errors import RocmlabError
    from rocmlab.devices import is_simulated, system_root
    from rocmlab.telemetry.seam.install import install

    with_notebooks = given[:1] == ["--notebooks"]
    kind, program, *arguments = given[with_notebooks:]
    root = system_root()
    try:
        install(root, with_notebooks=with_notebooks)
    except RocmlabError as err:
        return _say(f"error: {err}", err.exit_code)
    if is_simulated(root):
        _say(f"SIMULATED: read from {str(root)!r}, not from this machine")
    run(kind, program, arguments)
    return 0


def _say(text: str, code: int = 0) -> int:
    sys.stderr.write(f"{text}\n")
    sys.stderr.flush()
    return code


def run(kind: str, program: str, arguments: list[str]) -> None:
    """Run a program as `python -m`, `python FILE` or `python -c` does."""
    sys.argv = [program, *arguments]
    if not getattr(sys.flags, "safe_path", False) and not sys.flags.isolated:
        sys.path[0] = os.path.dirname(os.path.abspath(program)) if kind == "--script" else os.getcwd()
    if kind == "--module":
        runpy.run_module(program, run_name="__main__", alter_sys=True)
    elif kind == "--script":
        runpy.run_path(program, run_name="__main__")
    else:
        sys.argv[0] = "-c"
        sys.modules["__main__"] = module = types.ModuleType("__main__")
        exec(compile(program, "<string>", "exec"), module.__dict__)


def _load_rocmlab() -> None:
    """Load the rocmlab that this file belongs to, without making its neighbours importable."""
    folder = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    if "rocmlab" in sys.modules:
        return  # run as `python -m rocmlab.telemetry.seam`
    found = util.spec_from_file_location(
        "rocmlab", os.path.join(folder, "__init__.py"), submodule_search_locations=[folder]
    )
    if found is None or found.loader is None:
        raise ImportError(folder)
    sys.modules["rocmlab"] = package = util.module_from_spec(found)
    found.loader.exec_module(package)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
