"""`make demo` on a machine without Docker: everything is shown on a simulated host, and nothing is left of it."""

from __future__ import annotations

import re
import signal
import subprocess
from collections.abc import Iterator

import pytest
from clones import Clone
from demos import WAIT_SECONDS, Demo, notebooks, until

from rocmlab.stack import server

pytestmark = pytest.mark.native


@pytest.fixture(scope="module")
def demo(native_lab: Clone, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Demo]:
    """A demonstration."""
    running = Demo(native_lab, tmp_path_factory.mktemp("demo") / "log")
    yield running
    running.end()


def test_it_says_that_nothing_of_it_is_real(demo: Demo) -> None:
    """First of all, and in JSON."""
    assert "SIMULATED: four GPUs that do not exist" in demo.said
    assert demo.smi()["simulated"] is True
    assert demo.ask("/rocmlab/api/devices")["simulated"] is True


def test_notebooks_are_on_the_gpus(demo: Demo) -> None:
    """Two pretended trainings and a forgotten kernel, by their notebooks' names, with memory that they hold."""
    wanted = {"pretended_training.ipynb", "forgotten_kernel.ipynb"}

    until(lambda: notebooks(demo.smi()) == wanted)
    until(lambda: len(demo.smi()["processes"]) == 3)

    assert {row["owner"]["kind"] for row in demo.smi()["processes"]} == {"kernel", "job"}
    assert all(row["vram_bytes"] > 500_000_000 for row in demo.smi()["processes"])


def test_the_command_for_nvitop_that_it_prints_shows_the_cards(demo: Demo) -> None:
    """That of the lab, for this machine has none."""
    shown = demo.nvitop()

    assert "SIMULATED" in shown
    assert shown.count("RX 7900") == 4


def test_the_panel_is_there(demo: Demo) -> None:
    """Alone, and in JupyterLab."""
    address = f"http://127.0.0.1:{demo.port}/rocmlab/?token={demo.token}"
    with server.OPENER.open(address, timeout=60) as answer:
        page = answer.read().decode()
    labextensions = subprocess.run(
        [str(demo.folder / ".venv/bin/jupyter"), "labextension", "list"], capture_output=True, text=True, check=True
    )

    assert "<title>" in page
    assert re.search(r"rocmlab-panel.*enabled.*OK", labextensions.stdout + labextensions.stderr)


def test_the_own_lab_stays_as_it_is(demo: Demo) -> None:
    """Its settings and its share are those of before."""
    assert demo.own() == demo.before


def test_nothing_is_left_of_it(demo: Demo) -> None:
    """After Ctrl-C, and a second one, no server answers, no process runs on its folder, and the folder is gone."""
    demo.process.send_signal(signal.SIGINT)
    until(lambda: "ending the demonstration" in demo.said)
    demo.process.send_signal(signal.SIGINT)

    assert demo.process.wait(WAIT_SECONDS) == 0
    assert "ending the demonstration" in demo.said
    assert server.is_free(demo.port)
    assert not (demo.folder / ".rocmlab/demo").exists()
    listed = subprocess.run(["ps", "-A", "-o", "args="], capture_output=True, text=True, check=True).stdout
    assert str(demo.folder / ".rocmlab/demo") not in listed
