"""`rocmlab nvitop`: the real nvitop, on AMD GPUs too; where it is not installed, that of the running lab."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Sequence

from rocmlab.base.errors import RocmlabError
from rocmlab.cli.devices import use_remembered_root
from rocmlab.cli.main import command_parser
from rocmlab.cli.nvml_exec import become
from rocmlab.telemetry.seam import programs

TYPE_CHECKING = False  # nvitop starts sooner without argparse
if TYPE_CHECKING:
    import argparse

EPILOG = "All other options are for nvitop: `rocmlab nvitop -- --help` lists them."


def main(name: str, arguments: Sequence[str]) -> int:
    """Become nvitop, here or in the lab."""
    if list(arguments[:1]) in (["-h"], ["--help"]):
        build_parser(name).print_help()
        return 0
    options = list(arguments[1:] if list(arguments[:1]) == ["--"] else arguments)
    if programs.is_module_here("nvitop"):
        command = [sys.executable, "-m", "nvitop"]
    elif path := shutil.which("nvitop"):
        command = [path]
    else:
        return _in_the_lab(name, options)
    use_remembered_root()
    return become([*command, *options], with_notebooks=True)


def build_parser(command: str) -> argparse.ArgumentParser:
    """Return the parser of `rocmlab nvitop`, which prints its help; the other options are nvitop's."""
    return command_parser(command, usage="rocmlab nvitop [options of nvitop]", example="-1", epilog=EPILOG)


def _in_the_lab(name: str, options: Sequence[str]) -> int:
    """Run it in the running lab, where it is installed."""
    from rocmlab.stack import project as projects
    from rocmlab.stack.native import NativeLab

    why = "nvitop is not installed for this Python, nor on PATH"
    fix = "make up, and then make top; or without the lab: python3 -m pip install nvitop"
    if os.environ.get("ROCMLAB_RUNTIME"):
        raise RocmlabError("nvitop is missing in the lab", "something has removed it", "make build, then make up")
    root = os.environ.get("ROCMLAB_ROOT", "")
    try:
        lab = projects.reopen(projects.find()).lab
    except RocmlabError as err:
        raise RocmlabError("nvitop not found", f"{why}, and {err.problem.what}", fix) from err
    if not (lab.is_running() or (isinstance(lab, NativeLab) and lab.is_startable())):
        raise RocmlabError("nvitop not found", f"{why}, and the lab, which has it, does not run", fix)
    if root in ("", "/") or root == lab.settings.get("ROCMLAB_ROOT"):
        return lab.run([name, *options])
    if not isinstance(lab, NativeLab):
        raise RocmlabError(
            "nvitop not found",
            f"{why}, and the lab, which has it, does not see the host {root} (ROCMLAB_ROOT)",
            "python3 -m pip install nvitop",
        )
    return lab.run([name, *options], {"ROCMLAB_ROOT": root})
