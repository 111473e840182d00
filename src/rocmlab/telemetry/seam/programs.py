"""From a command line to the one that runs the same program with the seam in its interpreter."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rocmlab.base.errors import RocmlabError

SEAM = str(Path(__file__).with_name("__main__.py").resolve())
PYTHON = re.compile(r"python(\d(\.\d+)?t?)?")
PRINTS_AND_EXITS = ("-h", "--help", "--help-all", "--help-env", "--help-xoptions", "-V", "-VV", "--version", "-?")
# What pip and uv write where the interpreter's path is too long, or has spaces, for a first line of its own.
LONG_INTERPRETER = re.compile(rb"""#!/bin/sh\s*\n(?:'''|"true"? ?''')exec'? +(?:"([^"\n]+)"|(\S+)) """)
HEAD_BYTES = 1024


@dataclass(frozen=True)
class Program:
    """A Python program."""

    interpreter: list[str]  # with its own options
    kind: str  # --module, --script or --command
    name: str  # of the module, of the file, or the command's text
    arguments: list[str]

    def with_gpus(self, *, with_notebooks: bool) -> list[str]:
        """Return the command line that runs it with the seam."""
        options = ["--notebooks"] if with_notebooks else []
        return [*self.interpreter, SEAM, *options, self.kind, self.name, *self.arguments]


def find(command: Sequence[str]) -> Program:
    """Return the Python program that a command line runs.

    Raises:
        RocmlabError: the command does not exist, or is not a Python program.
    """
    name, *arguments = command
    path = locate(name)
    if PYTHON.fullmatch(os.path.basename(path)):
        return _of_interpreter(path, arguments)
    interpreter = [sys.executable] if path.endswith(".py") and not os.access(path, os.X_OK) else _interpreter(path)
    if interpreter is None:
        raise RocmlabError(
            f"{name} is not a Python program",
            "AMD GPUs are shown from within a program's own Python, and "
            f"{path} is {'a script for another interpreter' if _head(path).startswith(b'#!') else 'a binary'}",
            "`rocmlab smi --json` gives the same values to any program; if it only starts a Python program: "
            "rocmlab nvml-exec -- python3 -m NAME",
        )
    return Program(interpreter, "--script", path, arguments)


def locate(name: str) -> str:
    """Return the path of a command.

    Raises:
        RocmlabError: there is none.
    """
    path = shutil.which(name)
    if path is None and name.endswith(".py") and os.path.isfile(name):
        path = os.path.abspath(name)
    if path is None:
        raise RocmlabError(
            f"command {name!r} not found",
            "it is neither on PATH nor a file that can be run",
            f"python3 -m pip install {shlex.quote(name)}, or give its path" if "/" not in name else "check its path",
        )
    return path


def is_module_here(name: str) -> bool:
    """Return whether this interpreter could import a module; nothing is imported."""
    from importlib import util

    return util.find_spec(name) is not None


def _of_interpreter(path: str, arguments: Sequence[str]) -> Program:
    """Return the program that `python ARGUMENTS` runs."""
    options, rest = [path], list(arguments)
    while rest and rest[0].startswith("-") and rest[0] != "-":
        word = rest.pop(0)
        if word.startswith("--"):
            options += [word, *rest[:1]]  # --check-hash-based-pycs MODE
            rest = rest[1:]
            continue
        flags = re.match(r"-([^cmWX]*)([cmWX]?)(.*)", word, re.DOTALL)
        plain, letter, value = flags.groups() if flags else ("", "", "")
        options += [f"-{plain}"] if plain else []
        if letter and not value:
            value = rest.pop(0) if rest else ""
        if letter in ("c", "m"):
            return Program(options, "--command" if letter == "c" else "--module", value, rest)
        options += [f"-{letter}{value}"] if letter else []
    if not rest or rest[0] == "-":
        raise RocmlabError(
            "an interactive Python cannot be started with GPUs",
            "the command does not name a program",
            "name one: rocmlab nvml-exec -- python3 FILE, -m MODULE or -c COMMAND",
        )
    return Program(options, "--script", rest[0], rest[1:])


def prints_and_exits(command: Sequence[str]) -> bool:
    """Return whether a command only prints Python's version or help."""
    return bool(PYTHON.fullmatch(os.path.basename(command[0]))) and bool(command[1:]) and command[1] in PRINTS_AND_EXITS


def _head(path: str) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read(HEAD_BYTES)
    except OSError:
        return b""


def _interpreter(path: str) -> list[str] | None:
    """Return the Python, with its options, that the first lines of a script name; None if they name none."""
    head = _head(path)
    if long := LONG_INTERPRETER.match(head):
        found = [os.fsdecode(long[1] or long[2])]
    else:
        first = head.split(b"\n", 1)[0].decode("utf-8", "replace")
        found = shlex.split(first[2:]) if first.startswith("#!") else []
    if found and os.path.basename(found[0]) == "env":
        found = [word for word in found[1:] if word != "-S" and "=" not in word]
    if not found or not PYTHON.fullmatch(os.path.basename(found[0])):
        return None
    return [shutil.which(found[0]) or found[0], *found[1:]]
