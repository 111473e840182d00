"""The parsers of all commands: those that run, for documentation, completion and tests."""

from __future__ import annotations

import argparse
import importlib
from collections.abc import Iterator

from rocmlab.base.arguments import subcommands
from rocmlab.cli.main import ALIASES, COMMANDS


def parser_of(command: str) -> argparse.ArgumentParser:
    """Return the parser of a command, such as "run" or "cluster join".

    Raises:
        KeyError: the command does not exist.
    """
    first, *rest = command.split()
    name = ALIASES.get(first, first)
    parser: argparse.ArgumentParser = importlib.import_module(COMMANDS[name][0]).build_parser(name)
    for word in rest:
        parser = subcommands(parser)[word]
    return parser


def parsers() -> Iterator[tuple[str, argparse.ArgumentParser]]:
    """Yield every command with its parser in the order of the help, each followed by its subcommands."""
    for command in COMMANDS:
        parser = parser_of(command)
        yield command, parser
        for word, each in subcommands(parser).items():
            yield f"{command} {word}", each
