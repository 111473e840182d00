"""Calls every command of the command line with arguments that must change nothing, each in a process of its own.

Run by `test_parse_first.py` in a fresh clone, by an interpreter without site-packages: `python -S` with a FILE.
It prints one JSON object for each call: its arguments, exit code, output, and each forbidden thing that it did, as the
interpreter's own audit events report it.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from collections.abc import Iterator, Sequence
from typing import Any

FORBIDDEN = (
    *("os.mkdir", "os.rename", "os.remove", "os.rmdir", "os.symlink", "os.link", "os.chmod", "os.chown", "os.truncate"),
    *("os.utime", "subprocess.Popen", "os.posix_spawn", "os.spawn", "os.exec", "os.system", "os.fork", "os.forkpty"),
    *("os.kill", "os.killpg", "socket.connect", "socket.bind", "fcntl.flock", "pty.spawn"),
)
WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND


def _names(parser: argparse.ArgumentParser) -> list[str]:
    """Return the subcommands of a parser: those of its sub-parsers, or the choices of its first argument."""
    for action in parser._actions:
        if not action.option_strings and action.choices and isinstance(next(iter(action.choices)), str):
            return list(action.choices)
    return []


def calls(verb: str) -> Iterator[tuple[str, list[str]]]:
    """Yield what a command is called with, and what that is."""
    from rocmlab.base.arguments import subcommands
    from rocmlab.cli.parsers import parser_of

    parser = parser_of(verb)
    subs = _names(parser)
    yield from _of([], parser)
    if subs:
        yield "misspelt", [f"{subs[0]}x"]
    for sub in subs:
        yield from _of([sub], subcommands(parser).get(sub, parser))


def _of(words: Sequence[str], parser: argparse.ArgumentParser) -> Iterator[tuple[str, list[str]]]:
    yield "help", [*words, "--help"]
    yield "help", [*words, "-h"]
    yield "invalid", [*words, "--no-such-option"]
    if "--dry-run" in parser._option_string_actions:
        yield "dry run", [*words, "--dry-run"]
        yield "invalid", [*words, "--dry-run", "--no-such-option"]


def call(words: Sequence[str], output: str) -> tuple[int, list[str]]:
    """Run the command line in a child, with its output in a file; return the exit code and what it must not do."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reading)
        code = 70
        try:
            code = _watched(words, output, writing)
        finally:
            os._exit(code)
    os.close(writing)
    with os.fdopen(reading, encoding="utf-8") as pipe:
        broken = pipe.read().splitlines()
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), broken


def _watched(words: Sequence[str], output: str, report: int) -> int:
    from rocmlab.cli.main import main

    file = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(file, 1)
    os.dup2(file, 2)

    def hear(event: str, given: tuple[Any, ...]) -> None:
        if event == "open":
            path, mode, flags = given
            if str(path) == os.devnull or not ((flags or 0) & WRITES or set(str(mode or "")) & set("wax+")):
                return
        elif event not in FORBIDDEN:
            return
        os.write(report, f"{event} {given!r}\n".encode(errors="replace"))

    sys.addaudithook(hear)
    try:
        code: Any = main(words)
    except SystemExit as err:
        code = err.code
    except BaseException:
        import traceback

        traceback.print_exc()
        code = 71
    sys.stdout.flush()
    sys.stderr.flush()
    return code if isinstance(code, int) else 0 if code is None else 1


def run() -> None:
    """Call all verbs."""
    from rocmlab.cli.main import COMMANDS

    with tempfile.TemporaryDirectory() as folder:
        output = os.path.join(folder, "output")
        for verb in COMMANDS:
            for kind, words in list(calls(verb)):
                code, broken = call([verb, *words], output)
                with open(output, encoding="utf-8", errors="replace") as file:
                    text = file.read()
                found = {"verb": verb, "words": words, "kind": kind, "code": code, "broken": broken, "text": text}
                sys.stdout.write(json.dumps(found) + "\n")
                sys.stdout.flush()


if __name__ == "__main__":
    run()
