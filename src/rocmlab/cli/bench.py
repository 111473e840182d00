"""`rocmlab bench NAME`: `train` and `multi-gpu` for users; the others are for developers and need the clone."""

from __future__ import annotations

import argparse
import importlib
import os
import shlex
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import ModuleType

import rocmlab
from rocmlab.base.arguments import add_command
from rocmlab.base.errors import RocmlabError
from rocmlab.cli.main import command_parser
from rocmlab.stack import project as projects
from rocmlab.stack import project_folder

BENCHES = {  # in the order of use; all but the first two are for developers
    "train": "training, and the notebooks on GPU and CPU",
    "multi-gpu": "training on several GPUs",
    "up": "starting, starting again, rebuilding, sizes, imports",
    "devices": "finding the GPUs, checking the machine",
    "runner": "running a notebook",
    "telemetry": "what looking at the GPUs costs",
    "cluster": "a run of 100,000 jobs on 8,000 simulated GPUs, and what Ray costs",
}
EPILOG = (
    "All but train and multi-gpu need a clone of the source repository. Without a NAME training and the notebooks "
    "are measured. `rocmlab bench NAME --help` describes one."
)
OWN = {  # those that run in the lab: `main(command, arguments)`, the name of the bench not among them
    "train": "rocmlab.cli.bench_train",
    "multi-gpu": "rocmlab.cli.bench_multi_gpu",
}
REPOSITORY = Path(rocmlab.__file__).resolve().parents[2]  # where the package is imported from a clone


def main(name: str, arguments: Sequence[str]) -> int:
    """Measure one thing and print a table, or JSON; without a name, training."""
    arguments = list(arguments) or _from_make(os.environ)
    if not arguments or arguments[0] in OWN:
        return _in_the_lab(name, arguments)
    chosen = build_parser(name).parse_args(arguments)
    command = _of_developers(chosen.name)
    try:
        return int(command.run(chosen))
    except ImportError as err:
        raise RocmlabError(
            "the runner is not installed here",
            f"{err}",
            f"a native lab in this clone has it: make up RUNTIME=native, then .venv/bin/rocmlab bench {chosen.name}",
        ) from err


def build_parser(command: str) -> argparse.ArgumentParser:
    """Return the parser of `rocmlab bench`, with a subcommand for each measurement."""
    parser = command_parser(command, example="train --quick", epilog=EPILOG)
    benches = parser.add_subparsers(dest="name", required=True, metavar="NAME", title="measurements")
    for name, text in BENCHES.items():
        made = add_command(benches, name, f"measure {text}")
        if name in OWN:
            importlib.import_module(OWN[name]).add_options(made)
            continue
        made.add_argument("--runs", type=positive, default=5, metavar="N", help="how often to measure (default: 5)")
        if name in ("devices", "telemetry"):
            made.add_argument("--theirs", metavar="COMMAND", help="compare with this (default: rocm-smi)")
        if name != "devices":
            row = "only this row; may be repeated" + "; cold_native and cold_image only when named" * (name == "up")
            made.add_argument("--row", action="append", metavar="NAME", help=row)
        made.add_argument("--json", action="store_true", help="print the result as JSON")
    return parser


def _of_developers(name: str) -> ModuleType:
    """Import `benchmarks.command` of the clone that holds this package, or else of that which holds this folder.

    Raises:
        RocmlabError: there is no clone, or it is not to be trusted.
    """
    folder = REPOSITORY
    if not (folder / "benchmarks/command.py").is_file():
        folder = project_folder.nearest() or folder
    if not (folder / "benchmarks/command.py").is_file():
        raise RocmlabError(
            f"the benchmark {name} is not installed",
            "the benchmarks for developers are in the source repository of rocmlab, not in the package",
            f"clone the repository, then there: scripts/rocmlab bench {name}",
        )
    sys.path.insert(0, str(folder))  # before a package of that name in site-packages
    return importlib.import_module("benchmarks.command")


def _from_make(environment: Mapping[str, str]) -> list[str]:
    """Return what `make bench BENCH="train --quick"` says, quotes honoured, so that no shell reads it."""
    try:
        return shlex.split(environment.get("BENCH", ""))
    except ValueError as err:
        raise RocmlabError("BENCH cannot be read", f"{err}", "close the quotes: BENCH='train --quick'") from err


def _in_the_lab(name: str, arguments: Sequence[str]) -> int:
    """Measure training; on the host the lab is prepared, as for `rocmlab run`, and gets these arguments."""
    if not os.environ.get("ROCMLAB_RUNTIME"):
        return _from_the_host([name, *arguments])
    if arguments:
        return int(importlib.import_module(OWN[arguments[0]]).main(name, arguments[1:]))
    code = int(importlib.import_module(OWN["train"]).main(name, ["--notebooks"]))
    if _count_gpus() >= 2:
        code = max(code, int(importlib.import_module(OWN["multi-gpu"]).main(name, [])))
    return code


def _count_gpus() -> int:
    from rocmlab.devices import discover
    from rocmlab.runs.scheduling.chosen import choose_gpus

    return sum(
        gpu.backend in ("rocm", "cuda") and not gpu.simulated for gpu in choose_gpus(discover(), None, os.environ)
    )


def _from_the_host(arguments: Sequence[str]) -> int:
    from rocmlab.cli.up import announce, note
    from rocmlab.stack.container import ContainerLab

    if arguments[1:]:  # wrong arguments are reported before anything is built
        build_parser(arguments[0]).parse_args(arguments[1:])
    project = projects.plan(projects.find())
    announce(project, note)
    with projects.locked(project, note):
        project = projects.prepare(project, note, persist=False)
    code = project.lab.run(list(arguments))
    if isinstance(project.lab, ContainerLab) and "/" not in project.values["SHARE"]:
        note(f"the results are in the {project.lab.share()}, below bench/; JupyterLab shows it")
    return code


def positive(text: str) -> int:
    """Return the number of an argument.

    Raises:
        argparse.ArgumentTypeError: it is not a whole number from 1 on.
    """
    if not (text.isascii() and text.isdigit() and 0 < int(text[:9]) < 10_000_000):
        msg = f"{text} is not a number of at least 1"
        raise argparse.ArgumentTypeError(msg)
    return int(text)
