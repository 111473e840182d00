"""The parsers of all commands, as documentation and completion see them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from rocmlab.cli.main import COMMANDS, main
from rocmlab.cli.parsers import parser_of, parsers

ALL = [command for command, _ in parsers()]


def test_every_command_has_a_parser() -> None:
    """Those of the help in its order, and the subcommands of each."""
    assert [command for command in ALL if " " not in command] == list(COMMANDS)
    assert {"cluster join", "datasets fetch", "export slurm", "export collect", "bench train", "bench up"} <= set(ALL)
    assert parser_of("run-notebooks").prog == "rocmlab run"


@pytest.mark.parametrize("command", ALL)
def test_it_is_the_parser_that_runs(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    """The help that a command prints is that of its parser."""
    if command == "nvitop":
        assert main([command, "--help"]) == 0
    else:
        with pytest.raises(SystemExit) as ended:
            main([*command.split(), "--help"])
        assert ended.value.code == 0

    assert capsys.readouterr().out == parser_of(command).format_help()
    assert parser_of(command).prog == f"rocmlab {command}"


def test_parsers_need_the_standard_library_only(repository: Path) -> None:
    """All are built by an interpreter without site-packages."""
    code = "from rocmlab.cli.parsers import parsers; print(len(list(parsers())))"
    environment = {**os.environ, "PYTHONPATH": str(repository / "src")}

    done = subprocess.run(
        [sys.executable, "-S", "-c", code], env=environment, capture_output=True, text=True, check=False
    )

    assert (done.returncode, done.stdout.strip()) == (0, str(len(ALL))), done.stderr
