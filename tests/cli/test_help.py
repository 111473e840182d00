"""The help of every command: one style, one name and unit for one thing, readable in 80 columns."""

from __future__ import annotations

import argparse
import re
from collections import defaultdict
from collections.abc import Iterator

import pytest

from rocmlab.base.arguments import subcommands
from rocmlab.cli.main import main
from rocmlab.cli.parsers import parser_of, parsers

ALL = dict(parsers())
VALUES = {  # options whose value is another thing in another command
    "--gpus": "run chooses devices, export none, simulate how many there are",
    "--runs": "bench repeats, clean removes runs by age",
    "--partition": "of a GPU, and of Slurm",
}
OBVIOUS = {
    "up",
    "build",
    "url",
    "status",
    "devices",
    "leases",
    "demo",
    "monitoring",
    "logs",
    "shell",
    "down",
    "upgrade",
} | {
    *("rollback", "clean", "completion", "datasets", "export"),  # these have their examples elsewhere
    *("datasets list", "bench train", "bench multi-gpu", "bench up", "bench devices", "bench runner"),
    *("bench telemetry", "bench cluster"),
}


def arguments() -> Iterator[tuple[str, argparse.Action]]:
    """Yield each argument that a help lists, with its command."""
    for command, parser in ALL.items():
        for action in parser._actions:
            is_hidden = action.help == argparse.SUPPRESS or action.dest == "help"
            if not is_hidden and not isinstance(action, argparse._SubParsersAction):
                yield command, action


def name_of(action: argparse.Action) -> str:
    """Return the longest name of an argument."""
    return max(action.option_strings, key=len, default=action.dest)


@pytest.mark.parametrize("command", ALL)
def test_it_fits_in_80_columns(command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """No line is longer than the terminal is wide, and no word is divided."""
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("NO_COLOR", "1")

    shown = parser_of(command).format_help()

    assert [line for line in shown.splitlines() if len(line) > 80] == []
    for text in (ALL[command].description or "", ALL[command].epilog or ""):
        assert " ".join(text.split()) in " ".join(shown.split())


def test_texts_have_one_style() -> None:
    """Each argument is explained in lower case without a full stop; a unit or kind of value is in capitals."""
    for command, action in arguments():
        where, text = f"{command} {name_of(action)}", action.help or ""
        assert text, where
        assert not text.endswith("."), where
        assert not re.match(r"[A-Z][a-z]+ ", text) or text.startswith(("PersistentVolumeClaim", "GPUs")), where
        assert "repeatable" not in text, where
        if action.option_strings and action.nargs != 0 and not action.choices:
            assert str(action.metavar).isupper() or "|" in str(action.metavar) or action.metavar == "none", where
        if isinstance(action, argparse._AppendAction):
            assert "may be repeated" in text, where


def test_defaults_are_shown() -> None:
    """In one form, wherever an option has one that is not off."""
    for command, action in arguments():
        where, text = f"{command} {name_of(action)}", action.help or ""
        assert not re.search(r"\bdefaults? (to|is)\b|\(default [^:]", text), where
        if action.default not in (None, False, []) and action.nargs != 0:
            assert re.search(r"\bdefault: ", text), where


def test_one_option_has_one_value() -> None:
    """The same name has the same metavar in every command."""
    found: dict[str, set[str]] = defaultdict(set)
    for _, action in arguments():
        if action.nargs != 0 and action.option_strings and not action.choices:
            found[name_of(action)].add(str(action.metavar))

    assert {name for name, metavars in found.items() if len(metavars) > 1} - VALUES.keys() == set()


def test_json_has_few_wordings() -> None:
    """What is known, the result, or the file that it is."""
    texts = {(action.help or "").partition(";")[0] for _, action in arguments() if action.dest == "json"}

    assert texts == {
        *("print everything known, as JSON", "print everything known, as JSON (list only)", "print the result as JSON"),
        *("print the result as JSON, on stderr like the table", "print results.json instead of the summary"),
        "print the folder and its jobs as JSON",
    }


def test_commands_have_an_example() -> None:
    """Where the name alone does not show how it is used; and the example is accepted."""
    without = set()
    for command, parser in ALL.items():
        if found := re.match(r"example: rocmlab (.*)", parser.epilog or ""):
            words = found[1].split()
            assert command.split()[0] == words[0]
            if command not in ("nvitop", "nvml-exec"):  # whose other arguments are another program's
                whole, rest = parser_of(words[0]), words[1:]
                if rest and rest[0] in subcommands(whole):
                    whole, rest = subcommands(whole)[rest[0]], rest[1:]
                assert whole.parse_intermixed_args(rest) if words[0] in ("run", "export") else whole.parse_args(rest)
        else:
            without.add(command)

    assert {each for each in without if not each.startswith(("cluster ", "hub "))} == OBVIOUS


@pytest.mark.parametrize(
    ("words", "what", "fix"),
    [
        (["dwon"], "dwon is not a command of rocmlab", "did you mean down?"),
        (["--verison"], "--verison is not a command of rocmlab", "did you mean --version?"),
        (["cluster", "jion"], 'invalid COMMAND value "jion"', "did you mean join?"),
        (["bench", "trian"], 'invalid NAME value "trian"', "did you mean train?"),
        (["doctor", "--jsn"], "--jsn is not an option of rocmlab doctor", "did you mean --json?"),
        (["export", "slurn"], 'invalid KIND value "slurn"', "did you mean slurm?"),
        (
            ["bench", "devices", "--row", "x"],
            "--row is not an option of rocmlab bench devices",
            "rocmlab bench devices --help",
        ),
    ],
)
def test_wrong_usage_is_one_error(words: list[str], what: str, fix: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Exit code 2, what is wrong in one line, and what was probably meant."""
    assert main(words) == 2

    shown = capsys.readouterr().err
    assert shown.startswith(f"error: {what}\n")
    assert f"fix: {fix}" in shown
    assert "usage:" not in shown
