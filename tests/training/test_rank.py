"""One rank of a launch."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from rocmlab.training import rank


@pytest.mark.parametrize(
    ("script", "code", "says"),
    [
        ("import sys; print(sys.argv[1:], __name__)", 0, "['a', 'b'] __main__"),
        ("import atexit, os; atexit.register(os._exit, 9); print('done')", 0, "done"),
        ("raise ValueError('seen')", 1, "ValueError: seen"),
        ("import sys; sys.exit(5)", 5, ""),
        ("import sys; sys.exit('why')", 1, "why"),
        ("from beside import word; print(word)", 0, "found"),
    ],
    ids=["arguments", "ending", "exception", "code", "message", "imports"],
)
def test_a_script_runs_as_by_itself_and_ends_at_once(tmp_path: Path, script: str, code: int, says: str) -> None:
    """Arguments, imports from its folder, exit codes and tracebacks are the script's; what trips at the end is not."""
    (tmp_path / "script.py").write_text(script)
    (tmp_path / "beside.py").write_text("word = 'found'")

    command = [sys.executable, rank.__file__, str(tmp_path / "script.py"), "a", "b"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)

    assert done.returncode == code
    assert says in done.stdout + done.stderr
