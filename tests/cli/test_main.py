"""The command line itself: words, exit codes, errors."""

from __future__ import annotations

import errno
import io
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from rocmlab.cli import main
from rocmlab.cli.main import ALIASES, COMMANDS, GROUPS
from rocmlab.cli.run import build_parser, engine_of, words_from_make
from rocmlab.stack.setting_table import SETTINGS


def rocmlab(
    repository: Path, *words: str, cwd: Path | None = None, **environment: str
) -> subprocess.CompletedProcess[str]:
    """Run the command line on a bare interpreter: no site-packages, as on a host with nothing installed."""
    base = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
    return subprocess.run(
        [sys.executable, "-S", "-m", "rocmlab", *words],
        capture_output=True,
        text=True,
        cwd=cwd or repository,
        env={**base, "PYTHONPATH": str(repository / "src"), **environment},
        check=False,
    )


def test_without_words_it_explains_itself(repository: Path) -> None:
    """The help names every command in the order of use, and the exit codes."""
    done = rocmlab(repository)

    assert done.returncode == 0
    assert done.stdout.index("\n  up ") < done.stdout.index("\n  down ") < done.stdout.index("\n  bench ")
    assert "Exit codes: 0 done; 1 " in done.stdout


@pytest.mark.parametrize("words", [["-v"], ["--verbose", "--help"]])
def test_verbose_help_is_the_help(repository: Path, words: list[str]) -> None:
    """`-v` alone names no command that could be wrong."""
    assert rocmlab(repository, *words).stdout == rocmlab(repository, "--help").stdout != ""


def test_commands_are_grouped_as_in_make(repository: Path) -> None:
    """A command has the group of its Make target, by the same name or by an alias that both know."""
    groups: dict[str, str] = {}
    title = ""
    makefile = (repository / "Makefile").read_text()
    for line in makefile.splitlines():
        if line.startswith("# -- "):
            title = line.removeprefix("# -- ")
        elif found := re.match(r"([a-z-]+):.*## ", line):
            groups[ALIASES.get(found[1], found[1])] = title

    shared = {command: groups[command] for command in COMMANDS if command in groups}

    assert {"up", "run", "nvitop", "backup"} <= shared.keys()
    assert shared == {command: group for group, each in GROUPS.items() for command in each if command in groups}
    assert [command for command in GROUPS["Without make"] if command in groups] == []
    assert all(f"\n{command}: {alias}\n" in makefile for alias, command in ALIASES.items())


@pytest.mark.slow
@pytest.mark.parametrize(("alias", "command"), ALIASES.items())
def test_an_alias_is_the_command(repository: Path, alias: str, command: str) -> None:
    """The help is that of the command."""
    assert rocmlab(repository, alias, "--help").stdout == rocmlab(repository, command, "--help").stdout != ""


def test_the_help_of_up_lists_the_settings(repository: Path) -> None:
    """All of them, each with its meaning and what holds without it."""
    shown = rocmlab(repository, "up", "--help").stdout

    flat = " ".join(shown.split())
    texts = {each.name: f" {each.name} {each.meaning} (default: {each.usual})" for each in SETTINGS}
    assert [name for name, text in texts.items() if text not in flat] == []


def test_an_unknown_verb_is_a_usage_error(repository: Path) -> None:
    """Exit code 2, and the verbs there are."""
    done = rocmlab(repository, "fly")

    assert done.returncode == 2
    assert done.stderr.startswith("error: fly is not a command of rocmlab\n")
    assert "choose one of: up, run" in done.stderr


def test_devices_print_json_with_nothing_installed(repository: Path) -> None:
    """The standard library is enough to look at the hardware."""
    done = rocmlab(repository, "devices", "--json")

    found = json.loads(done.stdout)
    assert found["simulated"] is False
    assert found["devices"][-1]["backend"] == "cpu"


def test_a_mistyped_make_variable_is_refused(repository: Path) -> None:
    """Make takes any name silently; the error guesses what was meant."""
    done = rocmlab(repository, "devices", MAKEFLAGS=" -- PROT=9000")

    assert done.returncode == 2
    assert "PROT= is not a setting" in done.stderr
    assert "did you mean PORT=?" in done.stderr


@pytest.mark.parametrize("value", [r"quick=true\ epochs=2", "ends-with-a-backslash\\\\"])
def test_a_value_is_no_second_variable_and_hides_none(repository: Path, value: str) -> None:
    """Make writes a backslash before a space and a backslash of a value; what follows the value is checked."""
    words = f" -- PARAMS={value}"

    assert rocmlab(repository, "devices", MAKEFLAGS=words).returncode == 0
    assert "PROT= is not a setting" in rocmlab(repository, "devices", MAKEFLAGS=f"{words} PROT=9000").stderr


def test_a_system_error_is_a_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    """What the system refuses ends in what, why and fix, not in a traceback."""
    monkeypatch.setattr("rocmlab.cli.devices.survey", lambda _: open(tmp_path / "nowhere/file"))  # noqa: SIM115

    code = main(["devices"])

    assert code == 2
    assert "No such file or directory" in capsys.readouterr().err


def test_verbs_that_look_need_a_project(repository: Path, tmp_path: Path) -> None:
    """In a clone without a lab `down` says that there is none, and what to type."""
    for name in ("compose.yaml", "docker/Dockerfile"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()

    done = rocmlab(repository, "down", cwd=tmp_path)

    assert done.returncode == 2
    assert "no lab found here" in done.stderr
    assert "fix: make up" in done.stderr


@pytest.mark.slow
def test_what_a_terminal_cannot_show_is_escaped(repository: Path, tmp_path: Path) -> None:
    """A name of a file, or our own "…", ends no command where the locale is not UTF-8."""
    done = rocmlab(repository, "run", "größe…ю.ipynb", "--no-such", cwd=tmp_path, PYTHONIOENCODING="latin-1:strict")
    shown = rocmlab(repository, "datasets", "fetch", "größe…ю", cwd=tmp_path, PYTHONIOENCODING="ascii:strict")

    assert (done.returncode, shown.returncode) == (2, 2)
    assert "Traceback" not in done.stderr + shown.stderr
    assert "gr\\xf6\\xdfe\\u2026\\u044e" in shown.stderr


def test_words_from_make_keep_their_quotes() -> None:
    """Names and values with spaces arrive whole, and no shell reads them."""
    environment = {
        "NOTEBOOKS": "'my notebook.ipynb' 01_mnist_fc",
        "PARAMS": "title='a b' x=$(id)",
        "RUN": "--retries 2 --name 'my night'",
    }

    assert words_from_make(environment) == [
        *("my notebook.ipynb", "01_mnist_fc", "-p", "title=a b", "-p", "x=$(id)"),
        *("--retries", "2", "--name", "my night"),
    ]


@pytest.mark.parametrize(
    ("words", "chosen"),
    [
        (["--list"], []),
        (["--resume", "last"], []),
        (["--reproduce", "last"], []),
        (["--engine", "rocmlab"], []),
        ([], ["--engine", "ray"]),
    ],
    ids=str,
)
@pytest.mark.parametrize("name", ["ENGINE", "ROCMLAB_ENGINE"])
def test_a_default_engine_is_one_for_new_runs(name: str, words: list[str], chosen: list[str]) -> None:
    """An exported engine adds nothing to an earlier run, and a word wins over it."""
    args = build_parser("run").parse_intermixed_args(words)

    assert engine_of(args, {name: "ray"}) == chosen


def test_usage_of_run_is_checked_before_anything_is_built(repository: Path, tmp_path: Path) -> None:
    """A wrong option must not cost an image build first."""
    done = rocmlab(repository, "run", "--no-such-option", cwd=tmp_path)

    assert done.returncode == 2
    assert "--no-such-option is not an option of rocmlab run" in done.stderr


@pytest.mark.parametrize(("command", "code"), [("up", 0), ("upgrade", 0), ("status", 2)])
def test_what_makes_a_lab_goes_on_when_its_terminal_is_gone(
    monkeypatch: pytest.MonkeyPatch, command: str, code: int
) -> None:
    """An upgrade would not start the lab again: its next line of progress ended it."""

    class Gone(io.StringIO):
        def write(self, text: str) -> int:
            raise OSError(errno.EIO, "the terminal is gone")

    def work(name: str, arguments: object) -> int:
        sys.stdout.write("one line")
        return 0

    monkeypatch.setitem(sys.modules, "a_command", SimpleNamespace(main=work))
    monkeypatch.setitem(COMMANDS, command, ("a_command", ""))
    stream = Gone()
    monkeypatch.setattr(sys, "stdout", stream)

    assert main([command]) == code
    assert sys.stdout is stream
