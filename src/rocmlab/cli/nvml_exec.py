"""`rocmlab nvml-exec -- COMMAND`: a program that knows NVIDIA's NVML alone, with AMD GPUs in its view."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence

from rocmlab.cli import guard
from rocmlab.cli.devices import use_remembered_root
from rocmlab.cli.main import command_parser
from rocmlab.devices import system_root
from rocmlab.telemetry.seam import install, programs

LIMIT_SECONDS = 5.0


def main(name: str, arguments: Sequence[str]) -> int:
    """Become the command; its exit code is ours."""
    parser = build_parser(name)
    options, command = _divided(arguments)
    chosen = parser.parse_args(options)
    if not command:
        parser.error("name a command after --, such as: rocmlab nvml-exec -- gpustat")
    use_remembered_root()
    return become(command, with_notebooks=chosen.notebooks, note="NVIDIA's NVML answers here: rocmlab is not needed")


def build_parser(command: str) -> argparse.ArgumentParser:
    """Return the parser of the options of `rocmlab nvml-exec`; what it runs follows them."""
    parser = command_parser(command, usage="rocmlab nvml-exec [--notebooks] -- COMMAND …", example="-- gpustat")
    parser.add_argument("--notebooks", action="store_true", help="show the notebook before each command line")
    return parser


def _divided(arguments: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return our own options, and the command behind them."""
    given = list(arguments)
    at = next((turn for turn, word in enumerate(given) if word == "--" or not word.startswith("-")), len(given))
    return given[:at], given[at + 1 :] if given[at : at + 1] == ["--"] else given[at:]


def become(command: Sequence[str], *, with_notebooks: bool, note: str = "") -> int:
    """Replace this process by a command, with AMD GPUs in its view; say `note` where NVIDIA's own library answers.

    Raises:
        RocmlabError: the command does not exist, is not a Python program, or there is no GPU.
    """
    root = system_root()
    if programs.prints_and_exits(command):
        return replace_by(command)
    if guard.within(LIMIT_SECONDS, lambda: install.nvidia_answers(root)):
        if note:
            print(note, file=sys.stderr)
        return replace_by(command)
    program = programs.find(command)
    guard.within(LIMIT_SECONDS, lambda: install.check(root))
    return replace_by(program.with_gpus(with_notebooks=with_notebooks))


def replace_by(command: Sequence[str]) -> int:
    """Become a command; there is no way back, so that signals and the terminal are its own."""
    sys.stdout.flush()
    sys.stderr.flush()
    path = programs.locate(command[0])
    os.execv(path, [path, *command[1:]])
