"""`%%profile_gpu` with the real profiler of the framework whose turn it is, on the CPU, in IPython."""

from __future__ import annotations

import gzip
import json
import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

FRAMEWORK = os.environ.get("KERAS_BACKEND", "torch")
MULTIPLY = {
    "torch": "import torch\nfor _ in range(3): torch.ones(300, 300) @ torch.ones(300, 300)",
    "jax": "import jax\nones = jax.numpy.ones((800, 800))\n"
    "kept = [jax.jit(lambda x: jax.numpy.tanh(x @ x).sum())(ones) for _ in range(3)]",
    "tensorflow": "import tensorflow as tf\nfor _ in range(3): tf.ones((300, 300)) @ tf.ones((300, 300))",
}[FRAMEWORK]
START = {
    "torch": "import torch; active = torch.profiler.profile(acc_events=True); active.start()",
    "jax": "import jax; jax.profiler.start_trace('other')",
    "tensorflow": "import tensorflow as tf; tf.profiler.experimental.start('other')",
}[FRAMEWORK]
STOP = {
    "torch": "active.stop(); [event.key for event in active.key_averages() if event.key == 'aten::mm']",
    "jax": "jax.profiler.stop_trace()",
    "tensorflow": "tf.profiler.experimental.stop()",
}[FRAMEWORK]
OPERATOR = {"torch": r"aten::mm ", "jax": r"(dot|ynn|fusion)\S* ", "tensorflow": r"_?\w*MatMul "}[FRAMEWORK]
LEAST = 1 if FRAMEWORK == "jax" else 3  # XLA records not every call on the CPU, and divides one among programs
pytestmark = pytest.mark.frameworks


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], Any]]:
    """Run a cell: its result, and what it displayed and wrote."""
    interactive = pytest.importorskip("IPython.core.interactiveshell").InteractiveShell
    from IPython.utils.capture import capture_output
    from traitlets.config import Config

    pytest.importorskip(FRAMEWORK)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ROCMLAB_SHARE", str(tmp_path / "share"))
    shell = interactive.instance(config=Config({"HistoryManager": {"enabled": False}}))
    shell.run_line_magic("load_ext", "rocmlab")

    def cell(text: str) -> Any:
        with capture_output() as shown:
            result = shell.run_cell(text)
        return result, shown

    yield cell
    interactive.clear_instance()


def test_a_profiled_cell_shows_its_operators_and_leaves_a_trace(run: Callable[[str], Any], tmp_path: Path) -> None:
    """The multiplication is among them, the CPU is named as what computed, and Perfetto can read the trace."""
    result, shown = run(f"%%profile_gpu\n{MULTIPLY}\n'done'")

    assert (result.result, shown.stderr) == ("done", "")
    text = shown.outputs[0].data["text/plain"]
    assert text.startswith(f"{FRAMEWORK} · ")
    assert "operators on the CPU, no GPU kernel seen" in text
    row = re.search(rf"^\S*{OPERATOR} *(\d+) +([\d.]+) ", text, re.MULTILINE)
    assert row, text
    assert int(row.group(row.lastindex - 1)) >= LEAST
    [trace] = (tmp_path / "share/profiles").iterdir()
    assert str(trace) in text
    assert f'href="share/profiles/{trace.name}"' in shown.outputs[0].data["text/html"]
    assert any(event.get("ph") == "X" for event in json.loads(gzip.decompress(trace.read_bytes()))["traceEvents"])


def test_errors_and_magics_are_as_without_it(run: Callable[[str], Any]) -> None:
    """An error is raised below the table; `%%time` and `%%gpu` go with it, above and below, and `await` works."""
    failed, shown = run(f"%%profile_gpu {FRAMEWORK}\n1 / 0")
    assert isinstance(failed.error_in_exec, ZeroDivisionError)
    assert len(shown.outputs) == 1

    for text in ("%%time\n%%profile_gpu {}\n1", "%%profile_gpu {}\n%%time\n1", "%%gpu\n%%profile_gpu {}\n1"):
        result, shown = run(text.format(FRAMEWORK))
        assert result.success
        assert any(FRAMEWORK in each.data["text/plain"] for each in shown.outputs), text
    result, shown = run(f"%%profile_gpu {FRAMEWORK}\nimport asyncio\nawait asyncio.sleep(0, 'awaited')")
    assert (result.result, len(shown.outputs)) == ("awaited", 1)


def test_the_users_own_profiler_is_not_disturbed(run: Callable[[str], Any]) -> None:
    """While it is active the cell is run and not profiled, and it says why."""
    run(START)
    result, shown = run(f"%%profile_gpu\n{MULTIPLY}\n'done'")
    kept, _ = run(STOP)

    assert result.result == "done"
    assert "not profiled: a profiler is active already" in shown.stderr
    assert shown.outputs == []
    assert kept.success
    assert FRAMEWORK != "torch" or kept.result == ["aten::mm"]
