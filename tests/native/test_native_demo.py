"""`make demo` on a machine without Docker: everything is shown on a simulated host, and nothing is left of it."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import clients
import pytest
from clones import Clone

from rocmlab.stack import server

pytestmark = pytest.mark.native

START_SECONDS = 900.0  # the environment is made first
WAIT_SECONDS = 120.0


class Demo:
    """A demonstration that runs."""

    def __init__(self, lab: Clone, log: Path) -> None:
        lab.make("down", succeeds=False)  # of an earlier test
        self.folder, self.environment, self.log = lab.folder, lab.environment, log
        self.before = self.own()
        with log.open("w") as output:
            command = ["python3", "-m", "rocmlab", "demo"]
            self.process = subprocess.Popen(
                command, cwd=lab.folder, env={**lab.environment, "PYTHONPATH": "src"}, stdout=output, stderr=output
            )
        until(lambda: "Ctrl-C ends it" in self.said or self.process.poll() is not None, START_SECONDS)
        found = re.search(r"http://127\.0\.0\.1:(\d+)/lab\?token=(\w+)", self.said)
        assert found, self.said
        self.port, self.token = int(found[1]), found[2]

    def own(self) -> list[str]:
        """What belongs to the lab next to which it runs."""
        env = self.folder / ".env"
        return [env.read_text() if env.exists() else "", *map(str, sorted(self.folder.glob("share/*")))]

    @property
    def said(self) -> str:
        """What it printed."""
        return self.log.read_text()

    def ask(self, path: str) -> Any:
        """Ask its server."""
        return clients.ask(self.port, self.token, path, timeout_seconds=20)[1]

    def smi(self) -> dict[str, Any]:
        """Run the command that it prints, for JSON."""
        (line,) = re.findall(r"ROCMLAB_ROOT=(\S+) scripts/rocmlab smi", self.said)
        command = ["scripts/rocmlab", "smi", "--json"]
        return json.loads(
            subprocess.check_output(command, cwd=self.folder, env={**self.environment, "ROCMLAB_ROOT": line})
        )


def until(is_true: Callable[[], object], seconds: float = WAIT_SECONDS) -> None:
    """Wait until something is true."""
    end = time.monotonic() + seconds
    while not is_true():
        assert time.monotonic() < end, "it never became true"
        time.sleep(0.2)


@pytest.fixture(scope="module")
def demo(native_lab: Clone, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Demo]:
    """A demonstration."""
    running = Demo(native_lab, tmp_path_factory.mktemp("demo") / "log")
    yield running
    if running.process.poll() is None:
        running.process.send_signal(signal.SIGINT)
        running.process.wait(WAIT_SECONDS)


def notebooks(found: dict[str, Any]) -> set[str]:
    """Return the names of the notebooks that have processes."""
    owners = [process["owner"] or {} for process in found["processes"]]
    return {Path(owner["notebook"]).name for owner in owners if owner.get("notebook")}


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


def test_the_panel_is_there(demo: Demo) -> None:
    """Alone, and in JupyterLab."""
    address = f"http://127.0.0.1:{demo.port}/rocmlab/?token={demo.token}"
    with server.OPENER.open(address, timeout=20) as answer:
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
