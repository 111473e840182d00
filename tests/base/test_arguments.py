"""Wrong arguments: one error with what, why and fix."""

from __future__ import annotations

import pytest

from rocmlab.base.arguments import Parser
from rocmlab.base.errors import RocmlabError


@pytest.fixture
def parser() -> Parser:
    """A parser with each kind of argument."""
    made = Parser(prog="lab")
    form = made.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true")
    form.add_argument("--csv", action="store_true")
    made.add_argument("--count", type=int)
    made.add_argument("--color", choices=["always", "never"])
    made.add_argument("--secret", help="==SUPPRESS==")
    commands = made.add_subparsers(dest="command", required=True, metavar="COMMAND")
    commands.add_parser("fetch").add_argument("--force", action="store_true")
    commands.add_parser("list").add_argument("name", nargs="?")
    return made


@pytest.mark.parametrize(
    ("words", "what", "why", "fix"),
    [
        ("--jsn list", "--jsn is not an option of lab list", "no option has this name", "lab list --help lists"),
        ("fetch --forse", "--forse is not an option of lab fetch", "no option has this name", "did you mean --force?"),
        ("list --force=1", "--force is not an option of lab list", "no option has this name", "lab list --help lists"),
        ("list --secrt x", "--secrt is not an option of lab list", "no option has this name", "lab list --help lists"),
        ("list a b", "unexpected argument: b", "lab list takes fewer arguments", "lab list --help lists"),
        ("fetsh", 'invalid COMMAND value "fetsh"', "choose one of: fetch, list", "did you mean fetch?"),
        ("--color nevr list", 'invalid --color value "nevr"', "choose one of: always, never", "did you mean never?"),
        ("--count x list", "invalid --count value 'x'", "expected an integer", "lab --help lists the options"),
        ("--count", "--count has no value", "it needs one after it", "lab --help lists the options"),
        ("--json --csv list", "--csv cannot be used with --json", "each excludes the other", "omit one of them"),
        ("--json=1 list", "--json takes no value, and '1' was given", "it is on or off", "--json alone"),
        (
            "--json --force fetch",
            "--force comes before COMMAND",
            "options of a COMMAND come after it",
            "lab fetch --json --force",
        ),
        (
            "--force=1",
            "--force comes before COMMAND",
            "options of a COMMAND come after it",
            "lab COMMAND --force=1",
        ),
        ("--c 1 list", "--c is ambiguous", "it may be --csv, --count, --color", "write the whole option"),
        ("", "COMMAND is missing", "lab needs it", "lab --help lists the options"),
    ],
)
def test_a_wrong_argument_is_explained(parser: Parser, words: str, what: str, why: str, fix: str) -> None:
    """The option or the value, the reason, and what was probably meant, where something is similar."""
    with pytest.raises(RocmlabError) as told:
        parser.parse_args(words.split())

    problem = told.value.problem
    assert (problem.what, problem.why) == (what, why)
    assert problem.fix.startswith(fix)
    assert told.value.exit_code == 2


def test_what_a_command_rejects_itself_is_an_error_of_the_same_kind(parser: Parser) -> None:
    """Its own sentence, and where the options are listed."""
    with pytest.raises(RocmlabError, match="name a command") as told:
        parser.error("name a command after --")

    assert told.value.problem.fix == "lab --help lists the options"
