"""`rocmlab completion`: real shells complete commands, options, values, notebooks and files."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pexpect
import pytest

from rocmlab.cli import completion
from rocmlab.cli.main import ALIASES, COMMANDS, main
from rocmlab.cli.parsers import parsers

LINES = [  # what is typed before a tab, and the arguments that the command then gets
    ("datasets fetch fash", ["datasets", "fetch", "fashion_mnist"]),
    ("run-no", ["run-notebooks"]),
    ("cluster jo", ["cluster", "join"]),
    ("export slurm --partit", ["export", "slurm", "--partition"]),
    ("run --engine ra", ["run", "--engine", "ray"]),
    ("run --engine=ra", ["run", "--engine=ray"]),
    ("run --dry-run 01_mn", ["run", "--dry-run", "01_mnist_fc"]),
    ("run some\\ no", ["run", "some notebook.ipynb"]),
    ("doctor --only kernel.amd", ["doctor", "--only", "kernel.amdgpu"]),
    ("record --output some", ["record", "--output", "some notebook.ipynb"]),
    ("run --share fol", ["run", "--share", "folder/"]),
]


def words(line: str) -> list[str]:
    """Return the words that may follow on a line; what is typed ends where the line ends."""
    return [each.word for each in completion.candidates(line.split(" "))]


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a file and a folder, and a program `rocmlab` on the PATH that prints its arguments."""
    for name in ("here/folder", "bin"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "here/some notebook.ipynb").touch()
    program = tmp_path / "bin/rocmlab"
    program.write_text("#!/bin/sh\nprintf '<%s>' \"$@\"\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("PYTHON", sys.executable)
    monkeypatch.delenv("ROCMLAB_RUNTIME", raising=False)
    monkeypatch.chdir(tmp_path / "here")
    return tmp_path / "here"


@pytest.fixture
def shell(request: pytest.FixtureRequest, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> tuple[str, Path]:
    """A shell, and the file of its script."""
    if shutil.which(request.param) is None:
        pytest.skip(f"needs {request.param}: sudo apt install {request.param}")
    assert main(["completion", request.param]) == 0
    script = tmp_path / "script"
    script.write_text(capsys.readouterr().out)
    return request.param, script


def complete(shell: tuple[str, Path], lines: list[tuple[str, list[str]]]) -> None:
    """Type each line with a tab and Enter, in a terminal, and compare the arguments that the command gets."""
    name, script = shell
    start = {"bash": "--norc --noprofile -i", "zsh": "-f -i"}[name]
    before = {
        "bash": "bind 'set bell-style none'",
        "zsh": "autoload -U compinit; compinit -u -D; setopt noautoremoveslash",
    }[name]
    terminal = pexpect.spawn(f"{name} {start}", encoding="utf-8", timeout=20, dimensions=(50, 500))
    try:
        terminal.sendline(f"{before}; source {script}; PS1='> '; printf 'rea%s\\n' dy")
        terminal.expect_exact("ready")
        for typed, expected in lines:
            terminal.send(f"rocmlab {typed}\t\n")
            terminal.expect_exact("".join(f"<{each}>" for each in expected))
    finally:
        terminal.close(force=True)


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize("shell", ["bash", "zsh"], indirect=True)
@pytest.mark.usefixtures("here")
def test_a_tab_completes_the_line(shell: tuple[str, Path]) -> None:
    """The command gets the completed arguments, from an interactive shell."""
    complete(shell, LINES)


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize("shell", ["bash", "zsh"], indirect=True)
@pytest.mark.usefixtures("here")
def test_a_notebook_of_the_lab_is_quoted_once(
    shell: tuple[str, Path], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Spaces and what the shell would read as its own become a part of the name, however its beginning is quoted."""
    (tmp_path / "lab").mkdir()
    for name in ("my draft", "cost & more (2)", "cost $HOME"):  # bash cannot quote the last, and does not offer it
        (tmp_path / f"lab/{name}.ipynb").touch()
    monkeypatch.setenv("ROCMLAB_RUNTIME", "native")
    monkeypatch.setenv("ROCMLAB_NOTEBOOKS", str(tmp_path / "lab"))

    lines = [("run my", "my draft"), (r"run my\ d", "my draft"), ("run 'my d", "my draft"), ('run "my d', "my draft")]
    lines.append((r"run --dry-run cost\ \&", "cost & more (2)"))
    if shell[0] == "bash":  # zsh offers both that begin so
        lines.append(("run cost", "cost & more (2)"))
    complete(shell, [(typed, [*typed.split(" ")[: 2 if "--" in typed else 1], name]) for typed, name in lines])


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize("shell", ["fish"], indirect=True)
@pytest.mark.usefixtures("here")
def test_fish_completes_the_line(shell: tuple[str, Path]) -> None:
    """What fish offers at a tab has the completed argument, and the help of an option."""
    name, script = shell

    def offered(typed: str) -> str:
        code = f"source {script}; complete -C {shlex.quote(f'rocmlab {typed}')}"
        return subprocess.run([name, "-N", "-c", code], capture_output=True, text=True, check=True).stdout

    for typed, expected in LINES:
        assert expected[-1] in [line.split("\t")[0].replace("\\ ", " ") for line in offered(typed).splitlines()], typed
    assert "\tprint what would run" in offered("run --dry")


@pytest.mark.parametrize(
    ("shell", "made"),
    [
        ("bash", ".local/share/bash-completion/completions/rocmlab"),
        ("fish", ".config/fish/completions/rocmlab.fish"),
    ],
)
def test_the_help_says_how_to_install_it(
    shell: str, made: str, here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """In 80 columns, as lines that can be pasted, for an account that has no such folder yet."""
    monkeypatch.setenv("COLUMNS", "80")
    with pytest.raises(SystemExit):
        main(["completion", "--help"])
    shown = capsys.readouterr().out
    lines = shown.split(f"\n{shell}: ")[1].split("\n\n")[0].split("\nzsh:")[0]

    subprocess.run(["bash", "-e", "-c", lines], env={**os.environ, "HOME": str(here)}, check=True)

    assert (here / made).read_text() == f"<completion><{shell}>"
    assert "scripts/rocmlab" in shown


def test_every_command_is_offered() -> None:
    """With its aliases, and with what it does."""
    assert {*COMMANDS, *ALIASES} <= set(words(""))
    assert {each.word: each.help for each in completion.candidates([""])}["down"] == COMMANDS["down"][1]
    assert words("no-such-command ") == []


def test_every_option_of_every_command_is_offered() -> None:
    """Those of its help, and no hidden one."""
    for command, parser in parsers():
        listed = {each for each in parser.format_help().replace(",", " ").replace("]", " ").split() if each[:2] == "--"}
        offered = words(f"{command} --")
        assert offered[0] == "--help"
        assert set(offered) <= listed | {"--help"}
    assert "--in-share" not in words("clean --")


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("-v ur", ["url"]),
        ("smi --color ", ["auto", "always", "never"]),
        ("smi --watch --cs", ["--csv"]),
        ("smi --watch 2 --cs", ["--csv"]),
        ("run --engine = r", ["rocmlab", "ray"]),
        ("run --timeout ", []),
        ("run -p lr=1 --job-gpus ", ["all"]),
        ("datasets fetch mnist tr", ["trec"]),
        ("monitoring ", ["up", "down"]),
        ("monitoring up extra --h", ["--help"]),
        ("run -- --dry", [":file"]),
        ("run --resume ", ["last", ":directory"]),
        ("nvml-exec --", ["--help", "--notebooks"]),
        ("completion ", ["bash", "zsh", "fish"]),
    ],
)
def test_what_may_follow(line: str, expected: list[str]) -> None:
    """Choices, values of options with and without =, names, and nothing where a number is expected."""
    assert words(line) == expected


def test_a_tab_outside_of_a_project_offers_files(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """An error is not shown in the middle of a line that is typed."""
    monkeypatch.setenv("ROCMLAB_RUNTIME", "native")
    monkeypatch.setenv("ROCMLAB_NOTEBOOKS", str(tmp_path / "missing"))

    assert words("run x") == [":file"]


def test_a_name_that_would_break_the_list_is_not_offered(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Each candidate is one line on a terminal."""
    monkeypatch.setenv("ROCMLAB_RUNTIME", "native")
    monkeypatch.setenv("ROCMLAB_NOTEBOOKS", str(tmp_path))
    for name in ("fine", "two\nlines", "a\x1b[2J"):
        (tmp_path / f"{name}.ipynb").touch()

    assert words("run ") == ["fine", ":file"]


def test_the_script_asks_the_rocmlab_that_printed_it(repository: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """By its absolute path, in each shell: a tab in a folder of others runs nothing of theirs."""
    for shell in completion.SCRIPTS:
        assert main(["completion", shell]) == 0
        assert f"{repository}/scripts/rocmlab completion --words" in capsys.readouterr().out
