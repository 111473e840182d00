"""`%%gpu` and `%gpu` in a real kernel, started with the extensions that our kernels have."""

from __future__ import annotations

from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient
from run_fixtures import kernel as kernel

from rocmlab.base.formatting import ANSI
from rocmlab.kernels import kernelspec
from rocmlab.packages import overlays
from rocmlab.simulation import write_host

pytestmark = pytest.mark.slow

CELLS = {
    "value": "%%gpu\nlist_ = [1]\n3 + 4",
    "no import": "import sys\n'rocmlab.telemetry.measurement' in sys.modules, 'IPython.core.magics' in sys.modules",
    "error": "%%gpu\n\nlist_[1]",
    "await": "%%gpu\nimport asyncio\nawait asyncio.sleep(0.2)\n'awaited'",
    "time": "\n%%gpu\n%%time\n5 + 5",
    "within": "%%time\n%%gpu\n6 + 6",
    "future": "%%gpu\nfrom __future__ import annotations\n'future'",
    "nested": "%%gpu\nimport rocmlab\nwith rocmlab.measure(show=False) as part:\n    pass\npart.cost.wall_seconds < 60",
    "line": "x = %gpu sum(range(10))\nx",
    "statement": "%gpu y = 1\ny",
    "line error": "%gpu 1 / 0",
    "nothing": "%gpu",
    "more": "%%gpu label\n1",
    "interrupt": (
        "%%gpu\nimport os, signal, threading, time\n"
        "threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT)).start()\ntime.sleep(60)"
    ),
    "no framework": "%%profile_gpu\n1",
    "unknown": "%%profile_gpu numpy\n1",
    "not installed": "%%profile_gpu jax\n1",
    "script": "%%profile_gpu rocprofv3\nraise SystemExit('it ran in the kernel')",
    "plain": "1 + 1",
}


@pytest.fixture(scope="module")
def outputs(kernel: str, tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Any]]:
    """What each cell has shown, on a simulated host with one GPU."""
    host = write_host(tmp_path_factory.mktemp("cells") / "host", gpus=1, busy="50", processes=[])
    order = ["no import", *(name for name in CELLS if name != "no import")]
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(CELLS[name]) for name in order])
    arguments = kernelspec.extension_arguments({"env": {overlays.KERNEL: "torch"}})
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ROCMLAB_ROOT", str(host))
        client = NotebookClient(notebook, kernel_name=kernel, allow_errors=True, timeout=120)
        client.extra_arguments = arguments
        client.execute()
    return {name: cell.outputs for name, cell in zip(order, notebook.cells, strict=True)}


def lines(shown: list[Any]) -> list[str]:
    """Return the lines of measurements."""
    texts = [output.data["text/plain"] for output in shown if output.output_type == "display_data"]
    assert all("<svg" in output.data["text/html"] for output in shown if output.output_type == "display_data")
    return [text.splitlines()[0] for text in texts]


def value(shown: list[Any]) -> str:
    """Return the value of a cell's last line."""
    (result,) = [output for output in shown if output.output_type == "execute_result"]
    return str(result.data["text/plain"])


@pytest.mark.long
@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("value", "7"),
        ("await", "'awaited'"),
        ("time", "10"),
        ("within", "12"),
        ("future", "'future'"),
        ("nested", "True"),
        ("line", "45"),
        ("statement", "1"),
    ],
)
def test_the_line_is_shown_and_the_value_as_well(outputs: dict[str, list[Any]], name: str, expected: str) -> None:
    """Once, of the simulated GPU, with another magic below or above it, and with a measurement within it."""
    assert value(outputs[name]) == expected
    (line,) = lines(outputs[name])
    assert "· AMD Radeon RX 7900 XTX (SIMULATED) · VRAM peak " in line
    assert "· busy 50 %, " in line


def test_an_error_is_as_without_it(outputs: dict[str, list[Any]]) -> None:
    """The same line of the cell, and no other frames; the cost is shown below it."""
    error, shown = outputs["error"]

    assert (error.ename, error.evalue) == ("IndexError", "list index out of range")
    text = ANSI.sub("", "\n".join(error.traceback))
    assert (text.count("Cell In"), text.count("File"), text.count("rocmlab")) == (1, 0, 0)
    assert "line 3" in text
    assert len(lines([shown])) == 1


def test_an_error_in_a_line_is_raised_as_well(outputs: dict[str, list[Any]]) -> None:
    """After its cost."""
    (error,) = [output for output in outputs["line error"] if output.output_type == "error"]

    assert error.ename == "ZeroDivisionError"
    assert len(lines(outputs["line error"])) == 1


def test_an_interrupted_cell_has_its_line(outputs: dict[str, list[Any]]) -> None:
    """And the interrupt is reported as usual; the next cell is not measured."""
    (error,) = [output for output in outputs["interrupt"] if output.output_type == "error"]

    assert error.ename == "KeyboardInterrupt"
    assert len(lines(outputs["interrupt"])) == 1
    assert lines(outputs["plain"]) == []


def test_mistakes_say_how_it_is_used(outputs: dict[str, list[Any]]) -> None:
    """Nothing to measure, something behind `%%gpu`, or no profiler to use: then the cell is not run."""
    assert "%gpu model.fit(x, y)" in outputs["nothing"][0].text
    assert "%%gpu is a line of its own" in outputs["more"][0].text
    for name, why in (
        ("no framework", "UsageError: no framework is in use"),
        ("unknown", "no profiler is known for numpy"),
        ("not installed", "jax is not installed in this kernel"),
        ("script", "rocprofv3 was not found"),
    ):
        (shown,) = outputs[name]
        assert why in shown.text
        assert "%%profile_gpu torch" in shown.text or name in ("not installed", "script")


def test_nothing_is_imported_before_it_is_used(outputs: dict[str, list[Any]]) -> None:
    """A kernel that measures nothing starts without what measures."""
    assert value(outputs["no import"]) == "(False, True)"


def test_kernels_of_others_are_started_without_it() -> None:
    """Their interpreter may not have rocmlab; `%load_ext rocmlab` adds it where it does."""
    assert kernelspec.extension_arguments({"env": {"HOME": "/"}}) == []


def test_it_can_be_loaded_elsewhere() -> None:
    """By `%load_ext rocmlab`, in any IPython."""
    from IPython.core.interactiveshell import InteractiveShell
    from traitlets.config import Config

    shell = InteractiveShell(config=Config({"HistoryManager": {"enabled": False}}))

    shell.run_line_magic("load_ext", "rocmlab")

    assert shell.find_line_magic("gpu")
    assert shell.find_cell_magic("gpu")
