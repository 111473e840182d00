"""Parsers of command lines: an error has what, why and fix, and the option that was probably meant."""

from __future__ import annotations

import argparse
import itertools
import re
import shlex
import sys
import textwrap
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

from rocmlab.base.errors import RocmlabError

NUMBERS = {"int": "an integer", "float": "a number"}


class Formatter(argparse.HelpFormatter):
    """Wraps each line of a text by itself, the second column of a list below its first line."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        return "\n".join(_wrapped(line, width, indent) for line in text.splitlines())


class Parser(argparse.ArgumentParser):
    """A parser that raises its errors, without the usage; its subcommands have the same class."""

    def __init__(self, **given: Any) -> None:  # noqa: ANN401  as argparse has them
        super().__init__(**{"formatter_class": Formatter, **given})

    def parse_args(  # type: ignore[override]  # argparse declares overloads
        self, args: Sequence[str] | None = None, namespace: argparse.Namespace | None = None
    ) -> argparse.Namespace:
        """Return the arguments; an option that a subcommand lacks is the error of that subcommand.

        Raises:
            RocmlabError: they are invalid.
        """
        self._check_order(sys.argv[1:] if args is None else args)
        found, unknown = self.parse_known_args(args, namespace)
        if unknown:
            chosen = [each for name, each in subcommands(self).items() if name in vars(found).values()]
            (chosen[0] if chosen else self).error(f"unrecognized arguments: {' '.join(unknown)}")
        return found

    def _check_order(self, words: Sequence[str]) -> None:
        """Reject an option of a subcommand that comes before its name: its value would be taken for the name."""
        commands, own = subcommands(self), options(self)
        of_commands = {option for each in commands.values() for option in options(each)} - own.keys()
        early = list(itertools.takewhile(lambda word: word not in commands, words))
        for option in (word.partition("=")[0] for word in early):
            if option in of_commands:
                name = next(str(each.metavar) for each in self._actions if isinstance(each, argparse._SubParsersAction))
                found = words[len(early) :]
                line = [*found[:1], *early, *found[1:]] if found else [name, *early]
                raise RocmlabError(
                    f"{option} comes before {name}",
                    f"options of a {name} come after it",
                    f"{self.prog} {shlex.join(line)}",
                )

    def error(self, message: str) -> NoReturn:
        """Reject the arguments.

        Raises:
            RocmlabError: always.
        """
        helps = f"{self.prog} --help lists the options"
        for pattern, explain in MESSAGES:
            if found := re.fullmatch(pattern, message, re.DOTALL):
                what, why, fix = explain(self, found)
                raise RocmlabError(what, why, fix or helps)
        raise RocmlabError(message.removeprefix("argument "), "the command line cannot be read like this", helps)


def add_command(
    commands: argparse._SubParsersAction[argparse.ArgumentParser], name: str, text: str, example: str = ""
) -> argparse.ArgumentParser:
    """Add a subcommand, with what it does and how it is used, and return its parser."""
    return commands.add_parser(name, help=text, description=sentence(text), epilog=example and f"example: {example}")


def sentence(text: str) -> str:
    """Return a line of a list as a sentence."""
    return f"{text[0].upper()}{text[1:]}."


def _wrapped(line: str, width: int, indent: str) -> str:
    start = re.match(r"( +\S+ {2,})?", line)
    below = " " * len(start[0] if start else "")
    return textwrap.fill(line, width, initial_indent=indent, subsequent_indent=indent + below, break_on_hyphens=False)


def subcommands(parser: argparse.ArgumentParser) -> dict[str, argparse.ArgumentParser]:
    """Return the parsers of a parser's subcommands by name, in the order of its help."""
    for action in parser._actions:  # argparse has no public way to list them
        if isinstance(action, argparse._SubParsersAction):
            return dict(action.choices)
    return {}


def options(parser: argparse.ArgumentParser) -> dict[str, argparse.Action]:
    """Return the options of a parser that its help lists, by each of their names."""
    return {
        name: action for action in parser._actions if action.help != argparse.SUPPRESS for name in action.option_strings
    }


def did_you_mean(word: str, known: Sequence[str]) -> str:
    """Return the question for the known word that is most like this one, or nothing."""
    import difflib  # only for an error

    near = difflib.get_close_matches(word, known, 1)
    return f"did you mean {near[0]}?" if near else ""


Explained = tuple[str, str, str]  # what, why, fix


def _unknown(parser: argparse.ArgumentParser, found: re.Match[str]) -> Explained:
    word = next((each for each in found[1].split(" ") if each.startswith("-")), "").partition("=")[0]
    if not word:
        return f"unexpected argument: {found[1]}", f"{parser.prog} takes fewer arguments", ""
    near = did_you_mean(word, [name for name in options(parser) if len(name) > 2])
    return f"{word} is not an option of {parser.prog}", "no option has this name", near


def _choice(_: argparse.ArgumentParser, found: re.Match[str]) -> Explained:
    given, choices = found[2].strip("'\""), [each.strip("'\"") for each in found[3].split(", ")]
    return f'invalid {found[1]} value "{given}"', f"choose one of: {', '.join(choices)}", did_you_mean(given, choices)


def _number(_: argparse.ArgumentParser, found: re.Match[str]) -> Explained:
    return f"invalid {found[1]} value {found[3]}", f"expected {NUMBERS[found[2]]}", ""


def _both(_: argparse.ArgumentParser, found: re.Match[str]) -> Explained:
    return f"{found[1]} cannot be used with {found[2]}", "each excludes the other", "omit one of them"


# What argparse of Python 3.10 and newer reports, and what we say instead.
MESSAGES: Sequence[tuple[str, Callable[[argparse.ArgumentParser, re.Match[str]], Explained]]] = (
    (r"unrecognized arguments: (.*)", _unknown),
    (r"argument (.*?): invalid choice: (.*?)(?:, maybe you meant .*)? \(choose from (.*)\)", _choice),
    (r"argument (.*?): invalid (int|float) value: (.*)", _number),
    (r"argument (.*?): not allowed with argument (.*)", _both),
    (
        r"argument (.*?): expected .*argument.*",
        lambda _, found: (f"{found[1]} has no value", "it needs one after it", ""),
    ),
    (
        r"argument (.*?): ignored explicit argument (.*)",
        lambda _, found: (
            f"{found[1]} takes no value, and {found[2]} was given",
            "it is on or off",
            f"{found[1]} alone",
        ),
    ),
    (
        r"the following arguments are required: (.*)",
        lambda parser, found: (f"{found[1]} is missing", f"{parser.prog} needs it", ""),
    ),
    (
        r"ambiguous option: (\S+) could match (.*)",
        lambda _, found: (f"{found[1]} is ambiguous", f"it may be {found[2]}", "write the whole option"),
    ),
)
